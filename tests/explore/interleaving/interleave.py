"""Two coordinators of one topic, the old one not knowing of the new one, interleaved at each step.

Each pair of operations of :mod:`tests.explore.interleaving.interleave_log`: the old coordinator does one, the new one
takes the topic over, does another and goes on publishing. Exhaustively with one switch: one of the two stops before its
k-th step, the other runs to its end, the first goes on; for every k. Where the old one reads a file of SQLite's itself,
the new one also stops once at each of its steps meanwhile. Then, by seeds, with many switches. The old one's operation
also meets a failed fsync of SQLite, once at each, so that a commit of unknown outcome is repeated while a successor
acts.

``python -m tests.explore.interleaving.interleave --seeds 1000 --seed 0`` tries all switches, then seeds, ``--only
CASE`` one case.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

from jobpipe.testing import Checker
from tests.explore.interleaving import interleave_log as subject
from tests.explore.interleaving import interleave_oracle as oracle
from tests.explore.interleaving.interleave_steps import Actor, Policy, stepping
from tests.explore.interleaving.interleave_steps import run as run_actors
from tests.explore.virtual_time import Stuck

MEMORY = Path("/dev/shm")
SYNCS = 4  # failed ones tried, of each operation
SHOWN = 40


@dataclass(frozen=True)
class Spec:
    """One run: who begins, and after how many steps the other has its turn; or, with a seed, many switches.

    Attributes:
        old, new: Operations; ``restore`` for both is the pair of a lost topic.
        fail: Which sync of the old one's catalog fails, see :class:`Actor`; 0 for none.
        first: ``old`` or ``new``.
        after: Steps of ``first`` before the switch.
        then: If not 0, the other one takes but so many steps, ``first`` one, the other the rest, and ``first`` its own.
        seed: Of random switches; None for one switch.
    """

    placement: str
    old: str
    new: str
    fail: int = 0
    first: str = "old"
    after: int = 0
    then: int = 0
    seed: int | None = None

    def __str__(self) -> str:
        way = f"{self.first}@{self.after}" if self.seed is None else f"seed@{self.seed}"
        way += f"+{self.then}" if self.then else ""
        return f"{self.placement}/{self.old}/{self.new}/{self.fail}/{way}"

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Return the one that prints like this."""
        placement, old, new, fail, way = text.split("/")
        how, _, number = way.partition("@")
        if how == "seed":
            return cls(placement, old, new, int(fail), seed=int(number))
        after, _, then = number.partition("+")
        return cls(placement, old, new, int(fail), how, int(after), int(then or 0))


@dataclass
class Outcome:
    """Of one run; ``steps`` by side."""

    faults: list[str]
    trace: list[str]
    steps: dict[str, int]
    syncs: int
    rows: int


@dataclass
class Report:
    """Of an exploration; ``found`` has (run, what is wrong), the first of each kind first."""

    explorer: str
    runs: int = 0
    steps: int = 0
    seconds: float = 0.0
    found: list[tuple[str, list[str]]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"{self.explorer}: {self.runs} runs, {self.steps} steps, {self.seconds:.1f} s, "
            f"{self.runs / max(self.seconds, 0.001):.0f} runs/s, {len(self.found)} with faults"
        ]
        lines += [f"  {spec}: {'; '.join(faults)}" for spec, faults in self.found[:SHOWN]]
        return "\n".join(lines)


