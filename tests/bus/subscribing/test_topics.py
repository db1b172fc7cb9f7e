"""Which topics a source reads: by pattern, found while it runs, and of a topic only some partitions."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.discovery.registry_handler import open_handler
from jobpipe.errors import ConfigError, JobpipeError, NameTaken, SchemaMismatch, TopicNotFound
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.spark.source.data_source import JobPipeDataSource
from jobpipe.testing import SCHEMA, Journal, NumberedRows
from jobpipe_registry.topic_records import RegisterRecord
from tests.bus.kit import Bus, publish, until
from tests.bus.query import Query, Topics

AT_ONCE = {"retention.time": "0s", "retention.bytes": "0", "retention.ack_grace": "0s"}
SOON = 20.0


class Patterned(Topics):
    """Topics of one pattern, and queries over all of them."""

    @property
    def pattern(self) -> str:
        """Matches all."""
        return f"{self.bus.topic}-[a-z]+"

    def open(self, letter: str, partitions: int = 2, changes: dict[str, str] | None = None) -> Publisher:
        """Open a topic as its publisher."""
        rows = NumberedRows(self.name(letter), partitions=partitions)
        self.rows.setdefault(letter, rows)
        self.journals.setdefault(letter, Journal())
        made = self.bus.publisher(changes, topic=self.name(letter), parallelism=partitions)
        self.publishers[letter] = made
        return made

    def seal(self, letter: str, *batch_ids: int, noted: bool = True) -> None:
        """Seal batches; those that nobody is to read are not noted."""
        if letter not in self.publishers:
            self.open(letter)
        publish(self.publishers[letter], self.rows[letter], self.journals[letter] if noted else Journal(), batch_ids)

    def options(self, letters: str = "", **options: str) -> dict[str, str]:
        """Options of a ``load()``, over all topics if nothing else is said; it begins where it does by default."""
        which = {} if options.keys() & {"subscribe", "assign"} else {"subscribePattern": self.pattern}
        return {**self._settings, "name": "billing", **which, **options}


@pytest.fixture
def topics(bus: Bus, module_settings: dict[str, str]) -> Iterator[Patterned]:
    """Topics of one's own."""
    made = Patterned(bus, module_settings)
    yield made
    made.close()


def plan_with(query: Query, topic: str) -> Any:
    """Run up to the first batch whose end offset names ``topic``: it is logged, and not read; return its position."""
    deadline = time.monotonic() + SOON
    while True:
        if query.plan():
            if topic in query.end:
                return query.end[topic]
            query.run()
            query.commit()
        assert time.monotonic() < deadline, f"no offset with {topic} within {SOON:g} s: {query.end}"


@pytest.mark.slow
def test_a_topic_found_while_the_query_runs(topics: Patterned) -> None:
    """It begins at earliest, wherever those of the start do; its first offset brings no rows."""
    topics.seal("a", 0, noted=False)
    query = topics.query(startingOffsets="latest")
    assert query.step()
    topics.seal("a", 1)
    topics.seal("b", 0, 1)
    first = plan_with(query, topics.name("b"))
    assert (first["n"], first["log"]) == (0, topics.publishers["b"].log_id)
    query.run()
    assert query.rows(topics.name("b")) == 0
    query.commit()
    topics.drain(query, "ab")
    assert list(query.end) == sorted(query.end)
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert {topic: (head["state"], head["n"]) for topic, head in report.items()} == {
        topics.name("a"): ("connected", 2),
        topics.name("b"): ("connected", 2),
    }


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["stored", "logged", "read"])
def test_restart_before_the_first_batch_of_a_new_topic_is_committed(topics: Patterned, moment: str) -> None:
    """Cases 3, 59: retention removes at once what it may; the first position stays what it was, and keeps the rows."""
    topics.seal("a", 0, noted=False)
    query = topics.query()
    query.step()
    topics.open("b", changes=AT_ONCE).declare(SCHEMA)
    name = topics.name("b")
    if moment == "stored":
        query.plan()  # begins to look
        finder = query.reader._topics._finder  # type: ignore[union-attr]
        until(lambda: name in finder._ready, SOON, "the first position")  # type: ignore[union-attr]
        first = finder._ready[name].to_json()  # type: ignore[union-attr]
        assert name not in query.end
    else:
        first = plan_with(query, name)
        if moment == "read":
            query.run()
    topics.seal("b", 0, 1)
    query.restart()
    topics.seal("b", 2)
    assert (query.end[name] if name in query.end else plan_with(query, name)) == first
    topics.drain(query, "b")


