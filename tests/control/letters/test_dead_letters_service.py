"""Dead letters of the server's jobs, without a bus: what is kept, how often it is asked, and redrives."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from jobpipe.control.letters.background_answers import FRESH_SECONDS, STALE_SECONDS, BackgroundAnswers
from jobpipe.control.letters.dead_letters import (
    MOST_REASONS,
    MOST_REDRIVES,
    PLAN_EXPIRES_SECONDS,
    PLAN_SECONDS,
    DeadLetters,
)
from jobpipe.control.letters.letter_questions import MOST_LETTERS
from jobpipe.control.letters.letter_views import LeftView, LetterCounts, LetterJob, RedriveState
from jobpipe.errors import ConfigError, ControlConflict, JobpipeError, LinkBroken, NotAuthorized, TopicNotFound
from jobpipe.jobs.storage.job_store import Store
from jobpipe.pipelines.dead_letters.redrive import AS_IT_IS, Outcome
from tests.control.letters.letters_kit import DEAD, DEADLINE, GROUP, LEFT, ROW, Letters
from tests.pipelines.waiting import eventually


@pytest.fixture
def bus() -> Letters:
    return Letters()


@pytest.fixture
def store() -> Store:
    return Store(None, lambda: 1000.0)


@pytest.fixture
def letters(bus: Letters, store: Store) -> Iterator[DeadLetters]:
    made = DeadLetters(
        bus, store, jobs=lambda: bus.jobs, allowed=bus.allowed, snapshot=bus.snapshot, clock=lambda: 1000.0
    )
    yield made
    bus.gate.set()
    made.close()


def ended(letters: DeadLetters, topic: str = DEAD) -> RedriveState:
    """Wait for the end of a redrive."""
    found = eventually(
        lambda: (view := letters.topic(topic).redrive) is not None and view.state is not RedriveState.RUNNING and view
    )
    return found.state


def test_counts_and_rows(letters: DeadLetters) -> None:
    (found,) = letters.topics(DEADLINE)
    assert (found.pipeline, found.job, found.topic, found.problem, found.redrive) == (
        "flights",
        "report",
        DEAD,
        "",
        None,
    )
    assert found.counts is not None
    assert (found.counts.letters, found.counts.groups, found.counts.is_complete) == (3, (GROUP,), True)
    rows = letters.rows(DEAD, wait=DEADLINE)
    assert rows is not None
    assert rows.rows == (ROW,)
    for limit in (0, 1001):
        with pytest.raises(ConfigError, match="is not from 1 to 1000"):
            letters.rows(DEAD, limit)


def test_many_looks_count_once(letters: DeadLetters, bus: Letters) -> None:
    """A page is made again every two seconds, for each who looks."""
    for _ in range(10):
        letters.topics(DEADLINE)
        letters.rows(DEAD, wait=DEADLINE)
        letters.plan_redrive(DEAD, DEADLINE)
    assert (bus.asked["count"], bus.asked["newest"], bus.asked["plan"]) == (1, 1, 1)


def test_a_topic_of_no_job(letters: DeadLetters) -> None:
    """Neither shown nor redriven: rows of other topics are not for everybody."""
    assert letters.topic(DEAD).topic == DEAD
    for ask in (letters.topic, letters.rows, letters.plan_redrive, lambda topic: letters.redrive(topic, by="token")):
        with pytest.raises(TopicNotFound, match="is not the topic of dead letters of a job"):
            ask("orders")


def test_a_topic_that_is_not_served(letters: DeadLetters, bus: Letters) -> None:
    """Its last counts are shown, with what is wrong."""
    letters.topics(DEADLINE)
    bus.served = False
    (found,) = letters.topics()
    assert "is not served now" in found.problem
    assert found.counts is not None
    with pytest.raises(TopicNotFound):
        letters.rows(DEAD)


@pytest.mark.parametrize("error", [NotAuthorized("no right to read"), RuntimeError("hunter2")])
def test_what_cannot_be_counted_is_said(letters: DeadLetters, bus: Letters, error: Exception) -> None:
    bus.fails = error
    (found,) = letters.topics(DEADLINE)
    assert found.counts is None
    said = "no right to read" if isinstance(error, JobpipeError) else "the server's log says why"
    assert said in found.problem
    assert "hunter2" not in found.problem


def test_a_redrive_and_its_event(letters: DeadLetters, store: Store) -> None:
    """What it would do, does, and did; the event has numbers, and no reason, which may quote a row."""
    plan = letters.plan_redrive(DEAD, DEADLINE)
    assert plan is not None
    assert plan.said == f"A redrive publishes 2 rows to flights again. {LEFT}"
    began = letters.redrive(DEAD, by="token")
    assert (began.state, began.by, began.rows) == (RedriveState.RUNNING, "token", 0)
    assert ended(letters) is RedriveState.DONE
    view = letters.topic(DEAD).redrive
    assert view is not None
    assert view.said == f"It published 2 rows to flights again. {LEFT}"
    (event,) = eventually(lambda: store.events_called("redriven"))
    assert (event.pipeline, event.job) == ("flights", "report")
    assert event.fields["published"] == {"flights": 2}
    assert (event.fields["left"], event.fields["by"], event.fields["outcome"]) == (1, "token", "done")
    assert "file" not in event.detail


def test_rows_go_where_one_of_the_letters_jobs_reads(letters: DeadLetters, bus: Letters) -> None:
    """Not where another job of the server does."""
    bus.jobs.append(LetterJob("flights", "other", "other.dead-letters"))
    bus.jobs.append(LetterJob("flights", "third", DEAD))
    asked: list[str] = []

    def allowed(job: LetterJob) -> Callable[[str], bool]:
        asked.append(job.job)
        return lambda topic: topic == "flights"

    letters._allowed = allowed
    letters.redrive(DEAD, by="token")
    assert ended(letters) is RedriveState.DONE
    assert asked == ["report", "third"]


def test_counts_are_made_again_after_a_redrive(letters: DeadLetters) -> None:
    (before,) = letters.topics(DEADLINE)
    letters.redrive(DEAD, by="token")
    ended(letters)
    assert before.counts is not None
    assert before.counts.groups[0].redriven == 0

    def redriven() -> int | None:
        counts = letters.topic(DEAD).counts
        return None if counts is None else counts.groups[0].redriven

    eventually(lambda: redriven() == 2)
    plan = eventually(lambda: (found := letters.plan_redrive(DEAD, DEADLINE)) is not None and not found.rows and found)
    assert plan.said == (f"A redrive publishes nothing. 2 rows were published again before. {LEFT}")


def test_one_redrive_of_a_topic_at_a_time(letters: DeadLetters, bus: Letters) -> None:
    bus.gate.clear()
    letters.redrive(DEAD, by="token")
    with pytest.raises(ControlConflict, match=r"a redrive of .* is under way"):
        letters.redrive(DEAD, by="token")
    assert bus.asked["redrive"] <= 1
    bus.gate.set()
    assert ended(letters) is RedriveState.DONE
    letters.redrive(DEAD, by="token")
    assert ended(letters) is RedriveState.DONE


def test_redrives_are_bounded(letters: DeadLetters, bus: Letters) -> None:
    bus.jobs = [LetterJob("flights", f"job{number}", f"dead{number}") for number in range(MOST_REDRIVES + 1)]
    bus.gate.clear()
    for number in range(MOST_REDRIVES):
        letters.redrive(f"dead{number}", by="token")
    with pytest.raises(ControlConflict, match="4 redrives are under way"):
        letters.redrive(f"dead{MOST_REDRIVES}", by="token")
    bus.gate.set()
    for number in range(MOST_REDRIVES):
        ended(letters, f"dead{number}")
    letters.redrive(f"dead{MOST_REDRIVES}", by="token")


@pytest.mark.parametrize("error", [NotAuthorized("no right to publish"), RuntimeError("hunter2")])
def test_a_redrive_that_fails(
    letters: DeadLetters, bus: Letters, store: Store, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Its page says why, the event only that; the next one begins."""
    caplog.set_level(logging.INFO)
    bus.fails = error
    letters.redrive(DEAD, by="token")
    assert ended(letters) is RedriveState.FAILED
    view = letters.topic(DEAD).redrive
    assert view is not None
    assert ("no right to publish" if isinstance(error, JobpipeError) else "the server's log says why") in view.said
    (event,) = eventually(lambda: store.events_called("redriven"))
    assert event.detail == f"{DEAD}: the redrive failed, by token; its page says why"
    bus.fails = None
    letters.redrive(DEAD, by="token")
    assert ended(letters) is RedriveState.DONE


