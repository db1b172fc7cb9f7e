"""Where reads begin and end: streams and batch reads of the same options, asked as Spark asks them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.errors import ConfigError, DataLoss, RemoteProtocolError
from jobpipe.store.reading.boundary import EARLIEST, Boundary, ReadLimits
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.subscribing.subscriber_session import SubscriberSession
from jobpipe.testing import SCHEMA
from tests.bus.kit import PATIENCE, named_link, until
from tests.bus.query import Query, read_once
from tests.bus.subscribing.test_topics import AT_ONCE, Patterned

FAR = 4_000_000_000_000  # milliseconds: the year 2096


@pytest.fixture
def topics(bus: Any, module_settings: dict[str, str]) -> Iterator[Patterned]:
    """Topics of one's own."""
    made = Patterned(bus, module_settings)
    yield made
    made.close()


def seal_apart(topics: Patterned, letter: str, *batch_ids: int) -> None:
    """Seal batches of which no two have the same publish time."""
    for batch_id in batch_ids:
        topics.seal(letter, batch_id)
        last = published(topics, letter)[-1]
        until(lambda last=last: time.time() * 1000 >= last + 1, PATIENCE, "the next millisecond")


def published(topics: Patterned, letter: str) -> list[int]:
    """Return the publish times of all batches that are there, in milliseconds."""
    name = topics.name(letter)
    catalog = CatalogReader.open(topics.publishers[letter].config.spool_dir / name, name)
    try:
        pieces, _ = catalog.segments(catalog.batches.tail(), catalog.batches.head(), 0, limit=1000)
        return [piece.sealed_ms for piece in pieces]
    finally:
        catalog.close()


