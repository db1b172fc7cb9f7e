"""``python -m tests.faults.chaos --seconds 600 --seed 1``: random faults, alone and mixed, a quarter of the time none.

Runs a publisher, its coordinator, three subscribers and ZooKeeper as real processes, all behind proxies, and hurts them
for so many seconds. The seed is printed: it draws the same faults again. In the end everything is healed and read to
its end mark, and the verdict says what arrived, with exit code 1 if a row was lost, came twice, out of order or
damaged, if a program ended by itself, or if nothing moved within ``PROGRESS`` seconds after a fault was over.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from jobpipe.testing.checker import Checker, Report
from jobpipe.testing.consume import Received
from jobpipe.testing.processes import Harness, Program
from jobpipe.testing.proxy import BOTH

PAUSE = 0.01  # seconds between two batches
PROGRESS = 60.0  # seconds; a dead link's silence, a registry session and back-off, on a busy machine
QUIET = 0.25  # so often nothing happens
SUBSCRIBERS = {"all": None, "slices": 700, "small": 70}  # name: most rows of a transaction; a batch has more
SHAPES = [{"rows": 50, "payload": 16}, {"rows": 500, "payload": 100}]  # in the catalog, and in files
Act = Callable[["Chaos"], None]
FAULTS: list[Act] = []


def fault(act: Act) -> Act:
    """Add a fault to those that are drawn; it returns when it is over."""
    FAULTS.append(act)
    return act


class Chaos:
    """One run."""

    def __init__(self, rig: Harness, chance: random.Random) -> None:
        self.rig = rig
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
            program.start(pause=PAUSE)
            return
        name = next(name for name in SUBSCRIBERS if self.rig.consumer(name) is program)
        program.start(max_rows=SUBSCRIBERS[name])

    def restart(self, program: Program) -> None:
        """``kill -9``, and start again after a moment."""
        program.kill()
        self.sleep(0.0, 0.5)
        self.start(program)

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
        """Wait until rows sealed from now on have arrived everywhere; a program that ended by itself is noted."""
        began, target = time.monotonic(), self.rig.journal.rows
        while time.monotonic() - began < PROGRESS:
            self._mend(what)
            if all(self.rig.received(name) > target for name in SUBSCRIBERS):
                self.slowest = max(self.slowest, time.monotonic() - began)
                return
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

    def verdict(self) -> bool:
        """Heal, read everything, compare, and print."""
        self.heal()
        for process in self.rig.coordinators():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self.rig.zookeeper.resume()
        self.rig.zookeeper.start()
        self.expect_progress("the end")
        try:
            self.rig.finish()
        except AssertionError as error:
            self._fail(f"at the end: {error}")
        rows = lost = twice = 0
        for name in SUBSCRIBERS:
            report = self._report(name)
            rows, lost, twice = rows + report.rows, lost + len(report.lost), twice + len(report.duplicated)
            if report.faults:
                self._fail(f"subscription {name}: {report}")
        print(f"\nfaults injected: {self.injected.total()}")
        for what, times in sorted(self.injected.items()):
            print(f"  {times:4} {what}")
        print(f"{self.rig.journal.batches} batches, {self.rig.journal.rows} rows sealed; {rows} rows checked")
        print(f"slowest return after a fault: {self.slowest:.1f} s")
        print(f"lost: {lost}, duplicates: {twice}, failures: {len(self.failures)}")
        for text in self.failures:
            print(f"  {text}")
        return not self.failures

    def _report(self, name: str) -> Report:
        checker = Checker(self.rig.rows, self.rig.journal)
        with contextlib.closing(Received(self.rig._store(name))) as received:
            for _, table in received.batches():
                checker.take(table)
        return checker.report()


# -- processes ---------------------------------------------------------------------------------------------------------


@fault
def kill_publisher(run: Chaos) -> None:
    """Its coordinator goes on, and hands over."""
    run.restart(run.rig.publisher)


@fault
def kill_subscriber(run: Chaos) -> None:
    """It goes on from its own position."""
    run.restart(run.subscriber())


@fault
def kill_coordinator(run: Chaos) -> None:
    """The publisher starts another one."""
    for process in run.coordinators():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@fault
def kill_data_process(run: Chaos) -> None:
    """The coordinator starts another one."""
    with contextlib.suppress(psutil.NoSuchProcess, AssertionError):
        run.rig.data_process().kill()


@fault
def kill_publishers_host(run: Chaos) -> None:
    """Driver, coordinator and data process."""
    run.rig.publisher.signal(9)
    kill_coordinator(run)
    kill_data_process(run)
    run.restart(run.rig.publisher)


@fault
def stop_publisher(run: Chaos) -> None:
    """SIGSTOP, for less or more than a registry session."""
    run.rig.publisher.suspend()
    run.sleep(0.5, 6.0)
    run.rig.publisher.resume()


@fault
def stop_coordinator(run: Chaos) -> None:
    """SIGSTOP; its session may expire."""
    for process in run.coordinators():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
            run.sleep(0.5, 7.0)
            process.resume()


@fault
def stop_subscriber(run: Chaos) -> None:
    """SIGSTOP."""
    program = run.subscriber()
    program.suspend()
    run.sleep(0.5, 6.0)
    program.resume()


@fault
def end_publisher(run: Chaos) -> None:
    """SIGTERM, as with a rolling restart."""
    run.rig.publisher.terminate(30.0)
    run.start(run.rig.publisher)


@fault
def end_subscriber(run: Chaos) -> None:
    """SIGTERM."""
    program = run.subscriber()
    program.terminate(30.0)
    run.start(program)


# -- network -----------------------------------------------------------------------------------------------------------


@fault
def reset_links(run: Chaos) -> None:
    """RST of all links, some times."""
    for _ in range(run.chance.randrange(1, 5)):
        for proxy in run.rig.proxies:
            proxy.reset()
        run.sleep(0.0, 0.5)


@fault
def cut_links(run: Chaos) -> None:
    """At a random byte, of links that are open and of the next ones."""
    for proxy in run.rig.proxies:
        for way in BOTH:
            proxy.cut(way, run.chance.randrange(5000), open_ones=True, reset=run.chance.random() < 0.5)
            proxy.cut(way, run.chance.randrange(6000), times=2)
    run.sleep(0.5, 2.0)
    run.heal()


@fault
def flip_bits(run: Chaos) -> None:
    """TLS, or a checksum, notices."""
    for proxy in run.rig.proxies:
        for way in BOTH:
            bit = run.chance.randrange(8)
            proxy.flip(way, run.chance.randrange(5000), bit=bit, open_ones=True)
            proxy.flip(way, run.chance.randrange(4000), bit=bit)
    run.sleep(0.5, 2.0)
    run.heal()


@fault
def partition(run: Chaos) -> None:
    """Subscribers are cut off, without a word."""
    for proxy in run.rig.proxies:
        proxy.pause()
    run.sleep(0.5, 8.0)
    for proxy in run.rig.proxies:
        if run.chance.random() < 0.5:
            proxy.reset()
        proxy.resume()


@fault
def drop_one_way(run: Chaos) -> None:
    """One direction's bytes vanish; the links are of no use afterwards, and end."""
    way = run.chance.choice(BOTH)
    for proxy in run.rig.proxies:
        proxy.drop(way)
    run.sleep(0.5, 4.0)
    for proxy in run.rig.proxies:
        proxy.drop(way, False)
        proxy.reset()