@pytest.mark.parametrize("error", [LinkBroken("the link broke"), RuntimeError("hunter2")])
def test_a_redrive_that_fails_after_some_rows(
    letters: DeadLetters, bus: Letters, store: Store, error: Exception
) -> None:
    """They were published, and that is said; another one publishes the rest."""
    bus.then_fails = error
    letters.redrive(DEAD, by="token")
    assert ended(letters) is RedriveState.FAILED
    view = letters.topic(DEAD).redrive
    assert view is not None
    assert view.published == {"flights": 2}
    assert view.said.endswith(". At least 2 rows were published to flights again")
    (event,) = eventually(lambda: store.events_called("redriven"))
    assert event.detail == f"{DEAD}: the redrive failed after at least 2 rows, by token; its page says why"
    assert (event.fields["published"], event.fields["left"], event.fields["outcome"]) == ({"flights": 2}, 1, "failed")


def test_a_redrive_ends_with_the_server(letters: DeadLetters, bus: Letters, store: Store) -> None:
    """Early, and says so; others are refused from then on."""
    bus.gate.clear()
    letters.redrive(DEAD, by="token")
    assert bus.began.wait(DEADLINE)
    letters.close()
    (event,) = store.events_called("redriven")
    assert event.fields["outcome"] == "stopped"
    with pytest.raises(ControlConflict, match="the server ends"):
        letters.redrive(DEAD, by="token")


