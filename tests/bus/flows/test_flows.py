"""Flow jobs in plain processes: each row once and in order, the end passes through, failures are told and mended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.config import Config
from jobpipe.discovery.configured_tls import client_tls
from jobpipe.discovery.topic_lookup import locate
from jobpipe.errors import FlowFailed, JobpipeError, WaitTimeout
from jobpipe.flows.flow_settings import FlowState
from jobpipe.flows.task_threads import ThreadRunner
from jobpipe.flows.user_function import FlowContext
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.operations.admin_operations import DropRequest
from jobpipe.operations.flow_operations import ResetFlowRequest
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.store.reading.boundary import Boundary
from jobpipe.testing import Checker
from jobpipe.wire.wire_messages import Hello
from tests.bus.flows.flowkit import Chain, chain, same
from tests.bus.kit import PATIENCE, until

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the calls of a function that fails."""
    monkeypatch.setattr("jobpipe.flows.flow_driver.PAUSES", (0.05, 0.1, 0.2))


@pytest.fixture
def line(configure: Callable[..., Config]) -> Iterator[Chain]:
    """A source of two partitions."""
    with chain(configure()) as made:
        yield made


@pytest.mark.slow
def test_each_row_once_and_the_end_passes_through(line: Chain) -> None:
    """Published, passed on, read; the flow has ended, and what it publishes too."""
    flow, checker = line.flow(), line.reader()
    line.publish(30)
    line.arrived(checker)
    with pytest.raises(WaitTimeout):
        flow.await_end(0.05)
    line.end(checker)
    status = flow.status()
    assert (status.state, status.error, flow.exception()) == (FlowState.ENDED, None, None)
    assert [(each.partition, each.lag, each.claim, each.error) for each in status.partitions] == [
        (0, 0, 1, None),
        (1, 0, 1, None),
    ]


@pytest.mark.slow
def test_two_flows_in_a_chain(line: Chain) -> None:
    """The end of the first one's target ends the second."""
    line.flow(publish="middle", name="first")
    checker = line.reader()
    line.publish(5)
    second = line.flow(source="middle", name="second")
    line.publish(20)
    line.end(checker)
    assert second.status().state is FlowState.ENDED


@pytest.mark.slow
def test_goes_on_after_a_stop(line: Chain) -> None:
    """Each time where it stopped; an idle one stops within a second."""
    checker = line.reader()
    for _ in range(3):
        flow = line.flow()
        line.publish(7)
        line.arrived(checker)
        began = time.monotonic()
        flow.stop()
        assert time.monotonic() - began < 1.0
        flow.stop()
        assert (flow.status().state, flow.exception()) == (FlowState.STOPPED, None)
        flow.await_end(1.0)
        line.publish(3)
    line.flow()
    line.end(checker)


@pytest.mark.slow
def test_fails_once(line: Chain) -> None:
    """The record batch is given again."""
    failed: list[FlowContext] = []

    def function(batch: pa.RecordBatch, context: FlowContext) -> pa.RecordBatch:
        if context.offset == 3 and not failed:
            failed.append(context)
            raise ValueError("once")
        return batch

    line.flow(function)
    checker = line.reader()
    line.publish(8)
    line.end(checker)
    assert len(failed) == 1


@pytest.mark.slow
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)], ids=["error", "exit"])
def test_fails_at_one_place(line: Chain, error: BaseException) -> None:
    """Four times: the flow fails, names the place, and has published what lies before; mended, it goes on there."""
    calls: list[int] = []

    def function(batch: pa.RecordBatch, context: FlowContext) -> pa.RecordBatch:
        if (context.offset, context.partition) == (3, 1):
            calls.append(context.row)
            raise error
        return batch

    flow, checker = line.flow(function), line.reader()
    line.publish(6)
    with pytest.raises(FlowFailed, match=r"topic 'source', offset 3, partition 1, rows 0 to 19: ") as caught:
        flow.await_end(PATIENCE)
    assert caught.value.fields["offset"] == 3
    assert len(calls) == 4
    status = flow.status()
    assert (status.state, flow.exception()) == (FlowState.FAILED, caught.value)
    assert status.partitions[1].offset == 3
    assert "offset 3, partition 1" in str(status.partitions[1].error)
    line.arrived(checker, 3 * 40)
    line.flow()
    line.end(checker)


