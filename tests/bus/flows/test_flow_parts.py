"""The parts of a flow job, with what they ask replaced: what is tried again and how often, room, and places."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.errors import (
    ConfigError,
    DataLoss,
    FlowFailed,
    JobpipeError,
    LinkBroken,
    LinkError,
    LocalProtocolError,
    SpoolError,
    SpoolFull,
    TopicNotFound,
)
from jobpipe.flows import flow_driver, flow_source, flow_task, part_committer
from jobpipe.flows.flow_driver import TRIES, Flow, lanes_for
from jobpipe.flows.flow_endpoints import FlowEndpoints
from jobpipe.flows.flow_settings import FlowState
from jobpipe.flows.flow_source import Item, SourceReader
from jobpipe.flows.flow_task import TaskEnd, TaskOrder, run_task
from jobpipe.flows.part_committer import PartCommitter
from jobpipe.flows.user_function import FlowContext, call, set_up
from jobpipe.operations.flow_operations import (
    AdmitPartRequest,
    BeginFlowRequest,
    ClaimRequest,
    FollowedPart,
    SealPartsRequest,
)
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.flow_cursors import Cursor, FlowKey
from tests.bus.kit import PATIENCE

LOG = "00112233445566aa"
KEY = FlowKey("flow", "source", LOG)
ROWS = pa.record_batch([[1]], names=["n"])


def at(n: int) -> Position:
    return Position(LOG, 1, n)


# -- the driver --------------------------------------------------------------------------------------------------------


class Ends:
    """Two ends whose cursors stand still."""

    def __init__(self, head: int = 5, partitions: int = 1, *, claims: bool = True) -> None:
        self.claims = claims
        self.partitions, self.full, self.cursors = partitions, False, [Cursor(0, 1, at(5))]
        stale, self._newest = (SimpleNamespace(ended=False, waiting=None, head=at(n)) for n in (0, head))
        self.follower = SimpleNamespace(news=stale)
        self.closed = False

    def while_active(self, _: Callable[[], bool]) -> Any:
        return threading.RLock()

    def order(self, *_: object) -> None:
        return None

    def refresh(self) -> list[Cursor]:
        if self.claims:
            self.cursors = [Cursor(0, self.cursors[0].claim + 1, at(5))]
        return self.cursors

    def acknowledge(self, cursors: list[Cursor]) -> Position:
        return cursors[0].position

    def newest(self) -> Any:
        return self._newest

    def begin_again(self) -> bool:
        return False

    def halt(self) -> None:
        return None

    def repartition(self, partitions: int) -> bool:
        self.partitions = partitions
        return True

    def close(self, *, final: bool) -> None:
        self.closed = True


class Runner:
    """Runs tasks that end as they are told; after the last one they wait."""

    lanes = 2
    in_threads = False

    def __init__(self, end: TaskEnd, times: int) -> None:
        self.end = end
        self.left = times
        self.done = threading.Event()

    def run(self, order: TaskOrder, number: int, stopped: Callable[[], bool]) -> TaskEnd:
        if self.left == 0:
            self.done.set()
            while not stopped():
                time.sleep(0.01)
            return TaskEnd()
        self.left -= 1
        return self.end

    def cancel(self) -> None:
        return None


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Flow, Runner]]]:
    """Start a flow without a bus."""
    flows: list[Flow] = []
    monkeypatch.setattr(flow_driver, "backoff", lambda: iter(lambda: 0.0, 1.0))
    monkeypatch.setattr(flow_driver, "PAUSES", (0.0,) * len(flow_driver.PAUSES))

    def start(end: TaskEnd, times: int, **ends: Any) -> tuple[Flow, Runner]:
        monkeypatch.setattr(flow_driver, "FlowEndpoints", lambda *_: Ends(**ends))
        runner = Runner(end, times)
        options: Any = SimpleNamespace(name="flow", subscribe="source", publish=None)
        flows.append(Flow(options, runner))
        return flows[-1], runner

    yield start
    for flow in flows:
        flow.stop()


@pytest.mark.parametrize(
    "error",
    [TopicNotFound("it is away"), LinkBroken("it is cut"), SpoolFull("no room")],
    ids=lambda e: type(e).__name__,
)
def test_what_passes_is_waited_for(start: Callable[..., Any], error: JobpipeError) -> None:
    """A source that is away every night ends no flow, nor does a reader that is."""
    flow, runner = start(TaskEnd(error=error), 3 * TRIES)
    assert runner.done.wait(PATIENCE)
    assert flow.status().state is FlowState.RUNNING
    assert flow.status().partitions[0].error == error.message


def test_why_a_flow_failed_is_logged(start: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """Also of one that is not asked."""
    flow, _ = start(TaskEnd(error=ConfigError("another one has it")), 1)
    with pytest.raises(ConfigError):
        flow.await_end(PATIENCE)
    assert "flow flow failed: another one has it" in caplog.text


def test_a_task_that_ends_with_anything_ends_the_flow(start: Callable[..., Any]) -> None:
    flow, runner = start(TaskEnd(), 0)
    assert runner.done.wait(PATIENCE)
    flow.stop()

    class Breaks(Runner):
        def run(self, *_: Any) -> TaskEnd:
            raise SystemExit(3)

    options: Any = SimpleNamespace(name="flow", subscribe="source", publish=None)
    broken = Flow(options, Breaks(TaskEnd(), 0))
    with pytest.raises(JobpipeError, match=r"task 0: SystemExit\(3\)"):
        broken.await_end(PATIENCE)


def test_its_own_function_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for itself; until all has ended, the flow is ending, and has not failed yet."""
    monkeypatch.setattr(flow_driver, "FlowEndpoints", lambda *_: Ends())
    flows, goes_on, seen = list[Flow](), threading.Event(), list[object]()

    class Calls(Runner):
        def run(self, *_: Any) -> TaskEnd:
            goes_on.wait(PATIENCE)
            flows[0].stop()
            with pytest.raises(LocalProtocolError, match="cannot wait for the end of its flow"):
                flows[0].await_end()
            seen.append(flows[0].status().state)
            return TaskEnd()

    options: Any = SimpleNamespace(name="flow", subscribe="source", publish=None)
    flows.append(Flow(options, Calls(TaskEnd(), 0)))
    goes_on.set()
    assert flows[0].join(PATIENCE)
    assert (seen, flows[0].status().state) == ([FlowState.ENDING], FlowState.STOPPED)


