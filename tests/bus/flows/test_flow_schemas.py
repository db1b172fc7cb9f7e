"""A source whose schema changes under a flow: what fits goes on, what does not ends the flow before it."""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import jobpipe
from jobpipe.config import Config
from jobpipe.errors import ConfigError, SchemaMismatch
from jobpipe.flows.flow_driver import Flow
from jobpipe.flows.flow_settings import FlowOptions, FlowState
from jobpipe.flows.task_threads import ThreadRunner
from jobpipe.flows.user_function import FlowContext
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.store.reading.boundary import Boundary
from tests.bus.kit import PATIENCE, until
from tests.docs.troubleshooting import on_page

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]

INT = pa.table({"id": pa.array([1, 2], pa.int32()), "text": ["a", "b"]})
LONG = pa.table({"id": pa.array([2**40], pa.int64()), "text": ["c"]})
WORD = pa.table({"id": ["one"], "text": ["d"]})
FEWER = pa.table({"id": pa.array([4], pa.int32())})
MORE = pa.table({"new": [1.5], "text": ["e"], "id": pa.array([5], pa.int32())})
ROWS = pa.schema([("offset", pa.int64()), ("rows", pa.string())])


def told(batch: pa.RecordBatch, context: FlowContext) -> pa.RecordBatch:
    """Publish, as text, what the function got."""
    return pa.record_batch([[context.offset], [str(batch.to_pylist())]], schema=ROWS)


