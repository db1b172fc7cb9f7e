"""A topic whose schema changes under its readers: what fits goes on, what does not ends the query at the boundary."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from jobpipe.errors import ConfigError, SchemaMismatch, UnsupportedType
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.spark.schema.spark_arrow_schema import spark_schema
from jobpipe.spark.session.user_errors import RefusedStream
from jobpipe.spark.source.data_source import JobPipeDataSource
from jobpipe.spark.source.stream_reader import JobPipeStreamReader
from jobpipe.subscribing.subscriber_session import SubscriberSession
from tests.bus.kit import Bus
from tests.bus.query import Query
from tests.docs.troubleshooting import on_page

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]

INT = pa.table({"id": pa.array([1, 2], pa.int32()), "text": ["a", "b"]})
LONG = pa.table({"id": pa.array([2**40], pa.int64()), "text": ["c"]})
WORD = pa.table({"id": ["one"], "text": ["d"]})
FEWER = pa.table({"id": pa.array([4], pa.int32())})
MORE = pa.table({"new": [1.5], "text": ["e"], "id": pa.array([5], pa.int32())})


def columns(**kinds: pa.DataType | pa.Field) -> StructType:
    """What somebody gives to ``.schema(...)``."""
    fields = [kind.with_name(name) if isinstance(kind, pa.Field) else (name, kind) for name, kind in kinds.items()]
    return spark_schema("by hand", pa.schema(fields))


INT_TEXT = columns(id=pa.int32(), text=pa.string())
INT_ROWS = [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]


class Load(Query):
    """A query whose schema is learned, or given by hand; :meth:`again` is a restart with a new ``load()``."""

    def __init__(self, schema: StructType | None = None, **options: str) -> None:
        self._by_hand = schema
        super().__init__(**options)

    def _learn(self) -> StructType:
        return super()._learn() if self._by_hand is None else self._by_hand

    def again(self, schema: StructType | None = None, **options: str) -> None:
        """End, and start again from the checkpoint."""
        self.reader.stop()
        self._by_hand = schema
        self.schema = self._learn()
        self.sink.clear()  # a batch that comes again has the schema of today
        self.restart(**options)

    def drain(self) -> list[dict[str, Any]]:
        """Read all there is, and return it."""
        while True:
            linked = self._is_linked()  # else nothing new only means that its publisher was not found yet
            if not self.step() and linked:
                return self.all_rows

    def _is_linked(self) -> bool:
        topics = self.reader._topics
        return topics is not None and all(topics.session.is_connected(topic) for topic in topics.session.topics)

    @property
    def all_rows(self) -> list[dict[str, Any]]:
        """All rows since the last start."""
        found = [
            batch for _, topics in sorted(self.sink.items()) for topic in sorted(topics) for batch in topics[topic]
        ]
        return [row for batch in found for row in batch.to_pylist()]

    def ends(self) -> SchemaMismatch:
        """Read up to the boundary."""
        with pytest.raises(SchemaMismatch) as caught:
            self.drain()
        assert len(self.offsets) == self.committed  # nothing was planned that cannot be read
        return caught.value


@pytest.fixture
def load(bus: Bus, module_settings: dict[str, str]) -> Iterator[Callable[..., Load]]:
    """Return a maker of queries over the test's topic, from its beginning."""
    made: list[Load] = []

    def start(schema: StructType | None = None, **options: str) -> Load:
        which = {} if options.keys() & {"subscribePattern"} else {"subscribe": bus.topic}
        given = {**module_settings, **which, "name": "billing", "startingOffsets": "earliest", **options}
        made.append(Load(schema, **given))
        return made[-1]

    yield start
    for query in made:
        query.reader.stop()


def seal(publisher: Publisher, *tables: pa.Table, first: int = 0) -> None:
    """Seal tables as batches."""
    for number, table in enumerate(tables, first):
        publisher.seal("q", number, [table])


def acknowledged(publisher: Publisher) -> int:
    """Return the position of the one subscription."""
    (line,) = publisher.status()["subscriptions"]
    return int(line["position"])


def rows(*tables: pa.Table, **more: Any) -> list[dict[str, Any]]:
    """The rows of tables."""
    return [{**row, **more} for table in tables for row in table.to_pylist()]