def test_the_status_is_asked_for_while_it_is_told(start: Callable[..., Any]) -> None:
    """A signal's handler stops a flow whose status its thread is just asking for."""
    flow, _ = start(TaskEnd(), 0)
    with flow._lock:
        flow.begin_stop()
    assert flow.join(PATIENCE)


def test_further_partitions_have_further_tasks(start: Callable[..., Any]) -> None:
    flow, runner = start(TaskEnd(partitions=3), 1)
    assert runner.done.wait(PATIENCE)
    assert [lane.name for lane in flow._lanes] == ["flow-flow-0", "flow-flow-1"]


@pytest.mark.parametrize(
    "end",
    [TaskEnd(error=FlowFailed("a bug")), TaskEnd(error=LinkError("killed"), is_lost=True)],
    ids=["function", "process"],
)
def test_a_row_that_fails_ends_the_flow(start: Callable[..., Any], end: TaskEnd) -> None:
    """Whether the function raises or ends its process."""
    flow, runner = start(end, 100, head=6)
    with pytest.raises(JobpipeError) as caught:
        flow.await_end(PATIENCE)
    assert (caught.value, runner.left) == (end.error, 100 - TRIES)


def test_an_executor_that_is_lost_is_no_failure_of_a_row(start: Callable[..., Any]) -> None:
    """There is nothing to read, so it was not the function."""
    flow, runner = start(TaskEnd(error=LinkError("lost"), is_lost=True), 3 * TRIES, head=5)
    assert runner.done.wait(PATIENCE)
    assert flow.status().state is FlowState.RUNNING


def test_a_task_that_never_begins_is_a_failure(start: Callable[..., Any]) -> None:
    """Its function cannot be unpickled there, for instance: that needs no row."""
    end = TaskEnd(error=LinkError("no module named shop"), is_lost=True)
    flow, runner = start(end, 100, head=5, claims=False)
    with pytest.raises(LinkError, match="shop"):
        flow.await_end(PATIENCE)
    assert runner.left == 100 - TRIES - 1