def test_too_many_letters_are_not_planned(letters: DeadLetters, bus: Letters) -> None:
    """They can be redriven all the same."""
    bus.counts = LetterCounts(letters=MOST_LETTERS + 1, looked_at=MOST_LETTERS, groups=(GROUP,))
    plan = letters.plan_redrive(DEAD, DEADLINE)
    assert plan is not None
    assert plan.said == "There are 20,001 letters: how many rows a redrive publishes again is not known beforehand"
    assert bus.asked["plan"] == 0
    letters.redrive(DEAD, by="token")
    assert ended(letters) is RedriveState.DONE


def test_a_plan_of_a_part_is_none(letters: DeadLetters, bus: Letters) -> None:
    """More may have come since they were counted; or they are large."""
    letters.topics(DEADLINE)
    bus.is_complete = False
    plan = letters.plan_redrive(DEAD, DEADLINE)
    assert plan is not None
    assert plan.said.startswith("There are too many letters, or too large ones: how many rows a redrive")
    assert plan.published == {}


def leave(monkeypatch: pytest.MonkeyPatch, bus: Letters, reasons: dict[str, int]) -> None:
    """Let redrives leave letters for these reasons."""

    def redrive(topic: str, allowed: object, stopped: object, outcome: Outcome, *, dry_run: bool) -> None:
        outcome.left.update(reasons)

    monkeypatch.setattr(bus, "redrive", redrive)


