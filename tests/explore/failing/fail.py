"""Every call fails: each call of the disk, of SQLite and of the registry fails once, and a successor may act after it.

A call fails before it was done, or after it; its caller cannot tell. The operation then may fail, with an error of the
bus, or succeed. Afterwards the invariants hold, the operation succeeds when it is done again, and the oracle judges.

With a successor: at a later call the coordinator's thread stands still. Meanwhile its registry session ends, another
coordinator takes the topic over, publishes what the old one's publisher was about to, and more. Then the old one goes
on: nothing that was answered is lost, and it publishes nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jobpipe.errors import JobpipeError
from tests.explore.worlds.world import Coordinator, World
from tests.explore.worlds.world_disk import Call, Fault
from tests.explore.worlds.world_operations import FIRST, OPERATIONS, PATIENCE, Operation, repeated, staged
from tests.explore.worlds.world_stage import Stage, Violation, meaning

SUCCEEDED = ("seal inline", "seal files", "close", "begin", "declare", "lease", "grant to a new name", "tick")
_LIVING = ("live", "live after a close") * 2  # what no request asks for, and so none repeats
_ORDER = (*FIRST, *(name for name in OPERATIONS if name not in FIRST), "tick", *_LIVING)
_WRITES = {"open", "write", "pwrite", "posix_fallocate", "mkdir"}
_READS = {"read", "stat", "lstat", "listdir", "scandir", "statvfs", "close"}
_CHANGES = {"write", "sync", "truncate", "delete"}
_BEFORE_ONLY = {"read", "stat", "lstat", "listdir", "scandir", "statvfs", "pread", "get", "get_all", "folder", "lock"}


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        operation, acks, placement: what is done, and in which kind of world.
        call: which call fails, counted with both phases; 0 for none.
        fault: how: ``error``, ``full``, ``busy`` for as long as SQLite waits, ``broken``: an error, and each other
            change of the transaction and of its rolling back fails too.
        after: so many calls after that the successor acts; 0 for no successor.
    """

    operation: str
    acks: str
    placement: str
    call: int
    fault: str
    after: int

    def __str__(self) -> str:
        return f"{self.operation}/{self.acks}/{self.placement}/{self.call}/{self.fault}/{self.after}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the case that ``str`` gave."""
        operation, acks, placement, call, fault, after = text.split("/")
        return cls(operation, acks, placement, int(call), fault, int(after))


def faults_of(call: Call) -> list[str]:
    """Return how a call can fail in this phase."""
    if call.name == "close":
        return []
    if call.after:
        return [] if call.name in _BEFORE_ONLY else ["error"]
    if call.name == "lock":
        return ["busy"]
    if call.layer == "statement":  # a COMMIT's outcome is SQLite's to tell
        return [] if call.name in ("COMMIT", "ROLLBACK") else ["error", "busy"] if call.name == "BEGIN" else ["error"]
    faults = ["error"]
    if call.layer != "registry" and call.name in _WRITES:
        faults.append("full")
    if call.layer == "sqlite" and call.name in _CHANGES:
        faults.append("broken")
    return faults


class _Failing:
    """Counts the calls of one operation, and lets one fail; stands still at a later one."""

    def __init__(self, world: World, case: Case) -> None:
        self.calls: list[Call] = []
        self.jobs: list[int] = []  # that made them
        self.where = "nothing failed"
        self.stood_still = False
        self._world = world
        self._case = case
        self._lasting = False  # the fault lasts as long as the transaction
        self._fault = Fault("error" if case.fault == "broken" else case.fault)

    def called(self, call: Call) -> Fault | None:
        if self._world.loop.current is None:
            return None
        if self.stood_still and not self._is_old():
            return None  # the successor's
        self.calls.append(call)
        self.jobs.append(self._world.loop.number)
        count, case = len(self.calls), self._case
        if self._lasting and call.layer not in ("sqlite", "statement"):
            self._lasting = False
        if self._lasting and not call.after and call.name in (("lock",) if case.fault == "busy" else _CHANGES):
            return self._fault
        if case.call and count == case.call:
            self.where = str(call)
            self._lasting = case.fault in ("busy", "broken") and call.layer == "sqlite"
            return self._fault
        if case.after and count == case.call + case.after:
            self.where += f"; a successor acted where {call}"
            self._lasting = False
            self.old_thread = self._world.loop.current
            self.stood_still = True
            self._world.loop.pause()
        return None

    def _is_old(self) -> bool:
        return self._world.loop.current is self.old_thread