def offsets(read: dict[str, list[pa.RecordBatch]], name: str) -> list[int]:
    """Return the offsets of the batches that were read of a topic; each must be there with all its rows."""
    numbers = [(p, n) for batch in read.get(name, ()) for p, n in zip(*batch.columns[:2], strict=True)]
    batches = sorted({n.as_py() // 10 for _, n in numbers})
    wanted = sorted((p, 10 * n + row) for p in range(2) for n in batches for row in range(10))
    assert sorted((p.as_py(), n.as_py()) for p, n in numbers) == wanted
    return batches


def all_of(query: Query, name: str) -> list[int]:
    """Return the offsets of the batches that a query has read of a topic, each once."""
    found = [batch for taken in query.sink.values() for batch in taken.get(name, ())]
    return offsets({name: found}, name)


def ended(query: Query) -> dict[str, int]:
    """Return the topics that a query reports to have ended, each with the offset."""
    report = query.reader.reportLatestOffset() or {}
    return {topic: head["n"] for topic, head in report.items() if head["ended"]}


def stands(topics: Patterned, letter: str, name: str = "billing") -> int | None:
    """Return the acknowledged offset."""
    lines = {line["name"]: line for line in topics.publishers[letter].status()["subscriptions"]}
    return lines[name]["position"]


def first_of(topics: Patterned, **options: str) -> dict[str, Any]:
    """Return where a stream begins, and let its name go."""
    query = topics.query(**options)
    try:
        return query.reader.initialOffset()
    finally:
        query.reader.stop()


def to_end(topics: Patterned, query: Query, **ends: int) -> None:
    """Run until all these topics are at their ends, and acknowledged there."""
    wanted = {topics.name(letter): n for letter, n in ends.items()}
    query.until(lambda: ended(query) == wanted and {t: query.end[t]["n"] for t in wanted} == wanted, f"{wanted}")
    assert not query.step()
    assert {letter: stands(topics, letter) for letter in ends} == ends


@pytest.mark.slow
def test_offsets_of_each_topic(topics: Patterned) -> None:
    """-2, -1 and numbers, by JSON; the stream, and where it may a batch read, begin there."""
    for letter in "abc":
        topics.seal(letter, 0, 1, 2)
    names = {letter: topics.name(letter) for letter in "abc"}
    which = {"subscribe": ",".join(names.values())}
    query = topics.query(**which, startingOffsets=json.dumps({names["a"]: -2, names["b"]: -1, names["c"]: 2}))
    assert query.step()
    topics.seal("b", 3)
    query.until(lambda: query.rows(names["b"]), "the new batch")
    assert [all_of(query, names[letter]) for letter in "abc"] == [[0, 1, 2], [3], [2]]
    query.restart(startingOffsets=json.dumps({names["a"]: 0, names["b"]: 0, names["c"]: 900}))  # the checkpoint wins
    topics.seal("c", 3)
    query.until(lambda: query.rows(names["c"]) == 40, "the new batch")
    assert all_of(query, names["b"]) == [3]
    found = read_once(
        **topics.options(
            **which,
            startingOffsets=json.dumps({names["a"]: -2, names["b"]: 3, names["c"]: 2}),
            endingOffsets=json.dumps({names["a"]: 1, names["b"]: -1, names["c"]: 2}),
        )
    )
    assert [offsets(found, names[letter]) for letter in "abc"] == [[0], [3], []]


@pytest.mark.slow
def test_from_a_time_on(topics: Patterned) -> None:
    """The first batch published then or later; asked again before anything is committed, the answer is the same."""
    seal_apart(topics, "a", 0, 1, 2)
    name, times = topics.name("a"), published(topics, "a")
    iso = datetime.fromtimestamp((times[0] + 1) / 1000, UTC).isoformat()
    query = topics.query(subscribe=name, startingTimestamp=iso)
    assert query.reader.initialOffset()[name]["n"] == 1
    query.restart(startingTimestamp=str(times[2]))
    assert query.reader.initialOffset()[name]["n"] == 1
    query.step()
    assert all_of(query, name) == [1, 2]
    query.restart(startingTimestamp=str(FAR))  # the checkpoint wins
    topics.seal("a", 3)
    query.until(lambda: query.rows(name) == 60, "the new batch")
    for options in ({"startingTimestamp": str(FAR)}, {"boundaryType": "TIME", "lowerBound": str(FAR)}):
        with pytest.raises(ConfigError, match=f"'{name}': nothing was published at 2096-10-02T07:06:40") as caught:
            first_of(topics, subscribe=name, name="unmatched", **options)
        assert caught.value.fields["newest"] == published(topics, "a")[-1]
        with pytest.raises(ConfigError, match="nothing was published at 2096"):
            read_once(**topics.options(subscribe=name, **options))
        latest = topics.options(subscribe=name, startingOffsetsByTimestampStrategy="latest", **options)
        assert offsets(read_once(**latest), name) == []
        assert first_of(topics, **{**latest, "name": f"latest-{len(options)}"})[name]["n"] == 4


@pytest.mark.slow
def test_a_stream_ends_at_an_offset(topics: Patterned) -> None:
    """It waits for one that is not there yet, never reads beyond it, acknowledges it, and rests although more comes."""
    topics.seal("a", 0, 1)
    name = topics.name("a")
    query = topics.query(subscribe=name, startingOffsets="earliest", endingOffsets=json.dumps({name: 3}))
    query.step()
    assert (ended(query), all_of(query, name)) == ({}, [0, 1])
    topics.seal("a", 2, 3, 4)
    to_end(topics, query, a=3)
    query.slowest = 0.0
    topics.seal("a", 5)
    for _ in range(6):
        assert not query.step()
    assert query.slowest > 0.2  # it waits: news behind the end are none
    assert all_of(query, name) == [0, 1, 2]
    query.restart()
    assert not query.step()
    assert ended(query) == {name: 3}
    query.restart(endingOffsets=json.dumps({name: 5}))  # simply the new end
    to_end(topics, query, a=5)
    query.restart(endingOffsets=json.dumps({name: 2}))  # long reached
    assert not query.step()
    assert ended(query) == {name: 5}
    assert all_of(query, name) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_a_stream_ends_at_a_time(topics: Patterned) -> None:
    """When a batch of then or later is there, or when the publisher's clock has passed it with no batch at all."""
    seal_apart(topics, "a", 0, 1)
    name, times = topics.name("a"), published(topics, "a")
    query = topics.query(subscribe=name, startingOffsets="earliest", endingTimestamp=str(times[1]))
    to_end(topics, query, a=1)
    assert all_of(query, name) == [0]
    query.restart(endingTimestamp=str(FAR))
    query.until(lambda: query.rows(name) == 40, "all that is there")
    assert ended(query) == {}
    soon = int(time.time() * 1000) + 300
    query.restart(endingTimestamp=str(soon))
    query.until(lambda: ended(query) == {name: 2}, "the clock to pass")
    assert time.time() * 1000 >= soon
    topics.seal("a", 2)
    assert not query.step()
    assert (ended(query), all_of(query, name)) == ({name: 2}, [0, 1])
    assert offsets(read_once(**topics.options(subscribe=name, endingTimestamp=str(soon))), name) == [0, 1]
    assert offsets(read_once(**topics.options(subscribe=name, endingTimestamp=str(FAR))), name) == [0, 1, 2]


@pytest.mark.slow
def test_a_stream_ends_at_latest(topics: Patterned) -> None:
    """What was there when it started, of all topics of a pattern, whichever is planned first."""
    for letter in "ab":
        topics.seal(letter, 0, 1)
    query = topics.query(startingOffsets="earliest", endingOffsets="latest")
    query.plan()
    for letter in "ab":
        topics.seal(letter, 2)
    query.run()
    query.commit()
    to_end(topics, query, a=2, b=2)
    assert [all_of(query, topics.name(letter)) for letter in "ab"] == [[0, 1], [0, 1]]
    query.restart()  # another run, and so another latest
    to_end(topics, query, a=3, b=3)


@pytest.mark.slow
def test_available_now_ends_at_the_lower_of_both(topics: Patterned) -> None:
    """An end that is there, one that is not there yet, and none at all."""
    topics.seal("a", 0, 1, 2)
    name = topics.name("a")
    query = topics.query(subscribe=name, startingOffsets="earliest", endingOffsets=json.dumps({name: 1}))
    for end, wanted in ((1, [0]), (9, [0, 1, 2])):
        query.restart(endingOffsets=json.dumps({name: end}))
        query.reader.prepareForTriggerAvailableNow()
        topics.seal("a", 3 if end == 1 else 4)
        while query.step():
            pass
        wanted = [0] if end == 1 else [0, 1, 2, 3]
        assert (all_of(query, name), stands(topics, "a")) == (wanted, len(wanted))
    query.restart(endingOffsets=json.dumps({name: 2}))  # behind it by now
    query.reader.prepareForTriggerAvailableNow()
    assert not query.step()
    assert all_of(query, name) == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_start_behind_its_end(topics: Patterned) -> None:
    """An error where the log tells; a checkpoint that stands behind is at its end, and nothing between is no rows."""
    seal_apart(topics, "a", 0, 1, 2)
    name, times = topics.name("a"), published(topics, "a")
    for start, end in (
        ({"startingOffsets": json.dumps({name: 2})}, {"endingTimestamp": str(times[1])}),
        ({"startingTimestamp": str(times[2])}, {"endingOffsets": json.dumps({name: 1})}),
    ):
        options = topics.options(subscribe=name, **start, **end)
        with pytest.raises(ConfigError, match=f"'{name}': the read begins at offset 2, after its end at offset 1"):
            read_once(**options)
        with pytest.raises(ConfigError, match="begins at offset 2, after its end at offset 1"):
            first_of(topics, **options)
    held = {"subscribe": name, "name": "held", "startingOffsets": json.dumps({name: 2})}
    assert first_of(topics, **held)[name]["n"] == 2  # kept for the name, whatever a later session asks for
    with pytest.raises(ConfigError, match="begins at offset 2, after its end at offset 1"):
        first_of(topics, **{**held, "startingOffsets": "earliest"}, endingOffsets=json.dumps({name: 1}))
    options = topics.options(subscribe=name, startingOffsets=json.dumps({name: 1}), endingTimestamp=str(times[1]))
    assert read_once(**options) == {}
    query = topics.query(**options)
    query.step()
    to_end(topics, query, a=1)
    assert query.rows(name) == 0


@pytest.mark.slow
def test_ends_that_are_not_there(topics: Patterned) -> None:
    """A start beyond the head, or of another log, is data loss; a batch read does not wait for its end."""
    topics.seal("a", 0)
    name = topics.name("a")
    for start in (2, {"log": "0" * 16, "epoch": 1, "n": 1, "r": 0}):
        options = topics.options(subscribe=name, startingOffsets=json.dumps({name: start}), failOnDataLoss="false")
        for read in (lambda o=options: first_of(topics, **o), lambda o=options: read_once(**o)):
            with pytest.raises(DataLoss, match=name) as caught:
                read()
            assert caught.value.fields["reason"] == ("beyond head" if start == 2 else "log")
    with pytest.raises(ConfigError, match=f"'{name}': the read is to end at offset 2, but the log ends at 1"):
        read_once(**topics.options(subscribe=name, endingOffsets=json.dumps({name: 2})))


@pytest.mark.slow
def test_a_start_that_was_removed(topics: Patterned) -> None:
    """Data loss with its range; ``failOnDataLoss=false`` begins with what is left, says so, and counts it."""
    topics.open("a", changes=AT_ONCE).declare(SCHEMA)
    keeper = topics.query(subscribe=topics.name("a"), name="keeper")
    keeper.step()
    topics.seal("a", *range(5))
    name = topics.name("a")
    session = SubscriberSession.open(topics.publishers["a"].config, [name], "other")
    session.first_position(name, Boundary("offset", 3))
    keeper.until(lambda: stands(topics, "a", "keeper") == 5, "all read")
    until(lambda: topics.publishers["a"].status()["tail"] == 3, PATIENCE, "retention")
    options = topics.options(subscribe=name, startingOffsets=json.dumps({name: 1}))
    for read in (lambda: first_of(topics, **options), lambda: read_once(**options)):
        with pytest.raises(DataLoss, match="batches 1 to 2 are missing"):
            read()
    options["failOnDataLoss"] = "false"
    assert offsets(read_once(**options), name) == [3, 4]
    query = topics.query(**options, endingOffsets=json.dumps({name: 4}))
    query.step()
    to_end(topics, query, a=4)
    assert all_of(query, name) == [3]
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert (report[name]["losses"], report[name]["lost_rows"]) == (1, 0)
    gone = {**options, "endingOffsets": json.dumps({name: 2})}
    assert read_once(**gone) == {}
    assert first_of(topics, **{**gone, "name": "late"})[name]["n"] == 3
    begun = {"subscribe": name, "startingTimestamp": "1"}  # before the oldest: at the oldest
    assert offsets(read_once(**topics.options(**begun)), name) == [3, 4]
    session.close()


def test_the_plain_client(topics: Patterned) -> None:
    """Begins at an offset or a time too, and refuses others."""
    seal_apart(topics, "a", 0, 1, 2)
    name, times = topics.name("a"), published(topics, "a")
    for start, wanted in ((1, [1, 2]), (datetime.fromtimestamp(times[2] / 1000, UTC), [2]), ("earliest", [0, 1, 2])):
        client = topics.bus.subscribe("plain", starting=start, topic=name)  # type: ignore[arg-type]
        assert offsets({name: list(client.batches(timeout=0.2))}, name) == wanted
        client.close()
    with pytest.raises(DataLoss, match="ends at offset 3"):
        topics.bus.subscribe("plain", starting=4, topic=name).position()  # type: ignore[arg-type]


def test_a_plan_ends_inside_a_batch(topics: Patterned) -> None:
    """An end may be any position; what no protocol says is refused."""
    topics.seal("a", 0, 1)
    name, config = topics.name("a"), topics.publishers["a"].config
    session = SubscriberSession.open(config, [name], "half")
    start = session.first_position(name, EARLIEST)
    half = {**session.head(name).to_json(), "n": 1, "r": 1}
    end = Boundary.from_json({"kind": "position", "value": half, "otherwise": "error"})
    plan = session.plan(name, start, ReadLimits(end))
    assert (plan.end.to_json(), plan.stop and plan.stop.to_json(), plan.rows) == (half, half, 30)
    session.close()
    link = named_link(config, name, "odd", "instance")
    grant = link.call("grant", {"host": "a", "pid": 1}, timeout=10).result["grant"]
    for op, args in (
        ("first", {"start": "earliest"}),
        ("first", {"start": None}),
        ("first", {"start": EARLIEST.to_json(), "end": EARLIEST.to_json()}),
        ("plan", {"start": start.to_json(), "end": {"kind": "committed", "value": None, "otherwise": "error"}}),
    ):
        with pytest.raises(RemoteProtocolError):
            link.call(op, {"grant": grant, **args}, timeout=10)
    link.close()


@pytest.mark.slow
def test_a_schema_that_comes_behind_the_end(topics: Patterned) -> None:
    """Concerns nobody who does not read it, also after a restart at the end."""
    topics.seal("a", 0, 1)
    name = topics.name("a")
    query = topics.query(subscribe=name, startingOffsets="earliest", endingOffsets=json.dumps({name: 2}))
    query.step()
    other = pa.table({"partition": pa.array(["x"]), "number": pa.array([1.5])})
    topics.publishers["a"].seal("q", 2, [other, other.slice(0, 0)], run_id="r1")
    to_end(topics, query, a=2)
    query.restart()
    assert not query.step()
    assert ended(query) == {name: 2}
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert not query.step()
    assert all_of(query, name) == [0, 1]
