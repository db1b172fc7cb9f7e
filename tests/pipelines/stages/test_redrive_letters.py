"""Which letters' rows are published again, each once, whatever other redrives do and wherever one is killed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from jobpipe.errors import (
    AlreadyRedriven,
    ConfigError,
    JobpipeError,
    LinkError,
    NotAuthorized,
    SchemaMismatch,
    TopicNotFound,
)
from jobpipe.pipelines.dead_letters import redrive as module
from jobpipe.pipelines.dead_letters.letter_reader import LetterGroups
from jobpipe.pipelines.dead_letters.redrive import Letter, Redrive, letters_of
from jobpipe.publishing.appender import BatchShape, Make
from jobpipe.store.catalog.redrive_marks import SourceRow
from jobpipe.subscribing.fetching.part_fetch import Fetched

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
NOTHING = dict.fromkeys(module.COLUMNS)


class Topic:
    """A topic in memory that keeps marks as a catalog does: all of a batch, or nothing."""

    def __init__(self, schema: pa.Schema = SCHEMA, partitions: int = 2) -> None:
        self.schema = schema
        self.partitions = partitions
        self.rows: list[tuple[int, Any]] = []  # partition, id
        self.marked: set[SourceRow] = set()
        self.batches = 0
        self.fail: list[BaseException | None] = []  # of the next calls, before (None: after) what they do

    def shape(self) -> BatchShape:
        return BatchShape(1, self.schema.serialize().to_pybytes(), None)

    def schemas(self) -> list[bytes]:
        return [self.schema.serialize().to_pybytes()]

    def redriven(self, rows: Sequence[SourceRow]) -> set[SourceRow]:
        return self.marked & set(rows)

    def append(self, batch_id: int, make: Make) -> bool:
        lost = bool(self.fail) and self.fail[0] is None
        if self.fail and (error := self.fail.pop(0)) is not None:
            raise error
        made = make(BatchShape(self.partitions, self.schema.serialize().to_pybytes(), None))
        if made is None:
            return True
        assert len(set(made.marks)) == len(made.marks)
        if self.marked & set(made.marks):
            raise AlreadyRedriven("again")
        self.marked |= set(made.marks)
        for batch, partition in made.rows:
            assert isinstance(partition, int)
            self.rows += [(partition, row["id"]) for row in batch.to_pylist()]
        self.batches += 1
        if lost:
            raise LinkError("killed: the answer was lost")
        return True


def letter(offset: int, number: int, **values: Any) -> Letter:
    """Return a letter of a row that had the same place in its topic."""
    made = {"topic": "orders", "source_row": json.dumps({"id": 10 * offset + number, "name": "x"})}
    made |= {"offset": offset, "published_ms": 1000, "partition": 0, "row_number": number}
    return Letter(offset, number, {**NOTHING, **made, **values})


def redrive(topics: dict[str, Topic], letters: list[Letter], **more: Any) -> module.Outcome:
    made = Redrive(lambda topic, _: topics[topic], more.pop("allowed", lambda _: True), **more)
    for each in letters:
        made.take(each)
    return made.finish()


def test_rows_go_back_to_their_topics_and_partitions() -> None:
    topics = {"orders": Topic(), "refunds": Topic(partitions=3)}
    letters = [
        letter(0, 0, partition=1),
        letter(0, 1, topic="refunds", partition=5),
        letter(1, 0),
        letter(1, 1, partition=3),
    ]
    outcome = redrive(topics, letters)
    assert (outcome.published, outcome.already, outcome.left) == ({"orders": 3, "refunds": 1}, 0, {})
    assert topics["orders"].rows == [(1, 0), (1, 11), (0, 10)]
    assert topics["refunds"].rows == [(2, 1)]


def test_a_second_redrive_publishes_what_is_new() -> None:
    topics = {"orders": Topic()}
    redrive(topics, [letter(0, 0), letter(0, 1)])
    outcome = redrive(topics, [letter(0, 0), letter(0, 1), letter(0, 2)])
    assert (outcome.published, outcome.already) == ({"orders": 1}, 2)
    assert [row for _, row in topics["orders"].rows] == [0, 1, 2]


def test_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 3)
    topics = {"orders": Topic()}
    assert redrive(topics, [letter(0, number) for number in range(7)]).published == {"orders": 7}
    assert topics["orders"].batches == 3
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 1)
    redrive(topics, [letter(1, number) for number in range(4)])
    assert topics["orders"].batches == 7


@pytest.mark.parametrize("killed", [LinkError("killed before"), None], ids=["before the commit", "after it"])
@pytest.mark.parametrize("batch", range(3))
def test_killed_at_any_batch_and_called_again(
    monkeypatch: pytest.MonkeyPatch, killed: BaseException | None, batch: int
) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 2)
    topic, begun = Topic(), []
    letters = [letter(0, number) for number in range(6)]
    append = topic.append

    def counted(batch_id: int, make: Make) -> bool:
        topic.fail = [killed] if len(begun) == batch else []
        begun.append(batch_id)
        return append(batch_id, make)

    monkeypatch.setattr(topic, "append", counted)
    with pytest.raises(LinkError):
        redrive({"orders": topic}, letters)
    outcome = redrive({"orders": topic}, letters)
    assert [row for _, row in topic.rows] == list(range(6))
    assert outcome.already + outcome.published["orders"] == 6


def test_two_at_once_publish_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one was quicker, after this one had looked which rows are marked."""
    monkeypatch.setattr(module, "BATCH_ROWS", 4)
    topic = Topic()
    one = Redrive(lambda *_: topic, lambda _: True)
    one.take(letter(0, 0))
    redrive({"orders": topic}, [letter(0, 0), letter(0, 2)])
    for number in (1, 2, 3):
        one.take(letter(0, number))
    outcome = one.finish()
    assert sorted(row for _, row in topic.rows) == [0, 1, 2, 3]
    assert (outcome.published, outcome.already) == ({"orders": 2}, 2)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"topic": None, "file": "file:/in/a.csv"}, "came from a file"),
        ({"topic": None}, "not known which topic"),
        ({"source_row": None}, "does not say what its row was"),
        ({"published_ms": None}, "does not say where its row was"),
        ({"row_number": -1}, "does not say where its row was"),
        ({"source_row": '{"id":1}'}, "does not fit topic orders as it is now: it lacks column name"),
        ({"source_row": '{"id":"x","name":"y"}'}, "column id: 'x' is not a whole number"),
        ({"source_row": "no JSON"}, "does not fit topic orders"),
    ],
)
def test_a_letter_that_cannot_go_back(values: dict[str, Any], why: str) -> None:
    """The others do, and it is counted with its reason."""
    topics = {"orders": Topic()}
    outcome = redrive(topics, [letter(0, 0), letter(0, 1, **values), letter(0, 2)])
    assert outcome.published == {"orders": 2}
    ((reason, count),) = outcome.left.items()
    assert why in reason
    assert (count, [(each.letter.offset, each.letter.number) for each in outcome.named]) == (1, [(0, 1)])
    assert {each.number for each in topics["orders"].marked} == {0, 2}
    again = redrive(topics, [letter(0, 1)])  # it is not marked, and can go once its row is right
    assert again.published == {"orders": 1}


