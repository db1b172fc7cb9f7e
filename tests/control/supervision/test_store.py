"""The server's store: what is kept, how long, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobpipe.control.topics_to_serve import TopicsOfJobs
from jobpipe.errors import StoreError
from jobpipe.jobs.storage import job_store as stores
from jobpipe.jobs.storage.interval_store import IntervalStore, ScheduleRow
from jobpipe.jobs.storage.job_rows import (
    AttemptRow,
    DefinitionRow,
    JobRow,
    JobSubscription,
    LeaseHolder,
    PipelineRow,
    RevisionChanges,
    RunRow,
)
from jobpipe.jobs.storage.job_store import Store
from jobpipe.pipelines.file.spec import ScheduleSpec
from jobpipe.pipelines.model.graph import TopicNode
from jobpipe.pipelines.model.job_states import DesiredState, JobState
from tests.pipelines.waiting import eventually

JOB = JobRow(
    pipeline="p",
    name="j",
    position=0,
    kind="query",
    scheduled=False,
    in_definition=True,
    want=DesiredState.RUN,
    reset_checkpoint=False,
    digest="d",
    reads=("a",),
    publishes=("b", "c"),
    subscriptions=(JobSubscription(topic="a", name="p.j"),),
)
RUN = RunRow(id="r", pipeline="p", job="j", state=JobState.SUBMITTED, began=1.0, since=1.0)
ATTEMPT = AttemptRow(
    run="r",
    pipeline="p",
    job="j",
    number=1,
    version=1,
    state=JobState.SUBMITTED,
    began=2.0,
    holder=LeaseHolder(host="h", boot="b", pid_namespace=1, pid=2, started=3.5, ticks=4),
)


def definition(version: int) -> DefinitionRow:
    return DefinitionRow(pipeline="p", version=version, file=Path("/f"), folder=Path("/"), tree="{}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server" / "server.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    found = Store(path, lambda: 5.0)
    found.put_pipeline(PipelineRow(name="p", version=1, want=DesiredState.RUN, submitted=1.0))
    found.add_definition(definition(1))
    found.put_job(JOB)
    found.add_run(RUN)
    yield found
    found.close()


def test_rows_come_back_as_they_were(store: Store, path: Path) -> None:
    store.begin_attempt(ATTEMPT)
    again = Store(path, lambda: 5.0)
    assert again.job("p", "j") == replace(JOB, last_attempt=1)
    assert again.run("r") == replace(RUN, attempts=1)
    assert again.open_attempt("p", "j") == ATTEMPT
    assert again.definition("p", 1) == definition(1)
    assert again.pipelines() == [PipelineRow(name="p", version=1, want=DesiredState.RUN, submitted=1.0)]
    again.close()


def test_a_job_has_one_open_attempt(store: Store) -> None:
    store.begin_attempt(ATTEMPT)
    with pytest.raises(StoreError, match="UNIQUE"):
        store.begin_attempt(replace(ATTEMPT, number=2))
    assert store.job("p", "j") == replace(JOB, last_attempt=1)
    store.change_attempt("r", 1, open=False)
    store.begin_attempt(replace(ATTEMPT, number=2))


def test_an_attempt_that_was_not_ordered_is_forgotten(store: Store) -> None:
    store.begin_attempt(ATTEMPT)
    store.forget_attempt("r", 1)
    store.forget_attempt("r", 1)
    assert (store.run("r"), store.open_attempt("p", "j")) == (RUN, None)


def test_a_change_is_made_whole_or_not_at_all(store: Store) -> None:
    def change() -> None:
        with store.write():
            store.change_run("r", state=JobState.RUNNING)
            store.add_event("p", "j", "state")
            store.add_run(RUN)

    with pytest.raises(StoreError, match="UNIQUE"):
        change()
    assert store.run("r") == RUN
    assert store.events(0, 10) == []


def test_events_are_told_of_after_their_change(path: Path) -> None:
    event_added: list[int] = []
    store = Store(path, lambda: 5.0, event_added=lambda: event_added.append(len(store.events(0, 10))))
    with store.write():
        store.add_event("p", None, "submitted")
        store.add_event("p", "j", "state", state=JobState.RUNNING, detail="x" * 2000, fields={"a": 1})
        assert event_added == []
    assert event_added == [2]
    first, second = store.events(0, 10)
    assert (first.at, first.job, first.state, first.what) == (5.0, None, None, "submitted")
    assert (second.state, len(second.detail), second.fields) == (JobState.RUNNING, 1000, {"a": 1})
    store.close()


def test_nothing_grows_without_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = (("MOST_RUNS", 3), ("MOST_ATTEMPTS", 4), ("MOST_EVENTS", 50), ("_PRUNE_EVENTS", 10))
    for name, most in (*bounds, ("MOST_DEFINITIONS", 2)):
        monkeypatch.setattr(stores, name, most)
    for number in range(1, 10):
        store.begin_attempt(replace(ATTEMPT, number=number))
        store.change_attempt("r", number, open=False, ended=3.0)
    assert [each.number for each in store.attempts("r")] == [6, 7, 8, 9]
    store.change_run("r", ended=3.0)
    for number in range(6):
        store.add_run(replace(RUN, id=f"r{number}", ended=4.0))
    assert [run.id for run in store.runs("p", None, 10)] == ["r5", "r4", "r3"]
    assert [run.id for run in store.runs(None, None, 2)] == ["r5", "r4"]
    assert store.attempts("r") == []
    for _ in range(200):
        store.add_event("p", None, "told")
    kept = [event.id for event in store.events(0, 1000)]
    assert kept == list(range(kept[0], store.newest_event() + 1))
    assert 50 <= len(kept) < 50 + 100
    for version in (2, 3):
        store.add_definition(definition(version))
    assert [each.version for each in store.definitions("p")] == [3, 2]
    written = len("{}") + len(json.dumps(asdict(RevisionChanges())))
    monkeypatch.setattr(stores, "MOST_DEFINITION_CHARACTERS", 2 * written)
    store.add_definition(definition(4))
    assert [each.version for each in store.definitions("p")] == [4, 3]
    monkeypatch.setattr(stores, "MOST_DEFINITION_CHARACTERS", 2 * written - 1)
    store.add_definition(definition(5))
    assert [each.version for each in store.definitions("p")] == [5]


def test_definitions_of_attempts_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MOST_DEFINITIONS", 1)
    store.begin_attempt(ATTEMPT)
    for version in (2, 3):
        store.add_definition(definition(version))
    assert [store.definition("p", version) is not None for version in (1, 2, 3)] == [True, False, True]


def test_what_a_revision_changed_is_kept(store: Store) -> None:
    changes = RevisionChanges(added=("a", "b"), settings=("pipeline.alerts",))
    made = replace(definition(2), submitted=7.5, submitter="certificate anna.jobpipe", changes=changes)
    store.add_definition(made)
    assert store.definition("p", 2) == made
    assert store.definitions("p") == [replace(made, tree=""), replace(definition(1), tree="")]


def test_a_file_of_the_format_before_is_taken(store: Store, path: Path) -> None:
    """Its newest definition was submitted when the pipeline was; of others that is not known; nothing else is lost."""
    schedule = ScheduleRow(pipeline="p", job="j", spec=ScheduleSpec(every="hour"), accepted=datetime.now(UTC))
    IntervalStore(store).put_schedule(schedule)
    store.add_definition(definition(2))
    store.put_pipeline(PipelineRow(name="p", version=2, want=DesiredState.RUN, submitted=1.0))
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for column in ("submitted", "submitter", "changes"):
            connection.execute(f"ALTER TABLE definitions DROP COLUMN {column}")
        connection.execute("ALTER TABLE pipelines DROP COLUMN born")
        connection.execute("DROP TABLE alerted")
        connection.execute("DROP TABLE alerts")
        connection.execute("DROP TABLE moves")
        connection.execute("UPDATE schedules SET spec = json_set(spec, '$.\"max-active-runs\"', 1)")
        assert "max-active-runs" in connection.execute("SELECT spec FROM schedules").fetchone()[0]
        connection.execute("PRAGMA user_version = 3")
    with contextlib.closing(Store(path, lambda: 5.0)) as again:
        assert again.definition("p", 1) == definition(1)
        assert again.definition("p", 2) == replace(definition(2), submitted=1.0)
        assert again.job("p", "j") == JOB
        assert again.pipelines() == [PipelineRow(name="p", version=2, want=DesiredState.RUN, submitted=1.0)]
        assert IntervalStore(again).schedule("p", "j") == schedule
        assert (again.last_alerted_event(), again.waiting_alerts()) == (None, {})
    with contextlib.closing(Store(path, lambda: 5.0)) as once_more:
        assert once_more.definition("p", 2) == replace(definition(2), submitted=1.0)


def test_alerts_wait_until_they_are_removed(store: Store, path: Path) -> None:
    store.add_alerts(7, [(1, 10.0), (2, 11.0)])
    store.add_alerts(9, ())
    store.remove_alert(7, 1)
    store.close()
    with contextlib.closing(Store(path, lambda: 5.0)) as again:
        assert (again.last_alerted_event(), again.waiting_alerts()) == (9, {(7, 2): 11.0})


def test_cleanup_tasks_are_kept_until_they_are_done(store: Store) -> None:
    store.add_cleanup_task("p", "j", JOB.subscriptions[0])
    store.add_cleanup_task("p", "j", None)
    store.add_cleanup_task("p", "k", None)
    store.add_cleanup_task("p", "j", JobSubscription(topic="z", name="p.j"))
    store.add_cleanup_task("p", "k", JOB.subscriptions[0])
    first, second, third, fourth, fifth = store.cleanup_tasks(0, 10)
    assert (first.subscription, second.subscription) == (JOB.subscriptions[0], None)
    store.remove_cleanup_tasks(fifth.id)
    store.remove_cleanup_tasks_of(JOB)
    assert store.cleanup_tasks(0, 10) == [third, fourth]  # a topic that it does not read any more
    assert (store.has_cleanup_task(second), store.has_cleanup_task(third)) == (False, True)


def test_a_file_of_a_newer_version_is_refused(store: Store, path: Path) -> None:
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="format 99"):
        Store(path, lambda: 5.0)


def test_events_of_another_file_come_after_those_of_the_one_that_was_moved_away(store: Store, path: Path) -> None:
    for _ in range(3):
        store.add_event("p", "j", "state")
    last = store.newest_event()
    store.close()
    path.rename(path.with_suffix(".old"))
    eventually(lambda: time.time() * 1000 > last + 1)
    with contextlib.closing(Store(path, lambda: 5.0)) as another:
        another.add_event("p", "j", "state", state=JobState.FAILED)
        assert [event.state for event in another.events(last, 10)] == [JobState.FAILED]


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "server.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"server\.db"):
        Store(tmp_path / "server.db", lambda: 5.0)


def test_topics_are_those_that_jobs_publish(store: Store) -> None:
    store.put_job(replace(JOB, name="k", reads=("b",), publishes=()))
    bounded = TopicsOfJobs(store)
    assert bounded.topics() == [TopicNode("b", ("p.j",), ("p.k",)), TopicNode("c", ("p.j",), ())]
    assert (bounded.is_active("p.j"), bounded.is_active("p.k")) == (True, False)
    store.change_run("r", ended=3.0)
    bounded.topics()
    assert not bounded.is_active("p.j")
