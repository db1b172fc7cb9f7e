"""The driver of a flow job: holds the subscription and the topic that is published, runs the tasks, acknowledges."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from jobpipe.errors import (
    ConfigError,
    DataLoss,
    Fenced,
    FlowNotFound,
    JobpipeError,
    LinkError,
    LocalProtocolError,
    NameTaken,
    NotAuthorized,
    RegistryUnavailable,
    SchemaMismatch,
    SpoolFull,
    TopicNotFound,
    TopicOwned,
    UnsupportedType,
    WaitTimeout,
)
from jobpipe.flows.flow_endpoints import FlowEndpoints
from jobpipe.flows.flow_settings import FlowOptions, FlowState, FlowStatus, PartitionStatus
from jobpipe.flows.flow_task import TaskEnd, TaskOrder
from jobpipe.net.links.fork_guard import ForkGuard
from jobpipe.net.retry import RETRYABLE, Deadline, backoff
from jobpipe.operations.flow_operations import MAX_PARTS
from jobpipe.operations.range_messages import News
from jobpipe.store.log.flow_cursors import Cursor

log = logging.getLogger(__name__)

ACK_SECONDS = 1.0  # between two acknowledgements
HURRY_SECONDS = 0.02  # the same while the source's publisher waits, or the source has ended
STOP_SECONDS = 10.0  # for tasks to publish what their function has returned
CANCEL_SECONDS = 5.0  # for tasks that were cancelled
CANCEL_EVERY_SECONDS = 0.5
LONG_SECONDS = 60.0  # that a task runs, after which its lane begins with short pauses again
AT_ONCE_SECONDS = 1.0  # the same, when it is urgent
TRIES = 4  # failures of a partition at one place, within
TRIES_SECONDS = 3600.0
PAUSES = (1.0, 2.0, 4.0)  # after each of them but the last
CLAIM_SECONDS = 10.0
GRANT_SECONDS = 0.3
FINAL = (ConfigError, DataLoss, NameTaken, NotAuthorized, SchemaMismatch, TopicOwned, UnsupportedType)
"""What another attempt does not mend."""
PASSING = (LinkError, RegistryUnavailable, SpoolFull, TopicNotFound)
"""What ends without us: a flow waits for it as long as it takes."""


class Runner(Protocol):
    """Runs tasks: in threads of this process, or on a cluster."""

    @property
    def lanes(self) -> int:
        """How many tasks run at once."""

    @property
    def in_threads(self) -> bool:
        """Whether tasks are threads of this process: there may be more of them, and none is ended from outside."""

    def run(self, order: TaskOrder, number: int, stopped: Callable[[], bool]) -> TaskEnd:
        """Run a task to its end."""

    def cancel(self) -> None:
        """End all tasks that do not end by themselves, if that is possible."""


def lanes_for(topic: str, partitions: int, runner: Runner) -> int:
    """Return how many tasks there are.

    Raises:
        ConfigError: there would have to be more than there are cores.
    """
    least = -(-partitions // MAX_PARTS)
    if least > runner.lanes and not runner.in_threads:
        raise ConfigError(
            f"topic {topic!r} has {partitions} partitions. A task of a flow takes {MAX_PARTS} at most, and the session "
            f"has cores for {runner.lanes} tasks: give it {least + 1} cores",
            topic=topic,
        )
    return max(1, least, min(partitions, runner.lanes))


@dataclass
class _Failures:
    """Of one lane."""

    times: list[float] = field(default_factory=list)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    claims: dict[int, int] = field(default_factory=dict)

    def has_claimed(self, concerned: Sequence[Cursor]) -> bool:
        """Whether a task has claimed these since this was asked last; at first it is taken to have."""
        before, self.claims = self.claims, {each.partition: each.claim for each in concerned}
        return self.claims != before

    def add(self, concerned: Sequence[Cursor], now: float) -> int:
        """Note a failure; return how many there were at one place lately."""
        places = {each.partition: each.position.place for each in concerned}
        before = self.times if places == self.places else []
        self.times = [*(at for at in before if now - at < TRIES_SECONDS), now]
        self.places = places
        return len(self.times)


class Flow:
    """A flow job that runs; made by :func:`jobpipe.flow`.

    Give it to :func:`jobpipe.run`, use it as a context manager, or call :meth:`stop`.

    Attributes:
        name: of the flow.
        cut_short: it has ended without waiting for a call of the function, or for room for what a call returned: the
            next start gives the function those batches again.
    """

    def __init__(self, options: FlowOptions, runner: Runner) -> None:
        self.name = options.name
        self.cut_short = False
        self._options = options
        self._runner = runner
        self._owner = ForkGuard(f"flow {self.name!r}")
        self._stopping = threading.Event()
        self._at_once = threading.Event()
        self._hurry = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.RLock()  # of what follows; a signal's handler may ask while we have it
        self._state = FlowState.RUNNING
        self._error: JobpipeError | None = None
        self._errors: dict[int, tuple[tuple[int, int], str]] = {}  # by partition: where it failed last, and why
        self._ends = FlowEndpoints(options, self._heard)
        self._give_up = 0.0  # when nothing is asked any more of a flow that is to end
        self._lanes: list[threading.Thread] = []
        self._supervisor = threading.Thread(target=self._supervise, name=f"flow-{self.name}", daemon=True)
        try:
            self._add_lanes()
        except ConfigError:
            self._ends.close(final=False)
            raise
        self._supervisor.start()

    def __enter__(self) -> Flow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- for users -----------------------------------------------------------------------------------------------------

    def await_end(self, timeout: float | None = None) -> None:
        """Wait until the source has ended and all of it is done; what is published has ended then too.

        Raises:
            WaitTimeout: ``timeout`` seconds passed; the flow goes on.
            FlowFailed: the function failed four times at one place; or the error that ended the flow.
            LocalProtocolError: the flow's own function waits for it, as for :meth:`join`.
            ForkedProcess: this is a fork of the process that runs it, as for :meth:`join` and :meth:`status`.
        """
        if not self.join(timeout):
            raise WaitTimeout(f"flow {self.name!r}: not at the end of {self._options.subscribe!r} within {timeout:g} s")
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the flow; what the function has returned is published, the rest is read at the next start. Idempotent.

        Called by the flow's own function it does not wait. Nothing is done in a fork of the process that runs it, here
        and by :meth:`begin_stop`.
        """
        if not self._owner.is_here:
            return
        self.begin_stop()
        if not self._is_own_thread:
            self.join(STOP_SECONDS + CANCEL_SECONDS + 15.0)

    @property
    def _is_own_thread(self) -> bool:
        return threading.current_thread() in (*self._lanes, self._supervisor)

    def begin_stop(self, *, at_once: bool = False) -> None:
        """End the flow as :meth:`stop` does, but do not wait; ``at_once``, and do not let calls of the function end."""
        if not self._owner.is_here:
            return
        self._end(FlowState.STOPPED, None)
        if at_once:
            self._give_up = min(self._give_up, time.monotonic() + AT_ONCE_SECONDS)
            self._at_once.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the flow has ended, failed or was stopped, and nothing of it runs; return whether that is so."""
        self._owner.require()
        if self._is_own_thread:
            raise LocalProtocolError(f"the function of flow {self.name!r} cannot wait for the end of its flow")
        return self._ended.wait(timeout)

    def exception(self) -> JobpipeError | None:
        """Return what ended the flow; None while anything of it runs, and where it was stopped or has ended."""
        return self._error if self._ended.is_set() else None

    def status(self) -> FlowStatus:
        """Return how the flow stands, as of the last second."""
        self._owner.require()
        news = self._ends.follower.news
        with self._lock:
            head = 0 if news is None else news.head.n
            lines = []
            for each in self._ends.cursors:
                place, error = self._errors.get(each.partition, ((-1, -1), ""))
                lines.append(
                    PartitionStatus(
                        each.partition,
                        each.position.n,
                        max(0, head - each.position.n),
                        each.claim,
                        error if place == each.position.place else None,
                    )
                )
            error_text = None if self._error is None else self._error.message
            options, state = self._options, self._state
            if state is not FlowState.RUNNING and not self._ended.is_set():
                state = FlowState.ENDING
            return FlowStatus(self.name, state, options.subscribe, options.publish, tuple(lines), error_text)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _add_lanes(self) -> None:
        """Begin as many tasks as the source's partitions need.

        Raises:
            ConfigError: there are not enough cores.
        """
        with self._lock:
            lanes = lanes_for(self._options.subscribe, self._ends.partitions, self._runner)
            for number in range(len(self._lanes), lanes):
                if self._stopping.is_set():
                    return
                name = f"flow-{self.name}-{number}"
                lane = threading.Thread(target=self._run_lane, args=(number,), name=name, daemon=True)
                lane.start()
                self._lanes.append(lane)

    def _run_lane(self, number: int) -> None:
        try:
            self._run_tasks(number)
        except BaseException as error:
            log.exception("flow %s, task %d", self.name, number)
            self._end(FlowState.FAILED, JobpipeError(f"flow {self.name!r}, task {number}: {error!r}"))

    def _run_tasks(self, number: int) -> None:
        failures, delays = _Failures(), backoff()
        lane: Sequence[int] = (number,)
        while not self._stopping.is_set():
            partitions, began = self._ends.partitions, time.monotonic()
            try:
                self._add_lanes()
                lane = range(number, partitions, lanes_for(self._options.subscribe, partitions, self._runner))
                order = self._ends.order(tuple(lane), partitions)
                end = self._runner.run(order, number, self._stopping.is_set)
            except JobpipeError as error:
                end = TaskEnd(error=error)
            except Exception as error:
                log.exception("flow %s, task %d", self.name, number)
                end = TaskEnd(error=JobpipeError(f"flow {self.name!r}, task {number}: {error!r}"))
            if self._stopping.is_set():
                return
            if time.monotonic() - began > LONG_SECONDS:
                delays = backoff()
            if isinstance(end.error, Fenced) and "grant" in end.error.fields:
                # The subscription has a new grant with each link of the driver. If another driver has it, we hear.
                log.info("flow %s: %s", self.name, end.error)
                self._stopping.wait(GRANT_SECONDS)
                continue
            if end.partitions is not None:
                if not self._ends.repartition(end.partitions):
                    self._stopping.wait(next(delays))
                continue
            if end.error is None:  # told to end by a coordinator, as after a stop that was not heard of
                self._stopping.wait(next(delays))
                continue
            count = self._failed(end, failures, lane)
            if self._ended.is_set() or self._stopping.wait(next(delays) if count == 0 else PAUSES[count - 1]):
                return

    def _failed(self, end: TaskEnd, failures: _Failures, lane: Sequence[int]) -> int:
        """Note why a task ended; return how often it has lately at its place, 0 if it is tried again without end."""
        error = end.error
        assert error is not None  # noqa: S101 - the caller looked
        try:
            cursors = self._ends.refresh()
        except (JobpipeError, TimeoutError):
            cursors = self._ends.cursors
        lane = lane if end.partition is None else (end.partition,)
        concerned = [each for each in cursors if each.partition in lane]
        has_begun = failures.has_claimed(concerned)
        with self._lock:
            for each in concerned:
                self._errors[each.partition] = (each.position.place, error.message)
        if isinstance(error, FINAL):
            self._end(FlowState.FAILED, error)
            return 0
        if isinstance(error, PASSING) and not (end.is_lost and (self._has_rows(concerned) or not has_begun)):
            log.warning("flow %s: %s; trying again", self.name, error)
            return 0
        count = failures.add(concerned, time.monotonic())
        if count < TRIES:
            log.warning("flow %s: %s; trying again (%d of %d)", self.name, error, count, TRIES)
            return count
        self._end(FlowState.FAILED, error)
        return 0

    def _has_rows(self, cursors: Sequence[Cursor]) -> bool:
        """Whether there is something to read, which may be what ends tasks: where there is not, it is not the rows."""
        news = self._ends.newest()
        return news is None or any(each.position.n < news.head.n for each in cursors)

    # -- supervision ---------------------------------------------------------------------------------------------------

    def _heard(self, news: News | None) -> None:
        if news is not None and (news.waiting is not None or news.ended):
            self._hurry.set()

    def _supervise(self) -> None:
        with self._ends.while_active(self._may_ask):
            self._watch()
            self._finish()

    def _may_ask(self) -> bool:
        """A coordinator that hangs does not hold up the end."""
        return not self._stopping.is_set() or time.monotonic() < self._give_up

    def _watch(self) -> None:
        began, warned = time.monotonic(), False
        while not self._stopping.is_set():
            self._hurry.clear()
            news: News | None = None
            try:
                news = self._ends.follower.news
                self._ends.begin_again()
                cursors = self._ends.refresh()
                low = self._ends.acknowledge(cursors)
                if news is not None and news.ended and low.n >= news.head.n and low.log == news.head.log:
                    self._end(FlowState.ENDED, None)
                    break
                if not warned and time.monotonic() - began > CLAIM_SECONDS:
                    warned = True
                    self._warn_of_unclaimed(cursors)
            except FINAL as error:
                self._end(FlowState.FAILED, error)
                break
            except (*RETRYABLE, FlowNotFound, WaitTimeout, TimeoutError) as error:
                log.info("flow %s: %s", self.name, error)
                news = None
            except JobpipeError as error:
                self._end(FlowState.FAILED, error)
                break
            except Exception as error:
                log.exception("flow %s", self.name)
                self._end(FlowState.FAILED, JobpipeError(f"flow {self.name!r}: {error!r}"))
                break
            hurry = news is not None and (news.waiting is not None or news.ended)
            self._wait(HURRY_SECONDS if hurry else ACK_SECONDS)

    def _wait(self, seconds: float) -> None:
        if seconds <= HURRY_SECONDS:
            self._stopping.wait(seconds)
            return
        until = time.monotonic() + seconds
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            if self._hurry.wait(min(left, 0.1)):
                return

    def _warn_of_unclaimed(self, cursors: Sequence[Cursor]) -> None:
        idle = [each.partition for each in cursors if each.claim == 0]
        if idle:
            why = "setup is not done yet"
            if not self._runner.in_threads:
                why += ", or there are not enough cores: each task keeps one"
            log.warning(
                "flow %s: after %g s no task has begun with partitions %s of topic %s: %s",
                *(self.name, CLAIM_SECONDS, idle, self._options.subscribe, why),
            )

    # -- end -----------------------------------------------------------------------------------------------------------

    def _end(self, state: FlowState, error: JobpipeError | None) -> None:
        with self._lock:
            if self._state is not FlowState.RUNNING:
                return
            self._state, self._error = state, error
        if error is not None:
            log.error("flow %s failed: %s", self.name, error)
        self._give_up = time.monotonic() + STOP_SECONDS
        self._stopping.set()
        self._hurry.set()

    def _finish(self) -> None:
        """End the tasks, then what is published, then the subscription; in the supervisor's thread."""
        deadline = time.monotonic() + STOP_SECONDS
        try:
            while self._has_tasks() and time.monotonic() < deadline and not self._at_once.is_set():
                self._ends.halt()
                self._join_lanes(0.2)
                if self._has_no_room():
                    break  # what waits for room is not durable: the next start reads it again
            self.cut_short = self._has_tasks()
            cancelled = Deadline(AT_ONCE_SECONDS if self._at_once.is_set() else CANCEL_SECONDS)
            while self._has_tasks() and not self._runner.in_threads and not cancelled.passed:
                self._runner.cancel()  # each time: one may have been on its way to Spark when the others were cancelled
                self._join_lanes(cancelled.left(CANCEL_EVERY_SECONDS))
            if self._state is not FlowState.FAILED:
                self._acknowledge_last()
        finally:
            self._close()
            self._ended.set()

    def _join_lanes(self, seconds: float) -> None:
        until = Deadline(seconds)
        for lane in list(self._lanes):
            lane.join(until.left())

    def _has_tasks(self) -> bool:
        return any(lane.is_alive() for lane in self._lanes)

    def _has_no_room(self) -> bool:
        if not self._has_tasks():
            return False
        try:
            self._ends.refresh()
        except (JobpipeError, TimeoutError):
            return False
        return self._ends.full

    def _acknowledge_last(self) -> None:
        try:
            self._ends.acknowledge(self._ends.refresh())
        except (JobpipeError, TimeoutError) as error:
            log.info("flow %s: what it did last is acknowledged at its next start: %s", self.name, error)

    def _close(self) -> None:
        try:
            self._ends.close(final=self._state is FlowState.ENDED)
        except JobpipeError as error:
            log.warning("flow %s: %s", self.name, error)
            with self._lock:
                if self._state is FlowState.ENDED:
                    self._state, self._error = FlowState.FAILED, error