def test_a_topic_with_a_type_that_json_does_not_keep() -> None:
    topics = {"orders": Topic(SCHEMA.append(pa.field("took", pa.duration("us")))), "refunds": Topic()}
    outcome = redrive(topics, [letter(0, 0), letter(0, 1, topic="refunds")])
    assert outcome.published == {"refunds": 1}
    assert list(outcome.left.values()) == [1]
    assert "column 'took'" in outcome.named[0].why


@pytest.mark.parametrize("where", ["open", "redriven", "append"])
@pytest.mark.parametrize("error", [TopicNotFound("it is gone"), NotAuthorized("no right"), SchemaMismatch("no schema")])
def test_one_topic_that_takes_nothing(monkeypatch: pytest.MonkeyPatch, where: str, error: JobpipeError) -> None:
    """The rows of the others go out, and the topic is asked once."""
    monkeypatch.setattr(module, "BATCH_ROWS", 2)
    topics, asked = {"orders": Topic(), "refunds": Topic()}, []

    def refuse(*_: object) -> Any:
        asked.append(1)
        raise error

    def open_topic(topic: str, query_id: str) -> Topic:
        return refuse() if (topic, where) == ("orders", "open") else topics[topic]

    if where != "open":
        monkeypatch.setattr(topics["orders"], where, refuse)
    made = Redrive(open_topic, lambda _: True)
    for each in [letter(0, 0), letter(0, 1), letter(0, 2), letter(0, 3), letter(0, 4, topic="refunds")]:
        made.take(each)
    outcome = made.finish()
    assert (outcome.published, outcome.left, len(asked)) == ({"refunds": 1}, {error.message: 4}, 1)


def test_rows_go_to_no_topic_but_those_that_are_named() -> None:
    """What a letter says is its author's word; who redrives may have the right to publish to many topics."""
    topics = {"orders": Topic(), "payroll": Topic()}
    letters = [letter(0, 0), letter(0, 1, topic="payroll")]
    outcome = redrive(topics, letters, allowed=lambda topic: topic == "orders")
    assert (outcome.published, topics["payroll"].rows) == ({"orders": 1}, [])
    assert list(outcome.left) == ["rows may not go to its topic payroll: give --into payroll if the job reads it"]
    assert redrive(topics, letters).published == {"payroll": 1}


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("rows", [1, 10])
def test_two_letters_of_one_row(monkeypatch: pytest.MonkeyPatch, rows: int, *, dry_run: bool) -> None:
    """Of two jobs, or of a job that began again: in one batch, in two, and in another redrive."""
    monkeypatch.setattr(module, "BATCH_ROWS", rows)
    topic = Topic()
    again = replace(letter(0, 0), offset=5)
    outcome = redrive({"orders": topic}, [letter(0, 0), again, letter(0, 1)], dry_run=dry_run)
    assert (outcome.published, outcome.already) == ({"orders": 2}, 1)
    assert [row for _, row in topic.rows] == ([] if dry_run else [0, 1])
    assert redrive({"orders": topic}, [again], dry_run=dry_run).already == (0 if dry_run else 1)