@fault
def late_frames(run: Chaos) -> None:
    """What subscribers sent arrives seconds later, over links that they may have left."""
    for proxy in run.rig.proxies:
        proxy.hold("up")
    run.sleep(0.5, 6.0)
    if run.chance.random() < 0.5:
        run.restart(run.subscriber())
    for proxy in run.rig.proxies:
        proxy.release()


@fault
def slow_links(run: Chaos) -> None:
    """100 ms each way and 3 Mbit/s."""
    for proxy in run.rig.proxies:
        proxy.delay(0.1)
        proxy.limit_rate(3e6 / 8)
    run.sleep(1.0, 4.0)
    run.heal()


# -- ZooKeeper ---------------------------------------------------------------------------------------------------------


@fault
def kill_zookeeper(run: Chaos) -> None:
    """For less or more than a session."""
    run.rig.zookeeper.kill()
    run.sleep(0.0, 8.0)
    run.rig.zookeeper.start()


@fault
def partition_zookeeper(run: Chaos) -> None:
    """All sessions may expire."""
    run.rig.zookeeper.proxy.pause()
    run.sleep(0.5, 10.0)
    run.rig.zookeeper.proxy.resume()


@fault
def lose_zookeepers_answers(run: Chaos) -> None:
    """It does what it is told, and nobody hears."""
    run.rig.zookeeper.proxy.drop("down")
    run.sleep(0.2, 2.0)
    run.rig.zookeeper.proxy.drop("down", False)
    run.rig.zookeeper.proxy.reset()


def main() -> int:
    """Run and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None, help="printed if it is drawn")
    parser.add_argument("--plain", action="store_true", help="without TLS")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(2**32)
    chance = random.Random(seed)
    shape = chance.choice(SHAPES)
    settings = {"ssl.enabled": "false"} if options.plain else {}
    print(f"SEED={seed} {shape}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix=f"jobpipe-chaos-{seed}-") as folder,
        Harness(Path(folder), proxied=True, settings=settings, **shape) as rig,
    ):
        run = Chaos(rig, chance)
        run.start(rig.publisher)
        for name in SUBSCRIBERS:
            run.start(rig.consumer(name))
        run.run(options.seconds)
        sound = run.verdict()
    print(f"SEED={seed}: {'sound' if sound else 'FAULTS'}, {time.monotonic() - run.began:.0f} s")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
