"""What a browser shows of a core in memory, and a small world for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from jobpipe.control.control_service import JobStatus, PipelineStatus
from jobpipe.errors import JobpipeError
from jobpipe.metrics.metric_samples import TopicsSnapshot
from jobpipe.operations.messages.application import Application
from jobpipe.operations.status_operations import Lag, TopicStatus
from jobpipe.pipelines.model.job_states import DesiredState, JobState
from tests.control_api.kit import MemoryControl, Served
from tests.statuses import subscription_status, topic_status


def job_status(name: str, pipeline: str = "flights", state: JobState = JobState.RUNNING, **given: Any) -> JobStatus:
    """Return the status of a job that has run once."""
    fields: dict[str, Any] = {
        "kind": "query",
        "want": DesiredState.RUN,
        "known_at": 1000.0,
        "since": 1000.0,
        "run": "run-1",
        "attempt": 1,
        "attempts": 1,
        "rows": 1200,
        "batches": 3,
    }
    return JobStatus(pipeline=pipeline, name=name, state=state, **{**fields, **given})


def put_pipeline(control: MemoryControl, *jobs: JobStatus, name: str = "flights") -> None:
    """Let the server have a pipeline with these jobs."""
    control.statuses[name] = PipelineStatus(
        name=name, file=Path("/srv/pipeline.yaml"), version=1, want=DesiredState.RUN, submitted=1000.0, jobs=jobs
    )


def application(name: str) -> Application:
    """Return the application of a job, whose name is ``pipeline.job``, or of a program."""
    pipeline, _, job = name.partition(".")
    return Application(id=f"id-{name}"[:96], name=name, pipeline=pipeline if job else "", job=job)


def topic(
    name: str,
    publisher: str,
    readers: Mapping[str, tuple[int, float]],
    *,
    absent: Collection[str] = (),
    rows: int = 0,
    at: float = 0.0,
    **given: Any,
) -> TopicStatus:
    """Return the status of a topic; readers by their subscriptions, with their lags in rows and seconds.

    Each has acknowledged one batch for each row, so that its position moves; those in ``absent`` do not run.
    """
    lines = tuple(
        replace(
            subscription_status(
                reader,
                position=rows,
                application=application(reader),
                state="absent" if reader in absent else "connected",
            ),
            lag=Lag(1, late[0], 0, late[1]),
        )
        for reader, late in readers.items()
    )
    fields: dict[str, Any] = {"publisher": publisher, "application": application(publisher), "subscriptions": lines}
    return topic_status(name, rows=rows, at=at, **{**fields, **given})


def put_topics(control: MemoryControl, *topics: TopicStatus, error: JobpipeError | None = None) -> None:
    """Let these topics be served."""
    control.topics = TopicsSnapshot({each.topic: each for each in topics}, 0.0, error)


def flights(control: MemoryControl) -> None:
    """Let two jobs run, with a topic between them."""
    put_pipeline(
        control, job_status("publish", publishes=("flights",)), job_status("report", reads=("flights",), rows=900)
    )
    put_topics(control, topic("flights", "flights.publish", {"flights.report": (300, 2.5)}, rows=1200, at=10.0))


@dataclass
class Shown:
    """A browser's page on a server; ``expected``: parts of errors that the browser reports, and a test means."""

    page: Page
    served: Served
    expected: list[str] = field(default_factory=list)

    def sign_in(self, right: str = "operate") -> None:
        """Open the address that the server prints."""
        client = self.served.client if right == "operate" else self.served.viewer
        self.page.goto(client.sign_in_code().path)
        self.page.wait_for_url("**/")

    def open(self, path: str) -> None:
        """Open a page, and wait until it is live."""
        self.page.goto(path)
        self.wait_live()

    def wait_live(self) -> None:
        """Wait until the page is live."""
        self.page.wait_for_selector("#live[data-state=live]")

    def tell(self) -> None:
        """Let something happen, so that open pages look again at once."""
        self.served.control.tell("state")

    def main(self) -> str:
        """Return the text below the bar."""
        return self.page.locator("#main").inner_text()