class Explorer:
    """Runs specs in a folder of its own, in memory where there is such; a context manager."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="jobpipe-explore-", dir=MEMORY if MEMORY.is_dir() else None))
        self._templates = {place: subject.template(self._home, place) for place in subject.PLACEMENTS}
        self._empty = subject.template(self._home, "driver", empty=True)
        self._tables = [table for batch_id in range(subject.HISTORY) for table in subject.ROWS.tables(batch_id)]

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._home, ignore_errors=True)

    def run(self, spec: Spec) -> Outcome:
        """Run once and judge."""
        lost = spec.old == "restore"
        world = subject.copy(
            self._empty if lost else self._templates[spec.placement], self._home / "run", spec.placement
        )
        old, new = subject.Side(world, "old"), subject.Side(world, "new")

        def work_of_old() -> None:
            old.do(subject.restore if lost else subject.OPERATIONS[spec.old])

        def work_of_new() -> None:
            if lost:
                subject.restore(new)
                return
            new.begin()
            if spec.new == "close":
                new.publish_rest()
            subject.OPERATIONS[spec.new](new)
            if spec.new != "close":
                new.publish_rest()

        actors = {
            "old": Actor("old", work_of_old, fail_sync=spec.fail),
            "new": Actor("new", work_of_new),
        }
        ids = random.Random(f"{spec}")
        with subject.small_reserve(), stepping(), mock.patch("secrets.token_hex", lambda n: ids.randbytes(n).hex()):
            if not lost:
                old.begin()
            trace, faults = [], []
            try:
                trace = run_actors(list(actors.values()), _policy(spec, actors))
            except Stuck as error:
                faults.append(str(error))
            epochs = {"old": old.epoch, "new": new.epoch}
            for side in (old, new):
                side.end()
        for name, other in (("old", "new"), ("new", "old")):
            error = actors[name].error
            if not oracle.allowed(error, fenced=epochs[other] > epochs[name]):
                faults.append(f"{name} ended by {error!r}"[:300])
        checker = Checker(subject.ROWS, world.journal)
        for table in self._tables:
            checker.take(table)
        faults += oracle.judge(world, checker)
        return Outcome(
            faults, trace, {name: actor.steps for name, actor in actors.items()}, actors["old"].syncs, checker.rows
        )

    def aimed(self, spec: Spec, rng: random.Random) -> Spec:
        """Let the switch come where the old one reads or writes a file itself, if it does; the new one stops once."""
        whole = self.run(replace(spec, first="old", after=10_000, then=0, seed=None)).trace
        steps = [line for line in whole if line.startswith("old: ")]
        places = [number for number, line in enumerate(steps, 1) if line in ("old: pread", "old: pwrite")]
        if not places:
            return spec
        then = rng.randrange(1, 120) if spec.placement == "shared" else 0
        return replace(spec, first="old", after=rng.choice(places), then=then, seed=None)

    def single_switches(self, spec: Spec) -> Iterator[tuple[Spec, Outcome]]:
        """Run a pair with one switch after each step of either side, the other going first or last included."""
        for first in ("old", "new"):
            after, ended = 0, False
            while not ended:
                tried = Spec(spec.placement, spec.old, spec.new, spec.fail, first, after)
                outcome = self.run(tried)
                yield tried, outcome
                ended = outcome.steps[first] < after  # before there was anything to switch
                after += 1
                if first == "old" and _reads_a_file(outcome, after - 1):
                    yield from self._inside_a_change(tried, outcome.steps["new"])

    def near(self, spec: Spec, steps: int) -> Iterator[tuple[Spec, Outcome]]:
        """Run a spec with its switch up to so many steps sooner or later, and inside of what is changed then."""
        for after in range(max(spec.after - steps, 0), spec.after + steps + 1):
            tried = replace(spec, after=after)
            outcome = self.run(tried)
            yield tried, outcome
            if _reads_a_file(outcome, after):
                yield from self._inside_a_change(tried, outcome.steps["new"])

    def _inside_a_change(self, spec: Spec, steps: int) -> Iterator[tuple[Spec, Outcome]]:
        """What the first one reads now may be of a change that the other is in the middle of."""
        for then in range(1, steps + 1):
            tried = replace(spec, then=then)
            yield tried, self.run(tried)


def _reads_a_file(outcome: Outcome, after: int) -> bool:
    steps = [line for line in outcome.trace if line.startswith("old: ")]
    return after > 0 and steps[after - 1 : after] == ["old: pread"]


def _policy(spec: Spec, actors: dict[str, Actor]) -> Policy:
    if spec.seed is not None:
        rng = random.Random(f"{spec}")
        stay = rng.choice((0.5, 0.8, 0.95))
        last: list[Actor] = []

        def draw(able: list[Actor]) -> Actor:
            if not last or last[0] not in able or rng.random() > stay:
                last[:] = [rng.choice(able)]
            return last[0]

        return draw
    first = actors[spec.first]
    other = actors["new" if spec.first == "old" else "old"]

    def switch(able: list[Actor]) -> Actor:
        ahead = first.steps - spec.after
        if spec.then and ahead >= 0 and (ahead > 0 or other.steps < spec.then) and other in able:
            return other
        if spec.then and ahead == 0 and first in able:
            return first
        if first in able and (first.steps < spec.after or other not in able):
            return first
        return other if other in able else first

    return switch


def pairs() -> list[Spec]:
    """All pairs, without a failed sync."""
    found = [
        Spec(placement, old, new)
        for placement in subject.PLACEMENTS
        for old in subject.operations(placement)
        for new in subject.operations(placement)
    ]
    return [*found, Spec("driver", "restore", "restore")]


PAIRS = pairs()


def failing(spec: Spec) -> list[Spec]:
    """The same pair, each of the old one's syncs failing, alone, and with all after it."""
    fails = [*range(1, SYNCS + 1), *range(11, 11 + SYNCS)]
    return [Spec(spec.placement, spec.old, spec.new, fail) for fail in fails]