class Line:
    """A source whose batches have any schema, and flows behind it, one at a time."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.source = Publisher("source", config=config)
        self.flow: Flow | None = None
        self._batch = 0

    def seal(self, *tables: pa.Table) -> None:
        """Publish the next batches."""
        for table in tables:
            self.source.seal("q", self._batch, [table])
            self._batch += 1

    def start(self, evolution: str = "compatible", publish: str | None = "target") -> Flow:
        """Start the flow, again from its earliest rows or where it was."""
        self.stop()
        options = FlowOptions(
            *(self.config, "source", "flow", Boundary.of("earliest", "s"), publish),
            schema=ROWS if publish else None,
            schema_evolution=evolution,
        )
        self.flow = Flow(options, ThreadRunner(told, None, 2))
        return self.flow

    def stop(self) -> None:
        """Stop the flow."""
        if self.flow is not None:
            self.flow.stop()

    def done(self, offset: int) -> None:
        """Wait until it has come so far."""
        flow = self.flow
        assert flow is not None
        until(lambda: flow.status().partitions[0].offset >= offset, PATIENCE, lambda: str(flow.status()))

    def ends(self) -> SchemaMismatch:
        """Wait until it has ended before what does not fit."""
        assert self.flow is not None
        with pytest.raises(SchemaMismatch) as caught:
            self.flow.await_end(PATIENCE)
        assert self.flow.status().state is FlowState.FAILED
        return caught.value

    def published(self) -> list[tuple[int, list[dict[str, Any]]]]:
        """Return what it published: offset, and the rows that its function got."""
        found = []
        with jobpipe.subscribe("target", name="reader", starting="earliest", config=self.config) as client:
            for batch in client.batches(timeout=1.0):
                found += [(row["offset"], ast.literal_eval(row["rows"])) for row in batch.to_pylist()]
        return found


@pytest.fixture
def line(config: Config) -> Iterator[Line]:
    """A source without a batch, and so without a schema."""
    made = Line(config)
    yield made
    made.stop()
    made.source.close()


FIRST = INT.to_pylist()


@pytest.mark.slow
def test_columns_come_and_go_under_a_running_flow(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    """Dropped ones are null, new ones left out, with a line in the log; numbers that narrow widen again."""
    line.seal(LONG, INT)
    line.start()
    line.done(2)
    with caplog.at_level(logging.WARNING):
        line.seal(FEWER, MORE, INT)
        line.done(5)
    fewer, more = {"id": 4, "text": None}, {"id": 5, "text": "e"}
    assert line.published() == [(0, LONG.to_pylist()), (1, FIRST), (2, [fewer]), (3, [more]), (4, FIRST)]
    (said,) = [each.getMessage() for each in caplog.records if "does not read" in each.getMessage()]
    on_page(said, "topic …: from offset … on there is a column that this flow")
    assert said.startswith("topic source: from offset 3 on there is a column that this flow does not read: new. ")


@pytest.mark.slow
def test_a_flow_started_again_learns_the_new_column(line: Line) -> None:
    """Rows of before that it has not done yet have null there."""
    line.seal(INT)
    line.start()
    line.done(1)
    line.stop()
    line.seal(INT, MORE)
    line.start()
    line.done(3)
    (_, _), (_, old), (_, new) = line.published()
    assert old == [{"new": None, "text": "a", "id": 1}, {"new": None, "text": "b", "id": 2}]
    assert new == MORE.to_pylist()


@pytest.mark.slow
def test_what_does_not_fit_ends_the_flow_before_it(line: Line) -> None:
    """All before is published and acknowledged; started again, it goes on there, in the new schema."""
    line.seal(INT, INT)
    line.start()
    line.done(2)
    line.seal(WORD, WORD)
    error = line.ends()
    on_page(error, "SchemaMismatch: topic '…', offset")
    assert error.fields["columns"] == ["id: published as string, asked for as int32"]
    assert error.message.startswith("topic 'source', offset 2: what is published does not fit the schema that the flow")
    (subscription,) = line.source.status()["subscriptions"]
    assert subscription["position"] == 2
    line.start()
    line.done(4)
    assert [rows for _, rows in line.published()] == [FIRST, FIRST, WORD.to_pylist(), WORD.to_pylist()]


@pytest.mark.slow
def test_a_backlog_of_schemas_that_do_not_fit_each_other(line: Line) -> None:
    """Each start does all up to the next one, although the newest schema is another: none has to be skipped."""
    line.seal(INT, WORD, LONG)
    line.start()
    assert line.ends().fields["offset"] == 1
    line.start()
    assert line.ends().fields["offset"] == 2
    line.start()
    line.done(3)
    assert [rows for _, rows in line.published()] == [FIRST, WORD.to_pylist(), LONG.to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "line_of_error"),
    [
        (MORE, "new: published as double, not asked for"),
        (FEWER, "text: asked for as string, not published"),
        (LONG, "id: published as int64, asked for as int32"),
    ],
    ids=["more", "fewer", "wider"],
)
def test_strict(line: Line, table: pa.Table, line_of_error: str) -> None:
    """Nothing may differ but the order of columns."""
    line.seal(INT)
    line.start("strict")
    line.seal(INT.select(["text", "id"]))
    line.done(2)
    line.seal(table)
    assert line.ends().fields["columns"] == [line_of_error]
    assert [rows for _, rows in line.published()] == [FIRST, FIRST]


@pytest.mark.slow
def test_a_source_without_a_schema_yet(line: Line) -> None:
    """It is learned with the first batch, and holds from then on; the same where nothing is published."""
    got: list[list[str]] = []
    line.start()
    line.seal(INT)
    line.done(1)
    line.seal(MORE)
    line.done(2)
    got += [list(rows[0]) for _, rows in line.published()]
    assert got == [["id", "text"], ["id", "text"]]


@pytest.mark.slow
def test_a_flow_that_publishes_nothing(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    """The same rules; its cursors lie with the source."""
    line.seal(INT)

    seen: list[pa.Schema] = []

    def function(batch: pa.RecordBatch, context: FlowContext) -> None:
        seen.append(batch.schema)

    options = FlowOptions(line.config, "source", "flow", Boundary.of("earliest", "s"))
    line.flow = Flow(options, ThreadRunner(function, None, 1))
    line.done(1)
    line.seal(FEWER, WORD)
    assert line.ends().fields["offset"] == 2
    assert [schema.names for schema in seen] == [["id", "text"]] * 2


def test_another_word_is_refused(configure: Callable[..., Config]) -> None:
    """By name, before anything is started."""
    with pytest.raises(ConfigError, match="schema_evolution='loose', expected one of compatible, strict"):
        jobpipe.flow(subscribe="x", name="y", function=told, schema_evolution="loose", config=configure())