@pytest.mark.slow
def test_setup_that_fails(line: Chain) -> None:
    """Told as such; the setup of a later start is called once in each task."""
    made: list[int] = []

    def setup() -> int:
        made.append(1)
        return 7

    def broken() -> int:
        raise OSError("no model")

    line.publish(1)
    with pytest.raises(FlowFailed, match=r"setup failed: OSError: no model"):
        line.flow(setup=broken).await_end(PATIENCE)
    seen: set[Any] = set()

    def function(batch: pa.RecordBatch, context: FlowContext) -> pa.RecordBatch:
        seen.add(context.setup)
        return batch

    line.flow(function, setup=setup)
    line.end(line.reader())
    assert (seen, len(made)) == ({7}, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (lambda batch: 7, "TypeError"),
        (lambda batch: ["x"], "it returned list of str"),
        (lambda batch: batch.select(["number"]), "columns .* are missing"),
        (lambda batch: batch.set_column(2, "payload", pa.array(["no"] * (batch.num_rows - 1) + [None])), "has nulls"),
    ],
    ids=["number", "strings", "columns", "nulls"],
)
def test_wrong_rows(line: Chain, returned: Callable[[pa.RecordBatch], Any], why: str) -> None:
    """What does not fit the schema is told as the function's failure."""
    flow = line.flow(lambda batch, context: returned(batch))
    line.publish(1)
    with pytest.raises(FlowFailed, match=why):
        flow.await_end(PATIENCE)


@pytest.mark.slow
def test_nothing_published(line: Chain) -> None:
    """The function's effects happen at least once; the context names the place."""
    places: list[tuple[str, int, int, int]] = []

    def function(batch: pa.RecordBatch, context: FlowContext) -> None:
        places.append((context.topic, context.offset, context.partition, context.index))

    flow = line.flow(function, publish=None)
    line.publish(4)
    until(lambda: len(places) == 8, PATIENCE, lambda: f"{places}")
    flow.stop()
    line.publish(2)
    line.flow(function, publish=None)
    line.source.close(final=True)
    line.flows[-1].await_end(PATIENCE)
    assert sorted(places) == [("source", n, partition, 0) for n in range(6) for partition in (0, 1)]


@pytest.mark.slow
def test_the_source_waits_for_the_flow(configure: Callable[..., Config]) -> None:
    """acks=all, the flow required: its writes return once the flow has published."""
    with chain(configure(), partitions=2) as line:
        line.source.close()
        line.source = line.publisher(acks="all", required_subscribers=["flow"])
        line.flow()
        checker = line.reader()
        began = time.monotonic()
        line.publish(10)
        assert time.monotonic() - began < 10.0
        line.arrived(checker)
        line.end(checker)


@pytest.mark.slow
def test_large_rows(configure: Callable[..., Config]) -> None:
    """Files instead of bytes in the catalog, on both sides."""
    with chain(configure(), partitions=2, rows=1500, payload=1000) as line:
        line.flow()
        checker = line.reader()
        line.publish(4)
        line.end(checker)


@pytest.mark.slow
def test_a_backlog(configure: Callable[..., Config]) -> None:
    """Many batches before the flow begins; they are taken together."""
    with chain(configure(), partitions=3, rows=5) as line:
        line.publish(300)
        checker = line.reader()
        began = time.monotonic()
        line.flow()
        line.arrived(checker)
        assert time.monotonic() - began < 15.0
        line.end(checker)