@pytest.mark.slow
def test_a_new_topic_that_leaves_at_once(topics: Patterned) -> None:
    """Case 25: between the plan of the batch that names it first and its run; nothing is asked of it then."""
    topics.seal("a", 0, noted=False)
    query = topics.query(startingOffsets="latest")
    query.step()
    topics.open("b").declare(SCHEMA)
    plan_with(query, topics.name("b"))
    topics.publishers.pop("b").close()
    began = time.monotonic()
    query.run()
    assert time.monotonic() - began < 5.0
    query.commit()
    topics.seal("a", 1)
    topics.seal("b", 0)
    topics.drain(query, "ab")


@pytest.mark.slow
def test_topics_that_come_before_the_first_batch_is_committed(topics: Patterned) -> None:
    """Cases 3, 59: the first batch was planned and not committed; a topic since then was not there at the start."""
    topics.seal("a", 0, noted=False)
    query = topics.query(startingOffsets="latest")
    assert query.plan()
    topics.seal("a", 1)
    topics.seal("b", 0, 1)
    query.restart()
    assert list(json.loads(query.offsets[0])) == [topics.name("a")]
    topics.drain(query, "ab")


@pytest.mark.slow
def test_a_new_checkpoint_under_an_old_name(topics: Patterned) -> None:
    """It begins where it is told in every topic, also if one of them never got beyond its first position."""
    for letter in "ab":
        topics.seal(letter, 0, noted=False)
    query = topics.query(startingOffsets="latest")
    query.plan()
    query.run()
    query.commit()
    topics.seal("a", 1)
    topics.drain(query, "a")
    assert query.step() is False  # which acknowledges what came
    query.reader.stop()
    begin = topics.query(startingOffsets="latest").reader.initialOffset()
    assert {topic: position["n"] for topic, position in begin.items()} == {topics.name("a"): 2, topics.name("b"): 1}


@pytest.mark.slow
def test_a_topic_that_nobody_answers_for_holds_up_nobody(topics: Patterned, bus: Bus) -> None:
    """Case 23: a registration that leads to nothing is tried again; its topic comes once somebody serves it."""
    topics.seal("a", 0)
    query = topics.query(startingOffsets="earliest")
    topics.drain(query, "a")
    handler = open_handler(bus.config())
    try:
        nowhere = "127.0.0.1:9"
        record = RegisterRecord(
            host="127.0.0.1",
            port=9,
            parallelism=1,
            index=1,
            coordinator=nowhere,
            data=nowhere,
            epoch=1,
            instance="ghost",
            ssl=True,
        )
        handler.register(topics.name("b"), record)
        session = query.reader._topics.session  # type: ignore[union-attr]
        query.until(lambda: topics.name("b") in session.topics, "b is looked for")
        for batch_id in range(1, 6):
            topics.seal("a", batch_id)
            topics.drain(query, "a")
        assert query.slowest < 3.0
        assert topics.name("b") not in query.end
    finally:
        handler.shutdown()
    topics.seal("b", 0)
    topics.drain(query, "ab")


@pytest.mark.slow
def test_a_topic_that_is_away_stays(topics: Patterned) -> None:
    """Case 25: its node is deleted, and made again. Its position is kept, over restarts and a change of the pattern."""
    topics.seal("a", 0)
    topics.seal("b", 0)
    query = topics.query(startingOffsets="earliest")
    topics.drain(query, "ab")
    stood = query.end[topics.name("b")]
    query.step()  # acknowledges, so that it may end at once
    topics.publishers.pop("b").close()
    topics.seal("a", 1)
    topics.drain(query, "a")
    query.restart(subscribePattern=topics.name("a"))
    topics.seal("a", 2)
    topics.drain(query, "a")
    assert query.end[topics.name("b")] == stood
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert not report[topics.name("b")]["ended"]
    topics.seal("b", 1)
    topics.drain(query, "ab")


@pytest.mark.slow
def test_available_now_reads_the_topics_of_its_start(topics: Patterned) -> None:
    """Also those that are new to the checkpoint; what comes later is for the next run."""
    topics.seal("a", 0)
    query = topics.query(startingOffsets="earliest")
    topics.drain(query, "a")
    topics.seal("b", 0, 1)
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    topics.seal("b", 2, noted=False)
    topics.seal("c", 0, noted=False)
    while query.step():
        pass
    topics.drain(query, "ab")
    assert list(query.end) == [topics.name("a"), topics.name("b")]