@pytest.mark.slow
def test_columns_come_and_go_under_a_running_query(bus: Bus, load: Callable[..., Load]) -> None:
    """Case 60: dropped columns are null, new ones left out; each schema is asked for once, not for each batch."""
    publisher = bus.publisher()
    seal(publisher, INT, INT)
    query = load()
    asked: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        real = SubscriberSession.schema
        patch.setattr(
            SubscriberSession, "schema", lambda *given, **more: asked.append(given[1:]) or real(*given, **more)
        )
        query.step()
        publisher.close()
        publisher = bus.publisher()  # restarted, with another program
        seal(publisher, FEWER, MORE, FEWER, MORE, INT, first=2)
        found = query.drain()
    fewer, more = {"id": 4, "text": None}, {"id": 5, "text": "e"}
    assert found == [*INT_ROWS, *INT_ROWS, fewer, more, fewer, more, *INT_ROWS]
    assert len(asked) == len(set(asked)) + 1, asked  # the first again, by the publisher's new epoch


def test_an_added_column_is_told(bus: Bus, load: Callable[..., Load], caplog: pytest.LogCaptureFixture) -> None:
    """U11: a column that comes under a running query is left out, with one line, and in the query's progress."""
    publisher = bus.publisher()
    seal(publisher, INT)
    query = load()
    with caplog.at_level(logging.WARNING, "jobpipe.spark.source.schema_check"):
        query.drain()
        assert "left_out" not in query.reader.reportLatestOffset()[bus.topic]
        seal(publisher, MORE, MORE, first=1)
        query.drain()
        assert query.reader.reportLatestOffset()[bus.topic]["left_out"] == ["new"]
        seal(publisher, INT, MORE, first=3)
        query.drain()
    (record,) = caplog.records
    on_page(record.getMessage(), "topic …: from offset … on there is a column that this query")
    assert f"topic {bus.topic}: from offset 1 on there is a column that this query does not read: new" in (
        record.getMessage()
    )
    assert "started again, from a new load()" in record.getMessage()
    on_page(record.getMessage(), "topic …: from offset … on there is a column that this query")


@pytest.mark.slow
def test_numbers_widen_in_an_unread_backlog(bus: Bus, load: Callable[..., Load]) -> None:
    """Case 60: narrowing ends a running query before the first such batch; after a restart old and new are read."""
    publisher = bus.publisher()
    seal(publisher, INT)
    query = load()
    assert query.drain() == INT_ROWS
    seal(publisher, LONG, first=1)
    error = query.ends()
    assert (error.fields["topic"], error.fields["offset"]) == (bus.topic, 1)
    assert error.fields["columns"] == ["id: published as bigint, asked for as int"]
    assert acknowledged(publisher) == 1
    query.again()
    assert query.schema.simpleString() == "struct<id:bigint,text:string>"
    assert query.drain() == rows(LONG)
    query.reader.stop()
    seal(publisher, INT, FEWER, MORE, LONG, first=2)  # and now nobody is there
    query.again()
    assert query.drain() == rows(
        INT, FEWER.append_column("text", pa.array([None], pa.string())), MORE.select(["text", "id"]), LONG
    )
    late = load(name="late")
    assert late.drain() == rows(INT, LONG, INT) + rows(FEWER, text=None) + rows(MORE.select(["id", "text"]), LONG)


def test_an_incompatible_change_ends_the_query_at_the_boundary(bus: Bus, load: Callable[..., Load]) -> None:
    """Case 60: all before it delivered once and acknowledged; a new ``load()`` goes on where it stopped."""
    publisher = bus.publisher()
    seal(publisher, INT, INT, WORD)
    query = load(INT_TEXT)
    with pytest.raises(SchemaMismatch) as caught:
        query.drain()
    assert query.all_rows == rows(INT, INT)
    assert acknowledged(publisher) == 2
    assert str(caught.value).startswith(
        f"topic {bus.topic!r}, offset 2: what is published does not fit the schema that is read "
        "(schemaEvolution=compatible): id: published as string, asked for as int. Everything before it has been "
        "delivered. "
        "Leave .schema() out and start the query again"
    )
    assert query.ends().fields["offset"] == 2  # however often it is asked
    query.again()
    assert query.drain() == rows(WORD)
    query.step()
    assert acknowledged(publisher) == 3


