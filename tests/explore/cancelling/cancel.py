"""Cancel everywhere: each operation of a coordinator, cancelled at each step, then checked and done again.

A step is a suspension of the operation, or a call of the disk, of SQLite or of the registry that one of its threads
makes, before it and after it, or the end of a thread's work whose outcome is not delivered yet. At the step the
operation's task is cancelled, as by a link that ends or by a caller's time-out. A thread in the middle of its work goes
on at once, after all else, or after some seconds. Then the invariants are checked, the operation is done again, and the
oracle judges.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Coroutine, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from tests.explore.worlds.world import World
from tests.explore.worlds.world_disk import Call, Fault
from tests.explore.worlds.world_operations import FIRST, OPERATIONS, PATIENCE, Operation, repeated, staged
from tests.explore.worlds.world_stage import Stage, Violation, meaning

# Reads of SQLite change nothing and are many.
_STEPS = {"sync", "truncate", "delete", "fsync", "unlink", "commit", "open", "mkdir", "posix_fallocate"}
_POLICIES = ("soon", "late", "hung")
_ORDER = (*FIRST, *(name for name in OPERATIONS if name not in FIRST))


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        operation, acks, placement: what is done, and in which kind of world.
        step: at which the operation is cancelled; 0 for not at all, with its answer lost.
        policy: when a thread goes on that is in the middle of its work.
    """

    operation: str
    acks: str
    placement: str
    step: int
    policy: str

    def __str__(self) -> str:
        return f"{self.operation}/{self.acks}/{self.placement}/{self.step}/{self.policy}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the case that ``str`` gave."""
        operation, acks, placement, step, policy = text.split("/")
        return cls(operation, acks, placement, int(step), policy)


class _Counted:
    """Awaits a coroutine, and tells of each of its suspensions."""

    def __init__(self, work: Coroutine[Any, Any, Any], on_suspend: Any) -> None:
        self._work = work
        self._on_suspend = on_suspend

    def __await__(self) -> Generator[Any, Any, Any]:
        value, error = None, None
        while True:
            try:
                awaited = self._work.throw(error) if error is not None else self._work.send(value)
            except StopIteration as end:
                return end.value
            self._on_suspend()
            value = error = None
            try:
                value = yield awaited
            except GeneratorExit:
                self._work.close()
                raise
            except BaseException as thrown:
                error = thrown


class _Steps:
    """Counts the steps of one operation, and cancels it at one of them."""

    def __init__(self, world: World, at: int, *, cancels: bool) -> None:
        self._cancels = cancels
        self.jobs: list[int] = []  # of each step, the job that makes it, or had made the one before
        self.where = ""
        self._world = world
        self._at = at
        self._cancelling = False
        self.task: asyncio.Task[Any] | None = None

    def suspended(self) -> None:
        if self._step("the operation waits"):
            self._world.loop.call_soon(self._cancel)

    def called(self, call: Call) -> Fault | None:
        if call.name in _STEPS and self._world.loop.current is not None and self._step(str(call)):
            self._cancelling = True
            self._world.loop.pause()
        return None

    def done(self) -> None:
        """A thread's work has ended."""
        if self._step("a thread's work is done, and its outcome on the way"):
            self._cancel()

    def paused(self) -> None:
        if self._cancelling:
            self._cancelling = False
            self._cancel()

    def _step(self, where: str) -> bool:
        if self.task is None or self.task.done():
            return False
        self.jobs.append(self._world.loop.number)
        if len(self.jobs) != self._at:
            return False
        self.where = where
        return True

    def _cancel(self) -> None:
        if self.task is not None and self._cancels:
            self.task.cancel()


_jobs: dict[Case, list[int]] = {}


def jobs_of(case: Case) -> list[int]:
    """Return the job of each step of a case's operation when nothing is cancelled.

    Raises:
        Violation: even then something does not hold.
    """
    whole = Case(case.operation, case.acks, case.placement, 0, "late")
    if whole not in _jobs:
        _jobs[whole] = run_case(whole)[0]
    return _jobs[whole]


def run_case(case: Case) -> tuple[list[int], int, str]:
    """Run one case; return the jobs of its steps, the rows that arrived, and where it was cancelled.

    Raises:
        Violation: something does not hold; says what and where.
    """
    operation = OPERATIONS[case.operation]
    pausing = {jobs_of(case)[case.step - 1]} if case.step else set()
    with staged(operation, case.acks, case.placement) as stage:
        steps = _Steps(stage.world, case.step, cancels=operation.cancels)
        try:
            done = _explored(operation, stage, steps, case, pausing)
            rows = repeated(operation, stage, done=done)
        except Exception as error:
            raise Violation(f"{case}: cancelled where {steps.where or 'nothing is left'}: {meaning(error)}") from error
        return steps.jobs, rows, steps.where


def _explored(operation: Operation, stage: Stage, steps: _Steps, case: Case, pausing: set[int]) -> bool:
    """Do the operation, cancelled or not; tell whether it has given an answer."""
    world, loop = stage.world, stage.world.loop

    async def watched() -> Any:
        work = operation.act(stage)
        steps.task = asyncio.current_task()
        return await _Counted(work, steps.suspended)

    loop.number, loop.threaded = 0, pausing
    loop.soon, loop.hold = case.policy == "soon", 4.0 if case.policy == "hung" else 0.0
    loop.on_pause, loop.on_done, world.sites.act = steps.paused, steps.done, steps.called

    async def whole() -> bool:
        async with asyncio.timeout(PATIENCE):
            task = asyncio.ensure_future(watched())
            await asyncio.wait({task})
        if task.cancelled():
            return False
        task.result()
        return True

    done = False
    try:
        with contextlib.suppress(*operation.allowed):
            done = world.run(whole())
    finally:
        world.sites.act = None
        loop.on_pause = loop.on_done = lambda: None
    world.settle()
    loop.threaded, loop.hold = set(), 0.0
    return done


def cases(operation: Operation) -> Iterator[Case]:
    """Yield every case of an operation."""
    for acks in operation.acks:
        for placement in operation.placements:
            whole = Case(operation.name, acks, placement, 0, "late")
            yield whole
            for step in range(1, len(jobs_of(whole)) + 1):
                for policy in _policies(operation):
                    yield Case(operation.name, acks, placement, step, policy)


def turn_of(seed: int) -> str:
    """Return whose turn it is."""
    return _ORDER[seed % len(_ORDER)]


def draw(seed: int) -> Case:
    """Return the case of a seed: operations have their turns, their worlds and steps are drawn."""
    chance = random.Random(seed)
    operation = OPERATIONS[turn_of(seed)]
    whole = Case(operation.name, chance.choice(operation.acks), chance.choice(operation.placements), 0, "late")
    return dataclasses.replace(
        whole, step=chance.randint(0, len(jobs_of(whole))), policy=chance.choice(_policies(operation))
    )


def _policies(operation: Operation) -> tuple[str, ...]:
    return _POLICIES if operation.cancels else ("hung",)