@pytest.mark.slow
def test_a_full_target(configure: Callable[..., Config]) -> None:
    """The flow waits for the slow reader; nothing is lost."""
    with chain(configure(), partitions=2, rows=300, payload=500) as line:
        small = configure({"spool.max_bytes": "600KB", "segment.max_bytes": "100KB", "retention.ack_grace": "0s"})
        line.flow(config=small)
        checker = line.reader(pause=0.05)
        line.publish(20)
        line.end(checker)


@pytest.mark.slow
def test_more_partitions_then_fewer(configure: Callable[..., Config]) -> None:
    """Each change is waited for; order within a partition stays; there are tasks for all of them."""
    with chain(configure(), partitions=4) as line:
        line.source.close()
        line.source = line.publisher(parallelism=1)
        flow, checker = line.flow(partitions=3), line.reader()
        for parallelism in (4, 2, 4):
            line.publish(4)
            line.source.close()
            line.source = line.publisher(parallelism=parallelism)
        line.publish(4)
        line.arrived(checker)
        assert len(flow.status().partitions) == 4
        assert len(flow._lanes) == 2
        line.end(checker)


@pytest.mark.slow
def test_reset_while_it_runs(line: Chain) -> None:
    """The flow ends and says why; the next one begins where the subscription stands, or where it is told."""
    flow, checker = line.flow(), line.reader()
    line.publish(3)
    line.arrived(checker)
    until(lambda: flow.status().partitions[0].lag == 0, PATIENCE, "it has done all")
    time.sleep(1.2)
    location = locate(line.config, "target", PATIENCE)
    hello = Hello(topic="target", role="admin", instance="test")
    with closing(BlockingLink.connect(location.control, hello, tls=client_tls(line.config))) as link:
        assert ask_blocking(link, ResetFlowRequest("flow"), timeout=10.0).topics == ("source",)
    line.publish(1)
    with pytest.raises(JobpipeError, match="reset"):
        flow.await_end(PATIENCE)
    line.flow(starting=Boundary("committed"))
    line.end(checker)


@pytest.mark.slow
def test_another_task_takes_the_partitions(line: Chain) -> None:
    """One hangs in its function and seals late: that is refused, and nothing is there twice."""
    hangs, goes_on = threading.Event(), threading.Event()

    def function(batch: pa.RecordBatch, context: FlowContext) -> pa.RecordBatch:
        if context.offset == 2:
            hangs.set()
            goes_on.wait(PATIENCE)
        return batch

    flow, checker = line.flow(function, lanes=1), line.reader()
    line.publish(5)
    assert hangs.wait(PATIENCE)
    other, stop = ThreadRunner(same, None), threading.Event()
    thread = threading.Thread(target=lambda: other.run(flow._ends.order((0, 1), 2), 0, stop.is_set))
    thread.start()
    line.arrived(checker)
    goes_on.set()
    line.publish(5)
    line.arrived(checker)
    line.source.close(final=True)
    flow.await_end(PATIENCE)
    stop.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    line.end(checker)


