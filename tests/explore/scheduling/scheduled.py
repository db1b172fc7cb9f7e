"""Runs of the whole bus under a seeded scheduler, in virtual time: publishers, coordinators, subscribers, a registry.

See :mod:`tests.explore.scheduling.scheduled_parts` for what is real and what is replaced, and
:mod:`tests.explore.scheduling.scheduled_world` for the faults and the oracle. ``python -m
tests.explore.scheduling.scheduled --seeds 1000 --seed 0`` explores; ``--only SEED`` runs one again and prints what
happened.
"""

from __future__ import annotations

import argparse
import gc
import logging
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobpipe.config import Config, load
from tests.explore.interleaving.interleave import MEMORY, Report
from tests.explore.scheduling.scheduled_world import Outcome, play

LOGGERS = ("jobpipe", "jobpipe_registry", "asyncio")


class Player:
    """Plays seeds, each in an empty folder."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._config = _config(home)

    def play(self, seed: int) -> Outcome:
        """Run one seed."""
        run = self._home / "run"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        try:
            return play(seed, run, self._config)
        finally:
            gc.collect()


def _config(home: Path) -> Config:
    settings = {
        "jobpipe.home": str(home),
        "jobpipe.registerserver.connect": "memory:1",
        "jobpipe.ssl.enabled": "false",
        "jobpipe.sinkserver.subnet": "127.0.0.0/8",
        "jobpipe.spool.dir": str(home / "spool"),
        "jobpipe.registerserver.session.timeout": "4s",
        "jobpipe.coordinator.linger": "40s",
    }
    return load(overrides=settings, environ={})


@contextmanager
def playing() -> Iterator[Player]:
    """Give a player with a folder of its own; logs are silent, and garbage is collected between runs only."""
    home = Path(tempfile.mkdtemp(prefix="jobpipe-explore-", dir=MEMORY if MEMORY.is_dir() else None))
    before = {name: logging.getLogger(name).level for name in LOGGERS}
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    collecting, frozen = gc.isenabled(), gc.get_freeze_count()
    said = sys.unraisablehook
    sys.unraisablehook = lambda what: None  # of the remains of killed processes, when they are collected
    gc.collect()
    gc.freeze()
    gc.disable()  # what it closes, and when, must not depend on other runs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # coroutines of killed processes that never began
            yield Player(home)
    finally:
        sys.unraisablehook = said
        if not frozen:  # else what a program froze before would be thawed too
            gc.unfreeze()
        if collecting:
            gc.enable()
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
        shutil.rmtree(home, ignore_errors=True)


def run(seeds: int, seed: int = 0, *, seconds: float | None = None) -> Report:
    """Run so many seeds; end after ``seconds`` if given."""
    report, began = Report("scheduled runs"), time.monotonic()
    with playing() as player:
        for number in range(seed, seed + seeds):
            outcome = player.play(number)
            report.runs += 1
            report.steps += outcome.jobs
            report.seconds = time.monotonic() - began
            if outcome.faults:
                report.found.append((str(number), outcome.faults))
            if seconds is not None and report.seconds > seconds:
                break
    return report


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--only", type=int, help="one seed; what happened is shown")
    options = parser.parse_args()
    if options.only is not None:
        with playing() as player:
            outcome = player.play(options.only)
        print(*outcome.trace, "", *(outcome.faults or ["no fault"]), sep="\n")
        print(f"{outcome.seconds:.0f} virtual seconds, {outcome.jobs} jobs, {outcome.rows} rows")
        return bool(outcome.faults)
    report = run(options.seeds, options.seed, seconds=options.seconds)
    print(report)
    return bool(report.found)


if __name__ == "__main__":
    sys.exit(main())