def test_failures_are_counted_for_an_hour() -> None:
    """At one place; those of last week say nothing of today."""
    failures = flow_driver._Failures()
    here, there = [Cursor(0, 1, at(5))], [Cursor(0, 1, at(6))]
    assert [failures.add(here, now) for now in (0.0, 10.0, 20.0)] == [1, 2, 3]
    assert failures.add(here, 3615.0) == 2
    assert failures.add(here, 90_000.0) == 1
    assert failures.add(there, 90_001.0) == 1


def test_many_partitions() -> None:
    """A task takes 128 at most: there are as many threads as that takes, and on a cluster as many cores."""
    runner = Runner(TaskEnd(), 0)
    runner.lanes = 3
    assert [lanes_for("t", partitions, runner) for partitions in (1, 3, 4, 384)] == [1, 3, 3, 3]
    with pytest.raises(ConfigError, match=r"topic 't' has 385 partitions.* cores for 3 tasks: give it 5 cores"):
        lanes_for("t", 385, runner)
    runner.in_threads = True
    assert lanes_for("t", 385, runner) == 4


def test_too_many_partitions_close_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(partitions=257)
    monkeypatch.setattr(flow_driver, "FlowEndpoints", lambda *_: ends)
    options: Any = SimpleNamespace(name="flow", subscribe="source", publish=None)
    with pytest.raises(ConfigError, match="257 partitions"):
        Flow(options, Runner(TaskEnd(), 0))
    assert ends.closed


# -- the two ends ------------------------------------------------------------------------------------------------------


class Coordinators:
    """Stands for the publisher of a flow's topic: catalogs, one after another."""

    parallelism = 1

    def __init__(self) -> None:
        self.coordinator = SimpleNamespace(instance="first")
        self.cursors: dict[int, Position] = {}
        self.fails = False

    def lose(self, instance: str) -> None:
        """Start another coordinator, with an empty catalog."""
        self.coordinator = SimpleNamespace(instance=instance)
        self.cursors = {}

    def ask(self, request: Any) -> Any:
        if isinstance(request, BeginFlowRequest):
            if self.fails:
                raise LinkBroken("cut")
            for partition in range(request.partitions):
                self.cursors.setdefault(partition, request.start)
        found = [
            SimpleNamespace(partition=key, claim=1, position=here, rows=None) for key, here in self.cursors.items()
        ]
        return SimpleNamespace(cursors=found, full=False)


@pytest.fixture
def ends() -> FlowEndpoints:
    """Ends that have begun at 0."""
    made = FlowEndpoints.__new__(FlowEndpoints)
    config = SimpleNamespace(read_timeout=1.0)
    options: Any = SimpleNamespace(
        name="flow", subscribe="source", schema=pa.schema([("n", pa.int64())]), config=config
    )
    made._options, made._token, made._lock = options, "ab" * 32, threading.Lock()
    made.key, made._start, made._begun_at = KEY, at(0), ""
    made.partitions, made.cursors, made.full = 1, [], False
    made.publisher = Coordinators()  # type: ignore[assignment]
    made.follower = SimpleNamespace(call=lambda *_, **__: None)  # type: ignore[assignment]
    made.begin(1)
    return made


@pytest.mark.parametrize("first", ["refresh", "begin_again"])
def test_cursors_that_are_lost_are_made_where_the_subscription_stands(ends: FlowEndpoints, first: str) -> None:
    """Not where the flow was started; and it is no reset."""
    topic: Any = ends.publisher
    for n in (500, 1000):
        topic.cursors[0] = at(n)
        ends.acknowledge(ends.refresh())
    topic.lose("second")
    getattr(ends, first)()
    assert [each.position.n for each in ends.refresh()] == [1000]


def test_a_source_that_was_restored_is_told_first_where_the_flow_stands(ends: FlowEndpoints) -> None:
    """Where nothing is published: it gives a subscription that stands nowhere no cursors."""
    asked: list[str] = []

    def call(make: Callable[[int], Any], **_: Any) -> Any:
        request = make(7)
        asked.append(f"{type(request).__name__} {getattr(request, 'position', getattr(request, 'start', None)).n}")
        return SimpleNamespace(cursors=[SimpleNamespace(partition=0, claim=0, position=at(9), rows=0)], full=False)

    ends.publisher, ends.cursors = None, [Cursor(0, 3, at(9))]
    ends.follower = SimpleNamespace(call=call, location=SimpleNamespace(instance="second"))  # type: ignore[assignment]
    assert ends.begin_again()
    assert asked == ["AckRequest 9", "BeginFlowRequest 9"]
    assert not ends.begin_again()