@pytest.mark.slow
def test_a_hanging_function_does_not_hold_the_stop(line: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left to itself after a while; what it returns later is refused, and given to the next start."""
    monkeypatch.setattr("jobpipe.flows.flow_driver.STOP_SECONDS", 0.5)
    monkeypatch.setattr("jobpipe.flows.flow_driver.CANCEL_SECONDS", 0.5)
    hangs, goes_on = threading.Event(), threading.Event()

    def function(batch: pa.RecordBatch, context: FlowContext) -> pa.RecordBatch:
        hangs.set()
        goes_on.wait(PATIENCE)
        return batch

    flow, checker = line.flow(function), line.reader()
    line.publish(3)
    assert hangs.wait(PATIENCE)
    began = time.monotonic()
    flow.stop()
    assert time.monotonic() - began < 5.0
    line.flow()
    line.arrived(checker)
    goes_on.set()
    line.end(checker)


@pytest.mark.slow
def test_functions_that_return_many_or_nothing(line: Chain) -> None:
    """Iterables, tables, None: the cursor moves on in any case."""
    kept: list[int] = []

    def function(batch: pa.RecordBatch, context: FlowContext) -> Any:
        if context.offset % 3 == 0:
            kept.append(batch.num_rows)
            return (batch.slice(at, 1) for at in range(batch.num_rows))
        return None if context.offset % 3 == 1 else pa.table(batch).slice(0, 0)

    flow = line.flow(function)
    checker: Checker = line.reader()
    line.publish(9)
    line.source.close(final=True)
    flow.await_end(PATIENCE)
    line.arrived(checker, sum(kept))
    assert not {"duplicated", "misordered", "damaged"} & checker.report().faults.keys()


@pytest.mark.slow
@pytest.mark.parametrize("publish", ["target", None], ids=["published", "nothing"])
def test_cursors_move_at_once_while_the_source_waits(
    configure: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, publish: str | None
) -> None:
    """acks=all, and a function that returns nothing: no write waits for the time at which idle cursors move."""
    monkeypatch.setattr("jobpipe.flows.part_committer.EMPTY_SECONDS", 60.0)
    with chain(configure(), partitions=2) as line:
        line.source.close()
        line.source = line.publisher(acks="all", required_subscribers=["flow"])
        line.flow(lambda batch, context: None, publish=publish)
        began = time.monotonic()
        line.publish(10)
        assert time.monotonic() - began < 30.0


@pytest.mark.slow
def test_a_stop_does_not_wait_for_room(configure: Callable[..., Config]) -> None:
    """What the function returned and has no room is read again by the next start."""
    with chain(configure(), partitions=2, rows=300, payload=500) as line:
        small = configure({"spool.max_bytes": "600KB", "segment.max_bytes": "100KB", "retention.ack_grace": "0s"})
        goes_on = threading.Event()
        flow = line.flow(config=small)
        checker = line.reader(wait=goes_on)
        line.publish(20)
        until(lambda: flow._ends.refresh() and flow._ends.full, PATIENCE, lambda: f"it is full; {line.said()}")
        began = time.monotonic()
        flow.stop()
        assert time.monotonic() - began < 3.0  # a second on a quiet machine
        assert flow.status().state is FlowState.STOPPED
        goes_on.set()
        line.flow(config=small)
        line.end(checker)


@pytest.mark.slow
@pytest.mark.parametrize("publish", ["target", None], ids=["published", "nothing"])
def test_a_dropped_subscription_stands_where_the_cursors_are(line: Chain, publish: str | None) -> None:
    """The flow's place is where its cursors are, whatever ``starting`` says; so nothing beyond is taken for done."""
    places, goes_on = list[int](), threading.Event()

    def function(batch: pa.RecordBatch, context: FlowContext) -> pa.RecordBatch | None:
        if context.offset == 3:
            goes_on.wait(PATIENCE)
        places.append(context.offset)
        return batch if publish else None

    flow = line.flow(function, publish=publish)
    line.publish(3)
    until(lambda: all(each.offset == 3 for each in flow.status().partitions), PATIENCE, lambda: str(line.said()))
    flow.stop()
    location = locate(line.config, "source", PATIENCE)
    hello = Hello(topic="source", role="admin", instance="test")
    with closing(BlockingLink.connect(location.control, hello, tls=client_tls(line.config))) as link:
        ask_blocking(link, DropRequest("flow", dry_run=False), timeout=10.0)
    line.publish(3)
    line.flow(function, publish=publish, starting=Boundary("latest"))
    (subscription,) = line.source._publisher.status()["subscriptions"]
    assert subscription["position"] == 3
    goes_on.set()
    line.publish(3)
    line.source.close(final=True)
    line.flows[-1].await_end(PATIENCE)
    assert sorted(places) == sorted([*range(9), *range(9)])
