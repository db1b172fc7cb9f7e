"""Pages as HTML, without a browser: what is on them, and how their parts differ."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from jobpipe.control.page.marks import job_mark
from jobpipe.control.page.page_snapshot import OLDEST_SECONDS, RATE_SECONDS, PageSnapshots
from jobpipe.control.page.pages import Pages
from jobpipe.control.page.rendering import RenderedPage
from jobpipe.control.page.troubles import troubles
from jobpipe.control.page.views.job_actions import job_actions, pipeline_actions
from jobpipe.control.permissions import Caller, Right
from jobpipe.errors import StoreError, TopicAway
from jobpipe.graph.namespace_graph import EdgeKind
from jobpipe.metrics.metric_samples import TopicsSnapshot
from jobpipe.operations.admin_operations import HoldReply
from jobpipe.operations.messages.source_messages import SourceStatus, TableReading
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.model.job_states import DesiredState, JobState
from tests.control.page.kit import flights, job_status, put_pipeline, put_topics, topic
from tests.control_api.kit import SCHEDULE, MemoryControl

OPERATOR, VIEWER = Caller(Right.OPERATE), Caller(Right.VIEW)
ADDRESSES = (
    "/",
    "/ui/jobs",
    "/ui/jobs/flights/report",
    "/ui/topics",
    "/ui/topics/flights",
    "/ui/schedules",
    "/ui/events",
    "/ui/application?key=application%20id-notebook",
)


class Ticks:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def control() -> MemoryControl:
    made = MemoryControl()
    flights(made)
    made.schedule_views[("flights", "report")] = SCHEDULE
    readers = {"flights.report": (300, 2.5), "notebook": (0, 0.0)}
    put_topics(made, topic("flights", "flights.publish", readers, rows=1200, at=10.0))
    made.tell("state", state=JobState.RUNNING)
    return made


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def snapshots(control: MemoryControl, ticks: Ticks) -> PageSnapshots:
    return PageSnapshots(control, "/test", lambda: 2000.0, ticks)


@pytest.fixture
def pages(control: MemoryControl, snapshots: PageSnapshots) -> Pages:
    return Pages(control, snapshots)


@pytest.mark.parametrize("address", ADDRESSES)
def test_each_part_is_one_element_with_its_id(pages: Pages, address: str) -> None:
    """Ids are there once, so that a script finds what it replaces."""
    page = pages.render(address, OPERATOR)
    assert page.status == 200
    assert page.parts
    ids = re.findall(r'\bid="([^"]*)"', page.main)
    assert len(ids) == len(set(ids))
    for id_, html in page.parts.items():
        assert re.match(rf'<\w+ id="{id_}"', html), html[:60]
        assert html in page.main
    assert "<!--" not in page.main


@pytest.mark.parametrize("address", ADDRESSES)
def test_nothing_needs_what_the_policy_refuses(pages: Pages, address: str) -> None:
    """No inline style, script or handler."""
    main = pages.render(address, OPERATOR).main
    assert not re.search(r"\sstyle=|<script|<style|\son\w+=|javascript:", main)


def test_a_change_of_numbers_changes_parts_alone(
    pages: Pages, control: MemoryControl, snapshots: PageSnapshots
) -> None:
    """And a new job the shape."""
    before = pages.render("/", OPERATOR)
    control.set_state("flights", "report", JobState.BLOCKED)
    snapshots.forget()
    after = pages.render("/", OPERATOR)
    assert after.shape == before.shape
    changed = {id_ for id_, html in after.parts.items() if before.parts[id_] != html}
    assert len(changed) == 2  # the job, and the troubles
    put_pipeline(control, *control.statuses["flights"].jobs, job_status("third"))
    snapshots.forget()
    assert pages.render("/", OPERATOR).shape != before.shape


@pytest.mark.parametrize(
    "address",
    ["/ui/jobs/flights/nothing", "/ui/jobs/no/job", "/ui/topics/none", "/ui/x", "/ui/application", "/ui/jobs/a/b/c"],
)
def test_what_is_not_there_is_said(pages: Pages, address: str) -> None:
    page = pages.render(address, OPERATOR)
    assert (page.status, page.title) == (404, "Not found")


def test_a_store_that_cannot_be_read_is_said(pages: Pages, control: MemoryControl) -> None:
    """With its words, and the next look succeeds."""
    control.raises = StoreError("the disk is full")
    page = pages.render("/", OPERATOR)
    assert page.status == 503
    assert "the disk is full" in page.main
    control.raises = None
    assert pages.render("/", OPERATOR).status == 200


def test_a_job_that_does_not_run_is_in_the_graph(control: MemoryControl, snapshots: PageSnapshots) -> None:
    """With its topics, also those that nothing has published yet."""
    put_pipeline(control, job_status("later", state=JobState.STOPPED, reads=("flights",), publishes=("late",)))
    graph = snapshots.newest().graph
    assert "job flights/later" in graph.applications
    assert graph.topics["late"].rows is None
    assert {(edge.topic, str(edge.state)) for edge in graph.edges if edge.application == "job flights/later"} == {
        ("flights", "absent"),
        ("late", "absent"),
    }


def test_a_topic_that_does_not_answer_is_shown(pages: Pages, control: MemoryControl) -> None:
    control.topics = TopicsSnapshot({"flights": TopicAway("no coordinator"), "other": StoreError("it is broken")}, 0.0)
    assert "not served now" in pages.render("/ui/topics/flights", OPERATOR).main
    assert "it is broken" in pages.render("/ui/topics/other", OPERATOR).main


def test_the_source_of_a_topic_is_shown(pages: Pages, control: MemoryControl, snapshots: PageSnapshots) -> None:
    """Of one that has the changes of a database; its names harm nothing, and a change of it is one part."""
    assert "<h2>Source</h2>" not in pages.render("/ui/topics/flights", OPERATOR).main

    def shown(**given: Any) -> RenderedPage:
        source = SourceStatus(
            position="0/1A2B3C8",
            behind_bytes=3 << 20,
            retained_bytes=1 << 30,
            tables=(TableReading("public.<b>", 500, 20_000), TableReading("public.new", 0)),
            more_tables=2,
            age=1.0,
            **given,
        )
        put_topics(control, topic("flights", "flights.publish", {}, source=source))
        snapshots.forget()
        return pages.render("/ui/topics/flights", OPERATOR)

    first, then = shown(behind_seconds=240.0), shown(behind_seconds=242.0, safe_bytes=5 << 20)
    text = " ".join(re.sub(r"<[^>]*>", " ", first.parts["source"]).split())
    assert "position in the database's log 0/1A2B3C8 lag 4 min" in text
    assert "log to go 3.0 MiB log that the database keeps 1.0 GiB as of 1.0 s ago" in text
    assert "public.&lt;b&gt; (500 of about 20,000 rows), public.new (0 rows), and 2 more tables" in text
    assert "until it removes changes" not in first.main
    assert "5.0 MiB" in then.parts["source"]
    assert then.shape == first.shape
    assert [id_ for id_ in first.parts if first.parts[id_] != then.parts[id_]] == ["source"]


def test_rates_are_of_the_last_seconds(control: MemoryControl, snapshots: PageSnapshots, ticks: Ticks) -> None:
    """Measured from a snapshot that is old enough, if there is one; what is too old says nothing of now."""

    def look(rows: int) -> float | None:
        now = 10.0 + ticks.now
        put_topics(control, topic("flights", "flights.publish", {}, rows=rows, at=now))
        return snapshots.newest().graph.topics["flights"].rows_per_second

    assert look(0) is None
    ticks.now += 2.0
    assert look(200) == 100.0
    for rows in (200, 200, 200, 1000):
        ticks.now += RATE_SECONDS / 4
        rate = look(rows)
    assert rate == 100.0  # (1000 - 200) / 8
    ticks.now += OLDEST_SECONDS + 1
    assert look(9000) is None


def test_many_who_look_ask_once(control: MemoryControl, snapshots: PageSnapshots, ticks: Ticks) -> None:
    for _ in range(5):
        snapshots.newest()
    assert [call[0] for call in control.calls].count("topics_snapshot") == 1
    ticks.now += 2.0
    snapshots.newest()
    assert [call[0] for call in control.calls].count("topics_snapshot") == 2


def test_many_who_look_at_one_page_get_the_same(pages: Pages, snapshots: PageSnapshots) -> None:
    """But not with another right, and not when something has happened."""
    page = pages.render("/ui/jobs", OPERATOR)
    assert pages.render("/ui/jobs", OPERATOR) is page
    assert pages.render("/ui/jobs", VIEWER).main != page.main
    pages.look_again()
    assert pages.render("/ui/jobs", OPERATOR) is not page


@pytest.mark.parametrize(
    ("state", "labels"),
    [
        (JobState.RUNNING, ["Stop", "Restart"]),
        (JobState.BLOCKED, ["Stop", "Restart"]),
        (JobState.STOPPING, ["Stop", "Restart"]),
        (JobState.STOPPED, ["Resume"]),
        (JobState.FAILED, ["Resume"]),
        (JobState.LOST, ["Stop", "Restart a lost job"]),
    ],
)
def test_what_can_be_done_fits_the_state(state: JobState, labels: list[str]) -> None:
    assert [action.label for action in job_actions(job_status("report", state=state))] == labels


@pytest.mark.parametrize("fields", [{"scheduled": True}, {"on_demand": True}])
def test_a_job_whose_runs_others_make_is_resumed_if_it_was_stopped(fields: dict[str, bool]) -> None:
    """However its last run has ended; what is not stopped, its schedule or another program runs."""
    job = job_status("report", state=JobState.FINISHED, **fields)
    assert job_actions(job) == ()
    assert [each.label for each in job_actions(replace(job, want=DesiredState.STOP))] == ["Resume"]


def test_a_stopped_job_is_shown_as_stopped() -> None:
    """Also before its first run; one that failed has failed."""
    job = job_status("report", state=JobState.STOPPED, run=None, scheduled=True)
    assert job_mark(job).word == "scheduled"
    stopped = replace(job, want=DesiredState.STOP)
    assert job_mark(stopped).word == "stopped"
    assert job_mark(replace(stopped, state=JobState.FINISHED, run="run-1")).word == "stopped"
    assert job_mark(replace(stopped, state=JobState.FAILED, run="run-1")).word == "failed"
    assert job_mark(replace(stopped, state=JobState.STOPPING, run="run-1")).word == "stopping"


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({}, "after the micro-batch that it is in. If that takes too long, it is cut short."),
        ({"mode": Mode.BATCH}, "in the middle of its run. It stays stopped"),
        ({"kind": "application"}, "as its program does on SIGTERM. If that takes too long, it is cut short."),
        ({"kind": "flow"}, "when its tasks have published what its function has returned. If that takes too long"),
    ],
)
def test_how_a_job_ends_is_said_by_its_kind(fields: dict[str, str], how: str) -> None:
    stop, restart = job_actions(job_status("report", **fields))
    assert stop.question.startswith(f"flights.report ends {how}")
    assert restart.question.startswith(f"flights.report ends {how.partition('.')[0]}, then a new run begins, ")


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, True),
        ({"kind": "flow"}, True),
        ({"mode": Mode.BATCH, "scheduled": True}, True),
        ({"mode": Mode.BATCH}, False),
        ({"mode": Mode.BATCH, "on_demand": True}, False),
        ({"kind": "application"}, False),
    ],
)
def test_rows_are_kept_for_those_who_have_a_subscription_or_hold(fields: dict[str, object], kept: bool) -> None:
    stop = job_actions(job_status("report", reads=("flights",), **fields))[0]
    assert ("Rows that it has not read are kept for it" in stop.question) is kept
    assert "Rows" not in job_actions(job_status("report", **fields))[0].question


def test_a_run_that_has_not_begun_is_not_restarted() -> None:
    """It begins anyway; one whose attempt waits on a cluster can be begun again."""
    job = job_status("report", state=JobState.SUBMITTED)
    assert [each.label for each in job_actions(job)] == ["Stop", "Restart"]
    assert [each.label for each in job_actions(replace(job, attempt=0))] == ["Stop"]


def test_questions_about_a_pipeline_do_not_name_a_thousand_jobs(control: MemoryControl) -> None:
    put_pipeline(control, *(job_status(f"job-{number}") for number in range(1000)))
    (action,) = pipeline_actions(control.statuses["flights"])
    assert "job-19 and 980 more." in action.question
    assert "job-20" not in action.question


def test_what_was_stopped_is_not_stopped_again(control: MemoryControl) -> None:
    """Of a pipeline that ends; one whose job ends, and would begin again, can be stopped."""
    put_pipeline(control, job_status("report", state=JobState.STOPPING))
    assert [each.label for each in pipeline_actions(control.statuses["flights"])] == ["Stop all"]
    put_pipeline(control, job_status("report", state=JobState.STOPPING, want=DesiredState.STOP))
    assert [each.label for each in pipeline_actions(control.statuses["flights"])] == ["Resume all"]


def test_attention_is_short(pages: Pages, snapshots: PageSnapshots, control: MemoryControl) -> None:
    """The job's page has all of a long detail."""
    put_pipeline(control, job_status("report", state=JobState.FAILED, detail=f"first {'x' * 10_000} last"))
    (trouble,) = troubles(snapshots.newest())
    assert len(trouble.said) == 300
    assert trouble.said.startswith("first x")
    assert trouble.said.endswith("x…")
    assert "x last" in pages.render("/ui/jobs/flights/report", OPERATOR).main
    put_pipeline(control, job_status("report", state=JobState.FAILED, detail="y" * 300))
    snapshots.forget()
    assert troubles(snapshots.newest())[0].said == "y" * 300