async def _tick(stage: Stage) -> Any:
    topic = stage.a.topic
    assert topic is not None
    await stage.read("ack", {"grant": stage.grant, "position": topic.head.to_json()})
    await topic.tick(1.0, retain=True)


TICK = Operation("tick", _tick)


def operation_of(name: str) -> Operation:
    """Return an operation by its name."""
    return TICK if name == "tick" else OPERATIONS[name]


def run_case(case: Case) -> tuple[list[Call], list[int], int]:
    """Run one case; return the calls that were made, the jobs that made them, and the rows that arrived.

    Raises:
        Violation: something does not hold; says what and where.
    """
    operation = operation_of(case.operation)
    pausing = set()
    if case.after:
        _, jobs = made_by(dataclasses.replace(case, after=0))
        pausing = {jobs[case.call + case.after - 1]}
    with staged(operation, case.acks, case.placement) as stage:
        failing = _Failing(stage.world, case)
        try:
            done = _failed(operation, stage, failing, case, pausing)
            rows = _succeeded(stage) if case.after else repeated(operation, stage, done=done, failed=not done)
        except Exception as error:
            raise Violation(f"{case}: failed: {failing.where}: {meaning(error)}") from error
        return failing.calls, failing.jobs, rows


def _failed(operation: Operation, stage: Stage, failing: _Failing, case: Case, pausing: set[int]) -> bool:
    """Do the operation with its fault; tell whether it gave an answer."""
    world, loop = stage.world, stage.world.loop
    successor: list[asyncio.Task[None]] = []

    def stood_still() -> None:
        if not successor:
            successor.append(loop.create_task(_succeed(stage)))
            successor[0].add_done_callback(lambda _: setattr(loop, "hold", 0.0))

    loop.number, loop.threaded, loop.hold = 0, pausing, 1e9 if case.after else 0.0
    loop.on_pause, world.sites.act = stood_still, failing.called

    async def whole() -> None:
        async with asyncio.timeout(PATIENCE):
            await operation.act(stage)

    done = False
    try:
        world.run(whole())
        done = True
    except JobpipeError as error:
        failing.where += f" [{meaning(error)[:200]}]"
    finally:
        world.sites.act = None
        loop.on_pause = lambda: None
        loop.hold = 0.0
    world.settle()
    loop.threaded = set()
    if case.after and not successor:
        successor.append(loop.create_task(_succeed(stage)))
    if successor:
        world.run(asyncio.wait_for(successor[0], PATIENCE))
    world.settle()
    return done


# -- with a successor --------------------------------------------------------------------------------------------------


async def _succeed(stage: Stage) -> None:
    """Another coordinator takes over and publishes."""
    world = stage.world
    stage.a.handler.memory_nodes().expire()
    config = stage.a.config
    other = Coordinator(world, len(world.coordinators), config)
    world.coordinators.append(other)
    stage.kept["successor"] = other
    await stage.open(other)
    for number in range(2):
        await stage.batch(other, stage.batch_id + number, run="successor")