def test_a_backlog_that_the_newest_schema_does_not_fit(bus: Bus, load: Callable[..., Load]) -> None:
    """Case 60: told with the way out: its own schema by hand up to the change, then none."""
    publisher = bus.publisher()
    seal(publisher, INT, WORD)
    query = load()
    error = query.ends()
    assert (error.fields["offset"], error.fields["columns"]) == (0, ["id: published as int, asked for as string"])
    assert "What was published later fits. Start the query with a .schema(...) that these batches fit" in str(error)
    query.again(INT_TEXT)
    assert query.ends().fields["offset"] == 1
    assert query.all_rows == INT_ROWS
    query.again()
    assert query.drain() == rows(WORD)


def test_a_planned_batch_that_does_not_fit_after_a_restart(bus: Bus, load: Callable[..., Load]) -> None:
    """Cases 3, 60: in Spark's log stands a batch that the schema of today does not fit; no task sees it."""
    publisher = bus.publisher()
    seal(publisher, INT)
    query = load()
    assert query.plan()
    seal(publisher, WORD, first=1)
    with pytest.raises(SchemaMismatch) as caught:
        query.again()
    assert caught.value.fields["offset"] == 0
    query.again(columns(id=pa.int64(), text=pa.string()))  # widened meanwhile, which is all the same to it
    assert query.all_rows == INT_ROWS


@pytest.mark.slow
def test_strict(bus: Bus, load: Callable[..., Load]) -> None:
    """Case 60: any difference ends the query; order and what may not be null are none."""
    publisher = bus.publisher()
    order = INT.select(["text", "id"])
    never = order.cast(pa.schema([pa.field("text", pa.string()), pa.field("id", pa.int32(), nullable=False)]))
    seal(publisher, INT, order, never, MORE, INT, FEWER, INT, LONG)
    query = load(INT_TEXT, schemaEvolution="strict")
    wanted = {3: ["new: published as double, not asked for"], 5: ["text: asked for as string, not published"]}
    wanted[7] = ["id: published as bigint, asked for as int"]
    for offset, lines in wanted.items():
        query.again(INT_TEXT, schemaEvolution="strict")
        error = query.ends()
        assert (error.fields["offset"], error.fields["columns"]) == (offset, lines)
        assert "schemaEvolution=strict" in str(error)
        query.again(columns(id=pa.int64(), text=pa.string()), schemaEvolution="compatible")
        assert query.step()


def test_a_schema_by_hand_is_checked_at_the_start(bus: Bus, load: Callable[..., Load]) -> None:
    """Before anything is there to be read; what may be null fits no column that may not."""
    publisher = bus.publisher()
    seal(publisher, INT)
    query = load(
        columns(id=pa.field("", pa.int32(), nullable=False), extra=pa.list_(pa.int32())), startingOffsets="latest"
    )
    error = query.ends()
    assert error.fields == {
        "topic": bus.topic,
        "offset": 1,
        "columns": ["id: published as int, asked for as int not null"],
    }
    query.again(columns(id=pa.float64(), extra=pa.list_(pa.int32())), startingOffsets="latest")
    assert query.drain() == []
    seal(publisher, INT, first=1)
    assert query.drain() == [{"id": 1.0, "extra": None}, {"id": 2.0, "extra": None}]


def test_a_stream_that_ends_before_the_change(bus: Bus, load: Callable[..., Load]) -> None:
    """What lies behind ``endingOffsets`` is nobody's business, when the query runs and when it is started again."""
    seal(bus.publisher(), INT, WORD)
    query = load(INT_TEXT, endingOffsets=f'{{"{bus.topic}": 1}}')
    for _ in range(2):
        assert query.drain() in (INT_ROWS, [])
        assert query.end[bus.topic]["n"] == 1
        query.again(INT_TEXT)


def test_metadata_by_hand(bus: Bus, load: Callable[..., Load]) -> None:
    """The metadata column has its types too; some of it may be asked for, and wider."""
    publisher = bus.publisher()
    seal(publisher, INT)
    some = pa.struct([("row", pa.decimal128(20, 0)), ("topic", pa.string())])
    query = load(columns(_jobpipe=some, id=pa.int64()), includeMetadata="true")
    assert query.drain() == [{"_jobpipe": {"row": n, "topic": bus.topic}, "id": n + 1} for n in range(2)]
    query.again(columns(_jobpipe=pa.struct([("row", pa.int32())])), includeMetadata="true")
    assert query.ends().fields["columns"] == ["_jobpipe.row: published as bigint, asked for as int"]
    seal(publisher, INT.append_column("_jobpipe", pa.array([1, 2])), first=1)
    with pytest.raises(SchemaMismatch, match="a column _jobpipe is published"):
        load(includeMetadata="true")
    published = load(name="plain")  # of the job before
    assert published.drain()[2:] == [{"id": 1, "text": "a", "_jobpipe": 1}, {"id": 2, "text": "b", "_jobpipe": 2}]