def fails(query: Query, error: type[JobpipeError]) -> JobpipeError:
    """Run until the query fails, with this."""
    with pytest.raises(error) as caught:
        query.until(lambda: False, "the error", SOON)
    return caught.value


@pytest.mark.slow
def test_a_new_topic_of_another_schema_ends_the_query(topics: Patterned) -> None:
    """Case 60: before any of its rows is planned; named are topic and columns."""
    topics.seal("a", 0)
    query = topics.query(startingOffsets="earliest")
    topics.drain(query, "a")
    topics.open("b").seal("q", 0, [pa.table({"number": ["one"]}), pa.table({"number": ["two"]})])
    error = fails(query, SchemaMismatch)
    assert error.fields["topic"] == topics.name("b")
    assert any(line.startswith("number:") for line in error.fields["columns"])
    assert list(query.end) == [topics.name("a")]


@pytest.mark.slow
def test_a_name_that_is_taken_on_a_new_topic_ends_the_query(topics: Patterned, bus: Bus) -> None:
    """Case 51: two queries under one name would each have a part of the rows."""
    topics.seal("a", 0)
    query = topics.query(startingOffsets="earliest")
    topics.drain(query, "a")
    with bus.subscribe("billing", topic=topics.name("b")) as other:
        topics.open("b")
        other.position()
        topics.seal("b", 0)
        assert fails(query, NameTaken).fields["topic"] == topics.name("b")


@pytest.mark.slow
def test_too_many_topics(topics: Patterned) -> None:
    """At ``load()`` and while the query runs: named are the pattern and the count."""
    topics.seal("a", 0)
    query = topics.query(startingOffsets="earliest", maxTopics="2")
    topics.drain(query, "a")
    for letter in "bc":
        topics.seal(letter, 0)
    wanted = {"pattern": topics.pattern, "count": 3, "most": 2}
    with pytest.raises(ConfigError, match="maxTopics=2") as caught:
        query.until(lambda: False, "the error", SOON)
    assert caught.value.fields == wanted
    with pytest.raises(ConfigError, match="3 topics match") as caught:
        topics.query(maxTopics="2")
    assert caught.value.fields == wanted


@pytest.mark.slow
def test_load_waits_for_the_first_topic(topics: Patterned) -> None:
    """A pattern that nothing matches says so; the whole name must match."""
    topics.seal("ab", 0)
    with pytest.raises(TopicNotFound, match="the whole name must match") as caught:
        topics.query(subscribePattern=topics.name("a"), discoveryTimeout="1s")
    assert caught.value.fields["pattern"] == topics.name("a")
    topics.open("c")
    timer = threading.Timer(1.0, lambda: topics.seal("c", 0))
    timer.start()
    query = topics.query(subscribePattern=topics.name("c"), startingOffsets="earliest")
    timer.join()
    topics.drain(query, "c")


def batch_rows(options: dict[str, str], check: Callable[[pa.RecordBatch], object]) -> int:
    """Read once, as ``spark.read`` does; return the rows."""
    source = JobPipeDataSource(options)
    reader = source.reader(source.schema())
    count = 0
    for partition in reader.partitions():
        for batch in reader.read(partition):
            check(batch)
            count += batch.num_rows
    return count


@pytest.mark.slow
def test_a_batch_read_by_pattern(topics: Patterned) -> None:
    """All that is served and matches; a topic without a batch has nothing to read."""
    for letter in "ab":
        topics.seal(letter, 0, 1)
    topics.open("c")
    assert batch_rows(topics.options(), lambda batch: None) == topics.journals["a"].rows + topics.journals["b"].rows


@pytest.mark.slow
def test_assigned_partitions(topics: Patterned) -> None:
    """Numbered as parallel-1, parallel-2, ... are; the others are acknowledged with them."""
    topics.open("a", partitions=3)
    topics.seal("a", 0, 1)
    name = topics.name("a")
    query = topics.query(assign=json.dumps({name: [3, 1]}), startingOffsets="earliest")
    query.until(lambda: query.rows(name) >= 40, "rows")
    found = {row for batches in query.sink[0].values() for batch in batches for row in batch["partition"].to_pylist()}
    assert (found, query.rows(name)) == ({0, 2}, 40)
    query.step()
    topics.publishers["a"].drain(SOON)
    assert batch_rows(topics.options(assign=json.dumps({name: [2]})), lambda b: None) == 20