def test_a_dry_run_publishes_nothing() -> None:
    topics = {"orders": Topic()}
    redrive(topics, [letter(0, 0)])
    outcome = redrive(topics, [letter(0, 0), letter(0, 1), letter(0, 2, source_row="{}")], dry_run=True)
    assert (outcome.published, outcome.already, sum(outcome.left.values())) == ({"orders": 1}, 1, 1)
    assert topics["orders"].batches == 1


def _fetched(batch: pa.RecordBatch, partition: int = 0) -> Fetched:
    return Fetched(batch, cast("Any", SimpleNamespace(n=7, partition=partition)), 3)


def test_letters_of_a_record_batch() -> None:
    """Also of a topic that an older version made, without the row of the source."""
    columns = {name: pa.array(["x", "y"]) for name in module.NEEDED}
    found = list(letters_of("dead", _fetched(pa.record_batch(columns))))
    assert [(each.offset, each.number) for each in found] == [(7, 3), (7, 4)]
    assert found[0].values["topic"] == "x"
    assert found[0].values["source_row"] is None
    with pytest.raises(ConfigError, match="several partitions"):
        list(letters_of("dead", _fetched(pa.record_batch(columns), 1)))
    with pytest.raises(ConfigError, match="no column row, "):
        list(letters_of("dead", _fetched(pa.record_batch({"id": pa.array([1])}))))


HOSTILE = pa.schema(
    [
        *((name, pa.string()) for name in ("row", "error_class", "error_message", "stage", "topic", "source_row")),
        *((name, pa.int64()) for name in module.PLACE),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)


def read(values: list[dict[str, Any]], at: list[int | None]) -> list[Letter]:
    """Return letters as they are read of a topic; times in microseconds since 1970."""
    batch = pa.RecordBatch.from_pylist(values, HOSTILE.remove(HOSTILE.get_field_index("at")))
    batch = batch.append_column(HOSTILE.field("at"), pa.array(at, pa.int64()).view(pa.timestamp("us", tz="UTC")))
    fetched = SimpleNamespace(batch=batch, header=SimpleNamespace(n=0, partition=0), row=0)
    return list(letters_of("dead", cast("Fetched", fetched)))


def test_one_broken_letter_does_not_stop_the_others() -> None:
    """Nor does a time that Python does not know; they are counted, and what can be published again is."""
    texts = {"stage": "python", "error_class": "KeyError"}
    good = {**letter(0, 0).values, **texts}
    values = [good, {**letter(0, 1).values, **texts}, letter(0, 2).values, {**texts, "topic": "x" * 5000}]
    letters = read(values, [1_000_000, 2**62, None, 2_000_000])
    assert [each.at and each.at.timestamp() for each in letters] == [1.0, None, None, 2.0]
    groups = LetterGroups("dead")
    for each in letters:
        groups.add(each)
    nothing, told = groups.all()
    assert (nothing.stage, nothing.error_class, nothing.letters, nothing.first) == ("", "", 1, None)
    assert (told.letters, told.left, told.first, told.last) == (3, 1, letters[0].at, letters[3].at)
    json.dumps([each.to_json() for each in groups.all()])
    outcome = redrive({"orders": Topic()}, letters)
    assert (outcome.published, outcome.left.total()) == ({"orders": 3}, 1)


@pytest.mark.parametrize("name", ["../x", "x" * 1_000_000, "a b", "\ud7ff"])
def test_what_is_no_name_of_a_topic_is_said_shortly(name: str) -> None:
    """A letter may say anything of its topic; nobody is asked whether rows may go there."""
    asked: list[str] = []

    def allowed(topic: str) -> bool:
        asked.append(topic)
        return True

    outcome = redrive({"orders": Topic()}, [letter(0, 0), letter(0, 1, topic=name)], allowed=allowed)
    (why,) = outcome.left
    assert (outcome.published, asked) == ({"orders": 1}, ["orders"])
    assert why.startswith("what it says that its row came from is not a topic name: ")
    assert len(why) < 300


@pytest.mark.parametrize(
    "values", [{"stage": 7}, {"at": "yesterday"}, {"topic": 7}, {"source_row": 7}, {"stage": {}, "error_class": []}]
)
def test_columns_of_other_types(values: dict[str, Any]) -> None:
    """Who publishes letters makes their schema too."""
    groups = LetterGroups("dead")
    for each in (letter(0, 0), letter(0, 1, **values)):
        groups.add(each)
    assert sum(each.letters for each in groups.all()) == 2
    assert redrive({"orders": Topic()}, [letter(0, 0), letter(0, 1, **values)]).published["orders"] >= 1