def test_reasons_are_bounded(letters: DeadLetters, bus: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many topics a letter's author makes up."""
    reasons = {f"rows may not go to its topic t{number}": 1 for number in range(MOST_REASONS + 5)}
    leave(monkeypatch, bus, reasons)
    plan = letters.plan_redrive(DEAD, DEADLINE)
    assert plan is not None
    assert len(plan.left) == MOST_REASONS + 1
    assert plan.left[-1].letters == 5


def test_reasons_quote_no_values(letters: DeadLetters, bus: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be those of masked columns."""
    why = f"its row does not fit topic orders {AS_IT_IS}"
    leave(monkeypatch, bus, {f"{why}: '{value}' is no number": 2 for value in ("hunter2", "hunter3")})
    plan = letters.plan_redrive(DEAD, DEADLINE)
    assert plan is not None
    assert plan.left == (LeftView(reason="its row does not fit topic orders as it is now", letters=4),)


class Ticks:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_background_answers() -> None:
    """Made again after a change, but not at once; and after a while without one. Older ones are given meanwhile."""
    ticks, made = Ticks(), [0]
    answers: BackgroundAnswers[int] = BackgroundAnswers("test", ticks=ticks)

    def make() -> int:
        made[0] += 1
        return made[0]

    def get(version: int) -> object:
        return answers.get("key", version, make, wait=DEADLINE)

    try:
        assert [get(1), get(1), get(2)] == [1, 1, 1]
        ticks.now += FRESH_SECONDS - 1
        assert [get(2), get(2)] == [1, 1]
        assert made == [1]
        ticks.now += 2
        assert get(1) == 1
        assert get(2) == 1  # the old one, while it is made
        eventually(lambda: get(2) == 2)
        ticks.now += STALE_SECONDS + 1
        assert get(2) == 2
        eventually(lambda: get(2) == 3)
        answers.forget("key")
        assert answers.known("key") == 3
        assert get(2) == 3
        eventually(lambda: get(2) == 4)
    finally:
        answers.close()
    ticks.now += STALE_SECONDS + 1
    assert get(2) == 4
    assert answers.get("other", 1, make, wait=DEADLINE) is None


def test_an_answer_expires() -> None:
    """It is made again after a while, and not given after a longer one."""
    ticks, made = Ticks(), [0]
    answers: BackgroundAnswers[int] = BackgroundAnswers("test", holds=10.0, expires=30.0, ticks=ticks)

    def make() -> int:
        made[0] += 1
        return made[0]

    try:
        assert answers.get("key", 1, make, wait=DEADLINE) == 1
        ticks.now += 9
        assert answers.get("key", 1, make, wait=DEADLINE) == 1
        assert made == [1]
        ticks.now += 2
        assert answers.get("key", 1, make, wait=DEADLINE) == 1  # the old one, while it is made
        eventually(lambda: answers.get("key", 1, make) == 2)
        ticks.now += 31
        assert answers.get("key", 1, make, wait=DEADLINE) == 3
    finally:
        answers.close()


def test_plans_hold_shorter(letters: DeadLetters, bus: Letters) -> None:
    """A redrive of the command line publishes rows, and the topic of letters stays as it is."""
    ticks = Ticks()
    letters._plans._ticks = letters._counts._ticks = ticks

    def rows() -> int | None:
        plan = letters.plan_redrive(DEAD, DEADLINE)
        return None if plan is None else plan.rows

    assert rows() == 2
    bus.published = True
    ticks.now += PLAN_SECONDS - 1
    assert rows() == 2
    ticks.now += 2
    eventually(lambda: rows() == 0)
    bus.published = False
    ticks.now += PLAN_EXPIRES_SECONDS + 1
    assert rows() == 2


def test_answers_are_bounded() -> None:
    answers: BackgroundAnswers[str] = BackgroundAnswers("test", most=2)
    try:
        for key in ("a", "b", "c"):
            assert answers.get(key, 1, lambda key=key: key, wait=DEADLINE) == key  # type: ignore[misc]
        assert [answers.known(key) for key in ("a", "b", "c")] == [None, "b", "c"]
    finally:
        answers.close()


def test_an_error_is_tried_again_soon() -> None:
    """Though nothing is known to have changed."""
    ticks, asked = Ticks(), [0]
    answers: BackgroundAnswers[int] = BackgroundAnswers("test", ticks=ticks)

    def make() -> int:
        asked[0] += 1
        if asked[0] == 1:
            raise NotAuthorized("not yet")
        return asked[0]

    try:
        assert isinstance(answers.get("key", 1, make, wait=DEADLINE), NotAuthorized)
        assert isinstance(answers.get("key", 1, make), NotAuthorized)
        ticks.now += FRESH_SECONDS + 1
        eventually(lambda: answers.get("key", 1, make) == 2)
    finally:
        answers.close()


def test_an_answer_that_was_forgotten_while_it_was_made_is_made_again() -> None:
    began, gate, made = threading.Event(), threading.Event(), [0]
    answers: BackgroundAnswers[int] = BackgroundAnswers("test")

    def make() -> int:
        began.set()
        assert gate.wait(DEADLINE)
        made[0] += 1
        return made[0]

    try:
        assert answers.get("key", 1, make) is None
        assert began.wait(DEADLINE)
        answers.forget("key")
        gate.set()
        eventually(lambda: answers.get("key", 1, make, wait=DEADLINE) == 2)
    finally:
        answers.close()