def test_cursors_that_were_deleted_end_the_flow(ends: FlowEndpoints) -> None:
    topic: Any = ends.publisher
    topic.cursors.clear()
    with pytest.raises(FlowFailed, match="was reset while it ran"):
        ends.refresh()


def test_further_partitions_are_there_when_they_have_cursors(ends: FlowEndpoints) -> None:
    """No task is told of them before: it would find none."""
    topic: Any = ends.publisher
    topic.cursors[0] = at(7)
    topic.fails = True
    assert not ends.repartition(3)
    assert ends.partitions == 1
    topic.fails = False
    assert ends.repartition(3)
    assert (ends.partitions, [each.position.n for each in ends.cursors]) == (3, [7, 7, 7])


# -- the function ------------------------------------------------------------------------------------------------------

CONTEXT = FlowContext("source", LOG, 3, 0, 0, 0, datetime.now(UTC), "p")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit(), SystemExit(2), KeyError("amount")])
def test_whatever_it_raises(error: BaseException) -> None:
    """Is told with its place."""

    def function(batch: pa.RecordBatch, context: FlowContext) -> None:
        raise error

    said = rf"offset 3, partition 0, row 0: {type(error).__name__}: .*\({re.escape(__file__)}, line \d+, in function\)"
    with pytest.raises(FlowFailed, match=said):
        call(function, ROWS, CONTEXT, ROWS.schema)
    with pytest.raises(FlowFailed, match=rf"setup failed: {type(error).__name__}"):
        set_up(lambda: function(ROWS, CONTEXT))