def draw(rng: random.Random, number: int, bases: list[Spec] | None = None) -> Spec:
    """Draw a pair, what fails, and when who has his turn; ``number`` makes two draws differ."""
    base = rng.choice(bases or PAIRS)
    spec = replace(base, fail=rng.choice((0, 0, 0, 1, 2, 3, 11, 12)))
    if rng.random() < 0.5:
        return replace(spec, seed=number)
    then = rng.randrange(1, 120) if rng.random() < 0.3 else 0
    return replace(spec, first=rng.choice(("old", "old", "new")), after=rng.randrange(60), then=then)


def run(seeds: int, seed: int = 0, *, seconds: float | None = None, chosen: list[Spec] | None = None) -> Report:
    """Explore all single switches of the pairs, then so many seeds.

    Args:
        seconds: End after so long.
        chosen: Pairs to explore with single switches instead of all.
    """
    report, began = Report("two coordinators"), time.monotonic()

    def over() -> bool:
        return seconds is not None and time.monotonic() - began > seconds

    def note(spec: Spec, outcome: Outcome) -> None:
        report.runs += 1
        report.steps += len(outcome.trace)
        report.seconds = time.monotonic() - began
        if outcome.faults:
            report.found.append((str(spec), outcome.faults))

    bases = pairs() if chosen is None else list(chosen)
    if chosen is None:
        random.Random(seed).shuffle(bases)  # so that short explorations with other seeds look elsewhere
    with Explorer() as explorer:
        for base in bases:
            # What a failed sync leaves does not depend on what the new one does after it has taken over.
            more = failing(base) if chosen is None and base.new == "seal" else []
            for spec in [base, *more]:
                for tried, outcome in explorer.single_switches(spec):
                    note(tried, outcome)
                if over():
                    return report
        rng, bases = random.Random(seed), bases or pairs()
        for number in range(seed, seed + seeds):
            spec = draw(rng, number, bases)
            note(spec, explorer.run(spec))
            if over():
                break
    return report


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--only", help="one run, as it was printed: its trace is shown")
    options = parser.parse_args()
    if options.only:
        with Explorer() as explorer:
            outcome = explorer.run(Spec.parse(options.only))
        print(*outcome.trace, "", *(outcome.faults or ["no fault"]), sep="\n")
        return bool(outcome.faults)
    report = run(options.seeds, options.seed, seconds=options.seconds)
    print(report)
    return bool(report.found)


if __name__ == "__main__":
    sys.exit(main())
