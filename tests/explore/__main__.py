"""``python -m tests.explore EXPLORER --seeds N --seed S``: run an explorer for so many seeds, and say what it found.

EXPLORER is the name of one, or ``all``. A failure shows its seed and its case; ``--case`` runs that again alone.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
import time

EXPLORERS = {
    "cancel": "tests.explore.cancel_runs",
    "fail": "tests.explore.fail_runs",
    "interleave": "tests.explore.interleave_runs",
    "scheduled": "tests.explore.scheduled_runs",
}
"""By name the module whose ``explore(seeds, first, say)`` runs an explorer, and whose ``again(case)`` runs one case.

``explore`` returns a :class:`tests.explore.found.Found`; both raise nothing for what they find.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments name; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description=__doc__)
    parser.add_argument("explorer", choices=[*EXPLORERS, "all"])
    parser.add_argument("--seeds", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first one (default: %(default)s)")
    parser.add_argument("--case", help="run this case alone, as a failure names it")
    chosen = parser.parse_args(arguments)
    failed = False
    for name in EXPLORERS if chosen.explorer == "all" else [chosen.explorer]:
        try:
            module = importlib.import_module(EXPLORERS[name])
        except ModuleNotFoundError as error:
            if error.name != EXPLORERS[name]:
                raise
            print(f"{name}: there is no such explorer yet")
            continue
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
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
