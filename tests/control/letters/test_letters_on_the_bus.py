"""Dead letters that real coordinators serve: counted, read and redriven as the command line does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from jobpipe.admin import Admin
from jobpipe.config import Config
from jobpipe.control.letters import letter_questions
from jobpipe.control.letters.letter_questions import ROW_CHARACTERS, LetterQuestions
from jobpipe.errors import ConfigError
from jobpipe.pipelines.dead_letters.redrive import Outcome
from jobpipe.publishing.topic_publisher import Publisher
from tests.cli.topics.test_dead_letters import DEAD, LETTERS, letter, orders, send

pytestmark = pytest.mark.zookeeper


def never() -> bool:
    return False


@pytest.fixture
def source(config: Config) -> Iterator[Publisher]:
    publisher = Publisher("orders", config=config, name="shop", parallelism=2)
    publisher.seal("shop", 0, [orders([100]), orders([])], run_id="r")
    yield publisher
    publisher.close()


@pytest.fixture
def dead(config: Config, source: Publisher) -> Iterator[Publisher]:
    """Three batches of letters, one of which came from no topic."""
    publisher = Publisher(DEAD, config=config, name="bills")
    send(publisher, 0, letter(1), letter(2))
    send(publisher, 1, letter(3, error_class="KeyError"), letter(4, topic=None, source_row=None, file="file:/in/a.csv"))
    send(publisher, 2, letter(5, row="x" * 9000, run="run-7"))
    yield publisher
    publisher.close()


@pytest.fixture
def admin(config: Config) -> Iterator[Admin]:
    with Admin(config) as made:
        yield made


@pytest.fixture
def questions(config: Config, admin: Admin) -> LetterQuestions:
    return LetterQuestions(config, admin)


def redrive(
    questions: LetterQuestions, allowed: Callable[[str], bool], stopped: Callable[[], bool], *, dry_run: bool
) -> Outcome:
    outcome = Outcome()
    questions.redrive(DEAD, allowed, stopped, outcome, dry_run=dry_run)
    return outcome


def groups(questions: LetterQuestions) -> dict[tuple[str, str], tuple[int, int | None, int]]:
    counts = questions.count(DEAD, never)
    return {(each.stage, each.error_class): (each.letters, each.redriven, each.left) for each in counts.groups}


def test_counted_redriven_and_counted(questions: LetterQuestions, dead: Publisher) -> None:
    """Each row once; those that came from no topic are left."""
    assert groups(questions) == {("python", "KeyError"): (1, 0, 0), ("python", "ValueError"): (4, 0, 1)}

    def allowed(topic: str) -> bool:
        return topic == "orders"

    plan = redrive(questions, allowed, never, dry_run=True)
    assert (plan.published, plan.already, plan.left.total()) == ({"orders": 4}, 0, 1)
    assert groups(questions)["python", "KeyError"] == (1, 0, 0)
    done = redrive(questions, allowed, never, dry_run=False)
    assert (done.published, done.already, done.left.total()) == ({"orders": 4}, 0, 1)
    assert groups(questions) == {("python", "KeyError"): (1, 1, 0), ("python", "ValueError"): (4, 3, 1)}
    again = redrive(questions, allowed, never, dry_run=False)
    assert (again.published, again.already) == ({}, 4)


def test_rows_go_only_where_the_job_reads(questions: LetterQuestions, dead: Publisher) -> None:
    """A letter may say anything of its topic."""
    outcome = redrive(questions, lambda _: False, never, dry_run=False)
    assert (outcome.published, outcome.left.total()) == ({}, 5)
    assert groups(questions)["python", "ValueError"] == (4, 0, 1)


def test_a_redrive_that_is_stopped_publishes_nothing_more(questions: LetterQuestions, dead: Publisher) -> None:
    stopped = redrive(questions, lambda _: True, lambda: True, dry_run=False)
    assert stopped.published == {}
    assert redrive(questions, lambda _: True, never, dry_run=False).published == {"orders": 4}


def test_the_newest_rows(questions: LetterQuestions, dead: Publisher) -> None:
    """The newest first; shortened, with the length that they have."""
    found = questions.newest(DEAD, 3, never)
    assert [(each.offset, each.number) for each in found.rows] == [(2, 0), (1, 1), (1, 0)]
    newest, of_a_file, plain = found.rows
    assert (len(newest.row or ""), newest.row_characters, newest.run) == (ROW_CHARACTERS, 9000, "run-7")
    assert (of_a_file.topic, of_a_file.file) == (None, "file:/in/a.csv")
    assert (plain.topic, plain.source_offset, plain.partition, plain.row_number) == ("orders", 0, 1, 3)
    assert found.note == ""
    assert len(questions.newest(DEAD, 1000, never).rows) == 5
    assert [(each.offset, each.number) for each in questions.newest(DEAD, 2, never).rows] == [(2, 0), (1, 1)]


def test_a_small_batch_after_a_large_one(
    questions: LetterQuestions, dead: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last letters of the large one are shown too; if that has too many, it is said."""
    send(dead, 3, *(letter(number) for number in range(10)))
    send(dead, 4, letter(11))
    found = questions.newest(DEAD, 4, never)
    assert [(each.offset, each.number) for each in found.rows] == [(4, 0), (3, 9), (3, 8), (3, 7)]
    assert found.note == ""
    monkeypatch.setattr(letter_questions, "MOST_LETTERS", 5)
    found = questions.newest(DEAD, 4, never)
    assert [(each.offset, each.number) for each in found.rows] == [(4, 0)]
    assert found.note == "The batch before these has too many letters to show its last 3"