def test_a_viewer_gets_no_actions(pages: Pages) -> None:
    for address in ADDRESSES:
        assert "data-path" not in pages.render(address, VIEWER).main
    assert "data-path" in pages.render("/ui/jobs/flights/report", OPERATOR).main


def test_a_hold_of_a_job_is_not_a_box_of_its_own(control: MemoryControl, snapshots: PageSnapshots) -> None:
    """The schedule keeps it while the job does not run, so that no process says whose it is; a view's name counts."""
    put_pipeline(control, job_status("report", reads=("flights",), scheduled=True))
    held = topic(
        "flights",
        "importer",
        {},
        holds=tuple(
            HoldReply(name, "o", 0, 60.0, 1.0, 0) for name in ("flights.report", "flights.report.days", "others")
        ),
    )
    put_topics(control, held)
    graph = snapshots.newest().graph
    assert list(graph.applications) == ["job flights/report", "application id-importer", "subscription others"]
    found = sorted((edge.application, edge.name) for edge in graph.edges if edge.kind is EdgeKind.HOLDS)
    assert found == [
        ("job flights/report", "flights.report"),
        ("job flights/report", "flights.report.days"),
        ("subscription others", "others"),
    ]


def test_a_job_that_failed_says_why_in_its_own_words(pages: Pages, control: MemoryControl) -> None:
    """From the log; what the server stores has no values of rows. One that runs says nothing of the kind."""
    control.lines = ("jobpipe: failed: ValueError: an old one", "jobpipe: failed: ValueError: row 17", "bye")
    put_pipeline(control, job_status("report", state=JobState.FAILED, detail="ValueError (topic flights, offset 3)"))
    main = pages.render("/ui/jobs/flights/report", OPERATOR).main
    assert re.search(r'role="alert">ValueError \(topic flights, offset 3\)\nValueError: row 17</pre>', main)
    put_pipeline(control, job_status("report"))
    pages.look_again()
    assert 'class="error"' not in pages.render("/ui/jobs/flights/report", OPERATOR).main