def test_a_type_that_spark_does_not_have(bus: Bus, load: Callable[..., Load]) -> None:
    """A publisher without Spark goes over to one: the query ends, and names the column."""
    publisher = bus.publisher()
    seal(publisher, INT)
    query = load()
    assert query.drain() == INT_ROWS
    seal(publisher, pa.table({"id": pa.array([1], pa.uint64())}), first=1)
    with pytest.raises(UnsupportedType, match=r"id \(uint64\)"):
        query.drain()
    assert acknowledged(publisher) == 1


def test_the_task_looks_once_more(bus: Bus, load: Callable[..., Load]) -> None:
    """A reader whose driver was not asked: refused by type, although every value would fit."""
    publisher = bus.publisher()
    seal(publisher, LONG.slice(0, 0), pa.table({"id": pa.array([1], pa.int64())}))
    query = load()
    assert query.plan()
    (partition,) = query.reader.partitions(query.reader.initialOffset(), query.end)
    options = SourceOptions.parse(query.options)
    for kind in (pa.int32(), pa.string()):
        with pytest.raises(SchemaMismatch, match=f"topic {bus.topic!r}, partition 0: .* id: published as bigint"):
            list(JobPipeStreamReader(options, columns(id=kind)).read(partition))


def test_topics_of_different_schemas(bus: Bus, load: Callable[..., Load]) -> None:
    """Refused; with ``mergeSchema`` their union is read; where there is none, column and topics are named."""
    first, second, third = (f"{bus.topic}-{letter}" for letter in "abc")
    for topic, table in ((first, INT), (second, MORE), (third, WORD)):
        seal(bus.publisher(topic=topic), table)
    both = f"{second},{first}"
    with pytest.raises(SchemaMismatch, match="mergeSchema=true") as caught:
        load(subscribe=both)
    assert caught.value.fields["columns"] == [f"new: double in {second!r}, not in {first!r}"]
    assert f"topics {first!r} and {second!r} have different schemas" in str(caught.value)
    query = load(subscribe=both, mergeSchema="true")
    assert query.schema.simpleString() == "struct<id:int,text:string,new:double>"
    assert query.drain() == [*rows(INT, new=None), {"id": 5, "text": "e", "new": 1.5}]
    for topics in ({"subscribe": f"{both},{third}"}, {"subscribePattern": f"{bus.topic}-[a-c]"}):
        with pytest.raises(SchemaMismatch) as caught:
            load(name="other", mergeSchema="true", **topics)
        assert caught.value.fields["columns"] == [f"id: int in {first!r}, string in {third!r}"]
        assert f"topics {first!r} and {third!r} have no common schema" in str(caught.value)


def test_topics_that_differ_in_what_may_be_null(bus: Bus, load: Callable[..., Load]) -> None:
    """They have one schema: what may be null in one may be null."""
    never = FEWER.cast(pa.schema([pa.field("id", pa.int32(), nullable=False)]))
    names = [f"{bus.topic}-{letter}" for letter in "ab"]
    for topic, table in zip(names, (never, FEWER), strict=True):
        seal(bus.publisher(topic=topic), table)
    query = load(subscribe=",".join(names), schemaEvolution="strict")
    assert [field.nullable for field in query.schema.fields] == [True]
    assert len(query.drain()) == 2


def test_columns_that_may_not_be_null_come_and_go(bus: Bus, load: Callable[..., Load]) -> None:
    """Case 60: a learned column may be null, since older and later batches may not have it; not so under ``strict``."""
    kinds = {"id": pa.int32(), "text": pa.string()}
    never = pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])
    publisher = bus.publisher()
    seal(publisher, FEWER, INT.cast(never))
    strict = load(name="strict", schemaEvolution="strict")
    assert not any(field.nullable for field in strict.schema.fields)
    assert strict.ends().fields["columns"] == [
        "id: published as int, asked for as int not null",
        "text: asked for as string not null, not published",
    ]
    query = load()
    assert query.drain() == [*rows(FEWER, text=None), *INT_ROWS]
    seal(publisher, FEWER, first=2)
    assert query.drain()[3:] == rows(FEWER, text=None)