def _succeeded(stage: Stage) -> int:
    """The old one goes on for a while, and its publisher wants to; return the rows that arrived."""
    world, other = stage.world, stage.kept["successor"]

    async def old_goes_on() -> None:
        with contextlib.suppress(JobpipeError):
            await stage.batch(stage.a, stage.batch_id + 5, run="zombie")
            raise Violation("the old coordinator has sealed a batch, after its successor took over")
        live = asyncio.ensure_future(stage.a.host.live())
        await asyncio.wait({live}, timeout=1.5)
        live.cancel()
        await asyncio.wait({live})

    world.run(old_goes_on())
    world.settle()
    if stage.a.topic is not None:
        raise Violation("the old coordinator still serves the topic")
    world.run(stage.batch(other, stage.batch_id + 2, run="successor"))
    stage.final = True  # an end mark may have been sealed by the old one
    stage.check()
    return stage.finish()


# -- cases -------------------------------------------------------------------------------------------------------------

_made: dict[Case, tuple[list[Call], list[int]]] = {}


def made_by(case: Case) -> tuple[list[Call], list[int]]:
    """Return the calls that a case without a successor makes, and the jobs that make them; none if it fails."""
    if case not in _made:
        try:
            calls, jobs, _ = run_case(case)
        except Violation:
            calls, jobs = [], []
        _made[case] = calls, jobs
    return _made[case]


def calls_of(case: Case) -> list[Call]:
    """Return the calls that a case without a successor makes; [] if it fails."""
    return made_by(case)[0]


def places(calls: list[Call]) -> list[int]:
    """Return the numbers of the calls that are worth a look: of many alike in a row, the first and the last."""
    found = []
    for number, call in enumerate(calls, 1):
        around = [calls[other - 1] for other in (number - 2, number + 2) if 0 < other <= len(calls)]
        if len(around) < 2 or any(other != call for other in around):
            found.append(number)
    return found


def faults(case: Case) -> Iterator[Case]:
    """Yield a case without a fault with each fault that it can have."""
    calls = calls_of(case)
    for number in places(calls):
        for fault in faults_of(calls[number - 1]):
            yield dataclasses.replace(case, call=number, fault=fault)


def successors(case: Case) -> Iterator[Case]:
    """Yield a case with a fault with a successor at each later place."""
    calls = calls_of(case)
    for number in places(calls):
        call = calls[number - 1]
        if number > case.call and call.name not in _READS and call.layer != "statement":
            yield dataclasses.replace(case, after=number - case.call)


def plain_cases(names: Iterable[str]) -> Iterator[Case]:
    """Yield the operations in all their worlds, without a fault."""
    for name in names:
        for acks in operation_of(name).acks:
            for placement in operation_of(name).placements:
                yield Case(name, acks, placement, 0, "error", 0)


def draw(seed: int) -> Case:
    """Return the case of a seed; of two, one has a successor."""
    chance, succeeded = random.Random(seed), seed % 2 == 1
    turn = seed // 2
    while True:
        case = chance.choice(list(plain_cases(SUCCEEDED if succeeded else [_ORDER[turn % len(_ORDER)]])))
        turn += 1  # for one that no fault can meet
        possible = list(faults(case))
        if succeeded:  # where the outcome of a commit is open
            made = calls_of(case)
            possible = [one for one in possible if made[one.call - 1].name in _CHANGES]
            possible = _of_one_kind(chance, possible, [made[one.call - 1].name for one in possible])
        if not possible:
            continue
        case = chance.choice(possible)
        if succeeded:
            made, following = calls_of(case), list(successors(case))
            if not following:
                continue
            # What is done to files beside SQLite is not protected by its locks: layers first.
            following = _of_one_kind(chance, following, [made[one.call + one.after - 1].layer for one in following])
            following = _of_one_kind(chance, following, [made[one.call + one.after - 1].name for one in following])
            case = chance.choice(following)
        return case


def _of_one_kind(chance: random.Random, found: list[Case], kinds: list[str]) -> list[Case]:
    """Return the cases of one kind, each kind as likely as any other: there are many writes and few syncs."""
    chosen = chance.choice(sorted(set(kinds))) if kinds else ""
    return [one for one, kind in zip(found, kinds, strict=True) if kind == chosen]