@pytest.mark.slow
def test_an_assigned_partition_that_there_is_not(topics: Patterned) -> None:
    """Case 53: at the start, and when the publisher comes back with less: in both cases before Spark logs an offset."""
    topics.open("a", partitions=3)
    topics.seal("a", 0)
    name = topics.name("a")
    with pytest.raises(ConfigError, match="parallel-4") as caught:
        topics.query(assign=json.dumps({name: [1, 4]}), startingOffsets="earliest").step()
    assert caught.value.fields == {"topic": name, "missing": [4], "parallelism": 3}
    query = topics.query(assign=json.dumps({name: [3]}), startingOffsets="earliest")
    query.until(lambda: query.rows(name) >= 10, "rows")
    query.step()
    topics.publishers.pop("a").close()
    topics.open("a", partitions=2)
    topics.rows["a"] = NumberedRows(name, partitions=2)
    topics.seal("a", 1)
    assert fails(query, ConfigError).fields == {"topic": name, "missing": [3], "parallelism": 2}


def test_an_end_mark_has_no_partitions_that_could_be_missing(topics: Patterned) -> None:
    """A publisher comes back with more partitions, and seals nothing but its end: in the shape of the batch before."""
    topics.seal("a", 0)
    name = topics.name("a")
    topics.publishers.pop("a").close()
    topics.open("a", partitions=3)
    query = topics.query(assign=json.dumps({name: [3]}), startingOffsets="latest")
    query.plan()
    query.run()
    query.commit()
    topics.publishers["a"].close(final=True)
    query.until(lambda: query.end[name]["n"] == 2, "the end mark")


def test_topics_that_the_options_do_not_name_any_more(topics: Patterned) -> None:
    """A checkpoint is not read in part, in silence; a topic that is named anew joins it."""
    for letter in "ab":
        topics.seal(letter, 0)
    query = topics.query(subscribe=topics.name("a"), startingOffsets="earliest")
    topics.drain(query, "a")
    query.restart(subscribe=f"{topics.name('a')},{topics.name('b')}")
    topics.drain(query, "ab")
    query.restart(subscribe=topics.name("a"))
    assert fails(query, ConfigError).fields == {"topic": topics.name("b")}


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        ({}, ["subscribe: expected topic, or topic,topic; or else subscribePattern, or assign"]),
        ({"subscribe": "a", "subscribePattern": "b"}, ["2 wrong options", "exactly one of"]),
        ({"subscribe": "a", "assign": '{"a": [1]}'}, ["exactly one of subscribe, subscribePattern, assign"]),
        ({"subscribePattern": "a("}, ["subscribePattern = a(", "missing )"]),
        ({"subscribePattern": ""}, ["subscribePattern = ", "whole topic name"]),
        ({"subscribePattern": "a", "maxTopics": "0"}, ["maxTopics = 0", "from 1 to 10000"]),
        ({"assign": "orders"}, ["assign = orders", '{"orders": [1, 3]}']),
        ({"assign": "{}"}, ["assign = {}"]),
        ({"assign": '{"a": [0]}'}, ["a has [0]", "from 1 and each once"]),
        ({"assign": '{"a": []}'}, ["a has []"]),
        ({"assign": '{"a": [true]}'}, ["a has [true]"]),
        ({"assign": '{"a": [1, 1]}'}, ["a has [1, 1]"]),
        ({"assign": '{"a": [1], "a": [2]}'}, ["each name once, but 'a' is given twice"]),
        ({"subscribe": "a", "maxTopics": "3"}, ["maxTopics = 3: expected subscribePattern as well"]),
        ({"assign": '{"a b": [1]}'}, ["'a b' is not one", "letters, digits"]),
        ({"topicsPattern": "a"}, ["did you mean subscribePattern?"]),
    ],
)
def test_wrong_options(module_settings: dict[str, str], options: dict[str, str], phrases: list[str]) -> None:
    """Told at ``load()``."""
    with pytest.raises(ConfigError) as caught:
        SourceOptions.parse({**module_settings, **options})
    for phrase in phrases:
        assert phrase in str(caught.value), caught.value
