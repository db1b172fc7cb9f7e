"""``python -m tests.explore EXPLORER --seeds N --seed S``: run an explorer for so many seeds, and say what it found.

EXPLORER is the name of one, or ``all``. A failure shows its seed and its case; ``--case`` runs that again alone.
A run that takes too long is ended, and shows where each of its threads is.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import importlib
import os
import sys
import threading
import time
from datetime import timedelta

EXPLORERS = {
    "cancel": "tests.explore.cancelling.cancel_runs",
    "fail": "tests.explore.failing.fail_runs",
    "interleave": "tests.explore.interleaving.interleave_runs",
    "scheduled": "tests.explore.scheduling.scheduled_runs",
}
"""By name the module whose ``explore(seeds, first, say)`` runs an explorer, and whose ``again(case)`` runs one case.

``explore`` returns a :class:`tests.explore.found.Found`; both raise nothing for what they find.
"""


def _end_with_stacks(seconds: float) -> None:
    # In a thread of Python's: faulthandler's own one reads stacks while they change, and may crash.
    print(f"Timeout ({timedelta(seconds=seconds)})!", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments name; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("explorer", choices=[*EXPLORERS, "all"])
    parser.add_argument("--seeds", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first one (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=120.0, help="that it may take (default: %(default)s)")
    parser.add_argument("--case", help="run this case alone, as a failure names it")
    chosen = parser.parse_args(arguments)
    names = list(EXPLORERS) if chosen.explorer == "all" else [chosen.explorer]
    modules = {name: importlib.import_module(EXPLORERS[name]) for name in names}
    limit = threading.Timer(60.0 * chosen.minutes, _end_with_stacks, [60.0 * chosen.minutes])
    limit.daemon = True
    limit.start()
    failed = False
    for name, module in modules.items():
        if chosen.case is not None:
            what = module.again(chosen.case)
            print(what or "nothing found")
            failed = failed or what is not None
            continue
        began = time.perf_counter()
        found = module.explore(chosen.seeds, chosen.seed, functools.partial(print, flush=True))
        print(
            f"{name}: seeds {chosen.seed} to {chosen.seed + chosen.seeds - 1}, {found.steps} steps, {found.faults} "
            f"faults, {found.rows} rows, {len(found.failures)} failures, {time.perf_counter() - began:.0f} s"
        )
        failed = failed or bool(found.failures)
    limit.cancel()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