@pytest.mark.slow
def test_one_topic_ends_the_query_of_several(bus: Bus, load: Callable[..., Load]) -> None:
    """Case 60: what the others delivered is acknowledged before the query ends."""
    names = [f"{bus.topic}-{letter}" for letter in "ab"]
    publishers = [bus.publisher(topic=topic) for topic in names]
    for publisher in publishers:
        seal(publisher, INT)
    query = load(subscribe=",".join(names))
    assert query.step()
    seal(publishers[0], WORD, first=1)
    assert query.ends().fields["topic"] == names[0]
    assert [acknowledged(publisher) for publisher in publishers] == [1, 1]


@pytest.mark.slow
def test_a_topic_that_a_pattern_finds_later(bus: Bus, load: Callable[..., Load]) -> None:
    """It is judged by ``schemaEvolution``, as a changed one is (of another schema: test_topics.py)."""
    names = [f"{bus.topic}-{letter}" for letter in "ab"]
    seal(bus.publisher(topic=names[0]), INT)
    query = load(subscribePattern=f"{bus.topic}-[ab]")
    assert query.step()
    seal(bus.publisher(topic=names[1]), MORE)
    query.until(lambda: query.rows(names[1]), "rows of the new topic")
    assert query.all_rows == [*INT_ROWS, {"id": 5, "text": "e"}]
    strict = load(subscribePattern=f"{bus.topic}-[ab]", schemaEvolution="strict", mergeSchema="true", name="strict")
    assert strict.ends().fields["columns"] == ["new: asked for as double, not published"]


def read(options: dict[str, str], schema: StructType | None = None) -> list[dict[str, Any]]:
    """Read once, as ``spark.read`` does."""
    source = JobPipeDataSource(options)
    reader = source.reader(source.schema() if schema is None else schema)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.slow
def test_a_batch_read(bus: Bus, module_settings: dict[str, str]) -> None:
    """All schemas of a range fit, or the read is refused before a task, with the offset."""
    publisher = bus.publisher()
    options = {**module_settings, "subscribe": bus.topic}
    seal(publisher, INT, FEWER, LONG)
    assert read(options) == rows(INT) + rows(FEWER, text=None) + rows(LONG)
    with pytest.raises(SchemaMismatch, match=r"Leave \.schema\(\) out: load\(\) learns the newest") as caught:
        read(options, INT_TEXT)
    assert (caught.value.fields["offset"], caught.value.fields["topic"]) == (2, bus.topic)
    with pytest.raises(SchemaMismatch, match="text: asked for as string, not published") as caught:
        read({**options, "schemaEvolution": "strict"}, INT_TEXT)
    assert caught.value.fields["offset"] == 1
    seal(publisher, WORD, first=3)
    with pytest.raises(SchemaMismatch, match="What was published later fits") as caught:
        read(options)
    assert caught.value.fields["offset"] == 0
    del options["subscribe"]
    with pytest.raises(SchemaMismatch, match=r"offset 3: .* id: published as string"):
        read({**options, "subscribePattern": bus.topic}, columns(id=pa.int64()))


@pytest.mark.slow
def test_a_missing_name_is_told_when_a_stream_starts(
    bus: Bus, module_settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """U6: load() cannot know whether it is for a stream, and says nothing: a batch read needs no name."""
    seal(bus.publisher(), INT)
    options = {**module_settings, "subscribe": bus.topic}
    SourceOptions.parse({**options, "name": "billing"}).need_name()
    with caplog.at_level(logging.WARNING, "jobpipe.spark.source.data_source"):
        assert JobPipeDataSource(options).schema() == INT_TEXT
    assert caplog.records == []
    stream = JobPipeDataSource(options).streamReader(JobPipeDataSource(options).schema())  # type: ignore[arg-type]
    assert isinstance(stream, RefusedStream)
    with pytest.raises(ConfigError) as caught:
        SourceOptions.parse(options).need_name()
    on_page(caught.value, "format('jobpipe'):")
