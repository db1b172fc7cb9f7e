"""``python -m tests.faults.chaos --seconds 600 --seed 1``: random faults, alone and mixed, a quarter of the time none.

``--shape small`` seals some dozens of small batches a second; ``large`` seals batches of 4 MiB, in files, of 16
partitions; ``mixed``, the default, does the one and then the other, in an order that the seed draws.

Runs a publisher, its coordinator, three subscribers, a flow job with a subscriber of what it publishes, and ZooKeeper
as real processes, all behind proxies, and hurts them for so many seconds. The seed is printed: it draws the same faults
again. A holder of the right to read sends every operation with random fields all the while, unless ``--plain``: there
are no identities then. In the end everything is healed and read to its end mark, and the verdict says what arrived,
with exit code 1 if a row was lost, came twice, out of order or damaged, if a program ended by itself, if nothing moved
within ``PROGRESS`` seconds after a fault was over, if the reader was answered what he has no right to, or if a
ledger says that rows were lost.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from jobpipe.store.ledger.hop_account import GRACE_SECONDS
from jobpipe.testing.delivery_checker import Checker, Report
from tests.faults.chaos_faults import FAULTS, FLOW, FLOWED
from tests.harness.intruder import Intruder, admitted, as_intruder
from tests.harness.jobs.consume import Received
from tests.harness.ledgers import ledger
from tests.harness.processes import Harness
from tests.harness.program import Program

PROGRESS = 60.0  # seconds; a dead link's silence, a registry session and back-off, on a busy machine
BACKLOG = 600.0  # seconds for one that is slower than the publisher
QUIET = 0.25  # so often nothing happens
SUBSCRIBERS: dict[str, dict[str, int]] = {  # what each does with a batch: read it whole, or in slices of so many rows
    "all": {"parallel": 8},
    "slices": {"max_rows": 300, "parallel": 2},
    "small": {"max_rows": 70},
    "flow": {"parallel": 4},  # of what the flow job publishes
}
SMALL: dict[str, Any] = {"rows": 50, "payload": 16}  # in the catalog itself
LARGE: dict[str, Any] = {"partitions": 16, "rows": 32, "payload": 8192}  # 16 files
PAUSES = {"small": 0.03, "large": 1.0}  # seconds between two batches: the slowest subscriber is to keep up
SHAPES = {"small": SMALL, "large": LARGE}
INTRUDED = {"orders": ["intruder-1", "intruder-2"], FLOWED: ["intruder-1", FLOW]}  # the names that he may read under
KEEP = {"retention.time": "0s", "retention.bytes": "100MB", "retention.ack_grace": "5s"}  # files go while they are read


class Chaos:
    """One run."""

    def __init__(self, rig: Harness, chance: random.Random, pause: float) -> None:
        self.rig = rig
        self.pause = pause
        self.rows = self.lost = self.twice = self.requests = 0
        self.chance = chance
        self.injected: Counter[str] = Counter()
        self.failures: list[str] = []
        self.slowest = 0.0
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with its time."""
        print(f"{time.monotonic() - self.began:7.1f} {text}", flush=True)

    def sleep(self, least: float, most: float) -> None:
        """Pass a random time."""
        time.sleep(self.chance.uniform(least, most))

    def start(self, program: Program) -> None:
        """Start a program as it is meant to run."""
        if program is self.rig.publisher:
            program.start(pause=self.pause)
            return
        if program is self.flow:
            program.start()
            return
        name = next(name for name in SUBSCRIBERS if self.rig.consumer(name) is program)
        program.start(**SUBSCRIBERS[name])

    def restart(self, program: Program) -> None:
        """``kill -9``, and start again after a moment."""
        program.kill()
        self.sleep(0.0, 0.5)
        self.start(program)

    @property
    def flow(self) -> Program:
        """The flow job."""
        return self.rig.flow(FLOW, FLOWED)

    def subscriber(self) -> Program:
        """Return one of them."""
        return self.rig.consumer(self.chance.choice(list(SUBSCRIBERS)))

    def coordinators(self) -> list[psutil.Process]:
        """Return the youngest coordinator, if there is one."""
        return self.rig.coordinators()[-1:]

    def heal(self) -> None:
        """End every fault."""
        for proxy in [*self.rig.proxies, self.rig.zookeeper.proxy]:
            proxy.heal()

    def expect_progress(self, what: str) -> None:
        """Wait until rows sealed from now on have arrived everywhere; a program that ended by itself is noted.

        One that has a backlog to read first may take longer, as long as rows arrive.
        """
        began, target = time.monotonic(), self.rig.journal.rows
        moved, before = began, dict.fromkeys(SUBSCRIBERS, -1)
        while time.monotonic() - moved < PROGRESS and time.monotonic() - began < BACKLOG:
            self._mend(what)
            rows = {name: self.rig.received(name) for name in SUBSCRIBERS}
            if all(received > target for received in rows.values()):
                self.slowest = max(self.slowest, time.monotonic() - began)
                return
            if all(rows[name] > before[name] or rows[name] > target for name in SUBSCRIBERS):
                moved, before = time.monotonic(), rows
            time.sleep(0.05)
        self._fail(f"no progress within {PROGRESS:g} s after {what}: {self.rig.state()}")
        for program in self.rig._programs():
            self.restart(program)

    def _mend(self, what: str) -> None:
        for program in self.rig._programs():
            if program.failure is not None:
                self._fail(f"after {what}: {program.failure}")
                self.start(program)

    def _fail(self, text: str) -> None:
        self.failures.append(text)
        self.say(f"FAILURE {text}")

    def run(self, seconds: float) -> None:
        """Hurt it for so long."""
        self.expect_progress("the start")
        while time.monotonic() - self.began < seconds:
            if self.chance.random() < QUIET:
                self.say("quiet")
                self.sleep(1.0, 3.0)
                continue
            drawn = self.chance.sample(FAULTS, self.chance.choice([1, 1, 1, 2, 3]))
            names = " + ".join(act.__name__ for act in drawn)
            self.say(names)
            for act in drawn:
                self.injected[act.__name__] += 1
                act(self)
            if self.chance.random() < 0.7:  # else the next one meets what is not mended yet
                self.expect_progress(names)

    def judge(self, intruder: Intruder) -> None:
        """See that he has taken nothing, and that all that he can send was sent."""
        self.say(intruder.summary())
        self.requests = intruder.sent.total()
        for what in [*intruder.taken, *intruder.stumbled]:
            self._fail(f"the reader: {what}")
        if intruder.never_sent:
            self._fail(f"the reader never sent {sorted(intruder.never_sent)}")

    def verdict(self) -> None:
        """Heal, read everything, compare, and print."""
        self.heal()
        for process in [*self.rig.coordinators(), *self.rig.flow_coordinators(FLOW), *self.rig.flow_tasks(FLOW)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self.rig.zookeeper.resume()
        self.rig.zookeeper.start()
        self.expect_progress("the end")
        self.judge_ledger()
        try:
            self.rig.finish()
        except AssertionError as error:
            self._fail(f"at the end: {error}")
        for name in SUBSCRIBERS:
            report = self._report(name)
            self.rows += report.rows
            self.lost += len(report.lost)
            self.twice += len(report.duplicated)
            if report.faults:
                self._fail(f"subscription {name}: {report}")
        print(f"\nfaults injected: {self.injected.total()}")
        for what, times in sorted(self.injected.items()):
            print(f"  {times:4} {what}")
        print(f"{self.rig.journal.batches} batches, {self.rig.journal.rows} rows sealed; {self.rows} rows checked")
        print(f"slowest return after a fault: {self.slowest:.1f} s")
        print(f"lost: {self.lost}, duplicates: {self.twice}, failures: {len(self.failures)}")
        for text in self.failures:
            print(f"  {text}")

    def judge_ledger(self) -> None:
        """See that the ledgers blame no one: no row was lost, so each difference is a false alarm."""
        time.sleep(GRACE_SECONDS + 2.0)  # in which counts may be late
        hops = {
            f"{topic}/{hop.name}": hop.counts
            for topic, names in ((self.rig.topic, {*SUBSCRIBERS, FLOW} - {"flow"}), (FLOWED, {"flow"}))
            for hop in ledger(self.rig.config, topic).hops
            if hop.name in names  # others are the intruder's
        }
        for name, counts in hops.items():
            self.say(f"ledger of {name}: {counts.committed} rows committed, {counts.unproven} unproven")
            if counts.differences:
                self._fail(f"ledger of {name}: {counts.newest}")
            if not counts.read:
                self._fail(f"ledger of {name}: nothing is proven: {counts}")
        if len(hops) != len(SUBSCRIBERS) + 1:
            self._fail(f"ledgers of {sorted(hops)} alone")

    def _report(self, name: str) -> Report:
        checker = Checker(self.rig.rows, self.rig.journal)
        with contextlib.closing(Received(self.rig._store(name))) as received:
            for _, table in received.batches():
                checker.take(table)
        return checker.report()


def main() -> int:
    """Run and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None, help="printed if it is drawn")
    parser.add_argument("--shape", choices=["mixed", *SHAPES], default="mixed")
    parser.add_argument("--plain", action="store_true", help="without TLS")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(2**32)
    chance = random.Random(seed)
    shapes = chance.sample(list(SHAPES), len(SHAPES)) if options.shape == "mixed" else [options.shape]
    print(f"SEED={seed} SHAPE={options.shape}", flush=True)
    runs = [hurt(shape, options.seconds / len(shapes), chance, plain=options.plain) for shape in shapes]
    sound = not any(run.failures for run in runs)
    print(
        f"\nSEED={seed} SHAPE={options.shape}: {'sound' if sound else 'FAULTS'}; "
        f"{sum(run.injected.total() for run in runs)} faults, {sum(run.rows for run in runs)} rows checked, "
        f"{sum(run.lost for run in runs)} lost, {sum(run.twice for run in runs)} duplicates; "
        f"{sum(run.requests for run in runs)} requests of a reader"
    )
    return 0 if sound else 1


def hurt(shape: str, seconds: float, chance: random.Random, *, plain: bool) -> Chaos:
    """Hurt a pair of one shape for so long; return what came of it."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jobpipe-chaos-")))
        given, files = ({"ssl.enabled": "false"}, None) if plain else admitted(folder / "ca", INTRUDED)
        settings = {**KEEP, **given}
        rig = stack.enter_context(Harness(folder / "rig", proxied=True, settings=settings, **SHAPES[shape]))
        run = Chaos(rig, chance, PAUSES[shape])
        run.say(f"{shape}: {SHAPES[shape]}")
        run.start(rig.publisher)
        run.start(run.flow)
        for name in SUBSCRIBERS:
            run.start(rig.consumer(name, FLOWED if name == "flow" else None))
        if files is None:
            run.run(seconds)
        else:
            with Intruder(as_intruder(rig.config, files), INTRUDED, seed=chance.randrange(2**32)) as intruder:
                run.run(seconds)
            run.judge(intruder)
        run.verdict()
        run.say(f"{shape} ends")
    return run


if __name__ == "__main__":
    sys.exit(main())