async def coroutine() -> None:
    """Return nothing, later."""


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda: {"a": 1}, "dict of str"),
        (lambda: "text", "str of str"),
        (lambda: 7, "int"),
        (lambda: [ROWS, None], "list of NoneType"),
        (coroutine, "coroutine"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_what_it_returns_is_named(made: Callable[[], Any], what: str) -> None:
    with pytest.raises(FlowFailed, match=f"TypeError: it returned {what}; expected record batches, a table, or None"):
        call(lambda *_: made(), ROWS, CONTEXT, ROWS.schema)


# -- tasks -------------------------------------------------------------------------------------------------------------


class Link:
    """Stands for a task's link: what fails, and whether there is room, is said by the test."""

    def __init__(self, fails: JobpipeError | None = None, room: Iterable[bool] = ()) -> None:
        self.asked: list[str] = []
        self.fails = fails
        self.room = iter(room)

    def ask(self, request: Any, *, timeout: float) -> Any:
        self.asked.append(type(request).__name__)
        if isinstance(request, ClaimRequest):
            return SimpleNamespace(cursors=[SimpleNamespace(partition=0, claim=1, position=at(0))])
        if isinstance(request, AdmitPartRequest):
            has_room = next(self.room)
            return SimpleNamespace(admitted=object() if has_room else None, full=None if has_room else "it is full")
        assert isinstance(request, SealPartsRequest)
        if self.fails is not None:
            raise self.fails
        parts = [SimpleNamespace(position=part.to, code="", message="", again=False) for part in request.parts]
        return SimpleNamespace(parts=parts, room=next(self.room))

    def close(self) -> None:
        return None


def test_a_task_ends_if_its_last_batch_cannot_be_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for a batch that does not come, and the source, perhaps, for this one."""
    link = Link(SpoolError("disk I/O error"))
    fetched: Any = SimpleNamespace(
        batch=ROWS, header=SimpleNamespace(n=0, partition=0, sealed_ms=0, publisher="p"), row=0
    )

    def items(_: SourceReader, places: dict[int, Position], stopped: Callable[[], bool]) -> Iterator[Item]:
        yield Item(0, at(1), fetched)
        while not stopped():
            time.sleep(0.01)

    monkeypatch.setattr(flow_task, "ControlLink", lambda *_, **__: link)
    monkeypatch.setattr(SourceReader, "items", items)
    order = TaskOrder(config=None, key=KEY, grant=1, lane=(0,), partitions=1, publishes=None, schema=ROWS.schema)  # type: ignore[arg-type]
    late = time.monotonic() + PATIENCE
    end = run_task(order, lambda *_: None, None, lambda: time.monotonic() > late)
    assert end.error is link.fails


Sealing = Callable[..., tuple[PartCommitter, Link]]


@pytest.fixture
def sealing(monkeypatch: pytest.MonkeyPatch) -> Sealing:
    """Return what makes a sealer with a link that says whether there is room, in turn."""
    monkeypatch.setattr(part_committer, "ROOM_SECONDS", 0.01)
    segment = SimpleNamespace(data=b"rows")
    target = SimpleNamespace(topic="target", partitions=1, write=lambda *_, **__: [segment], write_id="w" * 32)
    monkeypatch.setattr(part_committer, "replace", lambda *_, **__: target)
    publishes: Any = SimpleNamespace(target=target, schema=ROWS.schema, token="", room_timeout=0.0, part_bytes=1 << 20)

    def make(room: Iterable[bool], *, stopped: bool = False) -> tuple[PartCommitter, Link]:
        link = Link(room=room)
        made = PartCommitter(link, KEY, 1, publishes, lambda: stopped)  # type: ignore[arg-type]
        made.claim([0])
        link.asked.clear()
        return made, link

    return make


ADMIT, SEAL = "AdmitPartRequest", "SealPartsRequest"


@pytest.mark.parametrize(
    ("room", "rows", "asked"),
    [
        ([True, True, True], [1, 1], [ADMIT, SEAL, SEAL]),
        ([True, False, True, True], [1, 1], [ADMIT, SEAL, ADMIT, SEAL]),
        ([False, False, True, True, True], [1, 1], [ADMIT, ADMIT, ADMIT, SEAL, SEAL]),
        ([True, False, True, True, True], [1, 0, 1], [ADMIT, SEAL, SEAL, ADMIT, SEAL]),
    ],
    ids=["there is room", "no more", "none yet", "an answer about no rows says nothing of it"],
)
def test_room_is_asked_for_before_rows_are_sealed(
    sealing: Sealing, room: list[bool], rows: list[int], asked: list[str]
) -> None:
    """So a task that starts again and again adds nothing to a full topic, nor one that publishes now and then."""
    made, link = sealing(room)
    for n, count in enumerate(rows, 1):
        made.done(0, at(n), [ROWS] * count, 1)
        made.flush()
    made.close()
    assert link.asked == asked


def test_a_stop_waits_for_no_room(sealing: Sealing) -> None:
    made, link = sealing([False], stopped=True)
    made.done(0, at(1), [ROWS], 1)
    with pytest.raises(SpoolFull, match="topic 'target' has no room: it is full"):
        made.flush()
    made.close()
    assert link.asked == [ADMIT]


def test_batches_of_a_lost_host_server_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fail_on_data_loss=False, as a whole; else the error says so."""

    def fetched(n: int) -> Any:
        return SimpleNamespace(batch=ROWS, header=SimpleNamespace(n=n, before=1, partition=0), row=0)

    def fetch(wanted: Any, _: Any, *, skip: int) -> Iterator[Any]:
        for n in range(wanted.start.n, wanted.end.n):
            if n in (2, 4):
                raise DataLoss("host a is lost", reason="host lost", offset=n, epoch=1, partition=0)
            yield fetched(n)

    monkeypatch.setattr(flow_source, "fetch", fetch)
    part = FollowedPart(0, at(0), at(5), True, ())
    reader: Any = SourceReader(None, "source", "flow", 1, 1, skip_removed=True)  # type: ignore[arg-type]
    found = list(reader._read(part, "127.0.0.1:1"))
    assert [(item.fetched.header.n, item.to.n) for item in found] == [(0, 1), (1, 3), (3, 5)]
    strict: Any = SourceReader(None, "source", "flow", 1, 1)  # type: ignore[arg-type]
    with pytest.raises(DataLoss, match="host a is lost"):
        list(strict._read(part, "127.0.0.1:1"))