@pytest.mark.parametrize(("name", "most"), [("MOST_LETTERS", 4), ("MOST_BYTES", 1)])
def test_a_plan_is_bounded(
    questions: LetterQuestions, dead: Publisher, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    """As the counts are; a redrive is not."""

    def allowed(topic: str) -> bool:
        return topic == "orders"

    assert redrive(questions, allowed, never, dry_run=True).is_complete
    monkeypatch.setattr(letter_questions, name, most)
    plan = redrive(questions, allowed, never, dry_run=True)
    assert not plan.is_complete
    assert sum(plan.published.values()) < 4
    done = redrive(questions, allowed, never, dry_run=False)
    assert (done.published, done.is_complete) == ({"orders": 4}, True)


def test_too_many_rows(questions: LetterQuestions, dead: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest are looked at, and how many there are is said; also of one batch that alone has too many."""
    monkeypatch.setattr(letter_questions, "MOST_LETTERS", 4)
    counts = questions.count(DEAD, never)
    assert (counts.letters, counts.looked_at, counts.is_complete) == (5, 3, False)
    send(dead, 3, *(letter(number) for number in range(10, 20)))
    counts = questions.count(DEAD, never)
    assert (counts.letters, counts.looked_at, counts.is_complete) == (15, 4, False)
    found = questions.newest(DEAD, 50, never)
    assert len(found.rows) == 4
    assert "have 15 letters; these are of their first 4" in found.note


def test_what_is_masked_is_not_read(config: Config, admin: Admin, dead: Publisher) -> None:
    def mask(topic: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert topic == DEAD
        return batch.select([name for name in batch.schema.names if name != "row"])

    found = LetterQuestions(config, admin, mask).newest(DEAD, 3, never)
    assert [each.row for each in found.rows] == [None] * 3
    assert found.rows[0].error_message == "bad"


def test_broken_letters_do_not_stop_the_others(questions: LetterQuestions, dead: Publisher) -> None:
    """One without a stage, and one of a time that Python does not know."""
    table = pa.Table.from_pylist([letter(6, stage=None), letter(7)], LETTERS)
    place = table.schema.get_field_index("at")
    far = pa.array([0, 2**62], pa.int64()).view(table.schema.field(place).type)
    dead.seal("job", 3, [table.set_column(place, table.schema.field(place), far)], run_id=str(dead.epoch))
    assert groups(questions) == {("", "ValueError"): (1, 0, 0), ("python", "KeyError"): (1, 0, 0)} | {
        ("python", "ValueError"): (5, 0, 1)
    }
    newest = questions.newest(DEAD, 2, never).rows
    assert [(each.offset, each.number, each.stage, each.at) for each in newest] == [
        (3, 1, "python", None),
        (3, 0, None, 0.0),
    ]
    assert redrive(questions, lambda topic: topic == "orders", never, dry_run=False).published == {"orders": 6}


def test_a_topic_of_other_rows(questions: LetterQuestions, source: Publisher) -> None:
    with pytest.raises(ConfigError, match="is no topic of dead letters"):
        questions.count("orders", never)


def test_the_newest_of_an_empty_topic(config: Config, admin: Admin, questions: LetterQuestions) -> None:
    publisher = Publisher(DEAD, config=config, name="bills")
    counts: Any = questions.count(DEAD, never)
    assert (counts.letters, counts.groups, counts.is_complete) == (0, (), True)
    assert questions.newest(DEAD, 50, never).rows == ()
    publisher.close()
