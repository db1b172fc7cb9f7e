"""The pages of dead letters: of which jobs, how many, why, and the newest; with a button that redrives them."""

from __future__ import annotations

from urllib.parse import quote

from jobpipe.control.control_service import Control
from jobpipe.control.letters.letter_views import RedriveState, RedriveView
from jobpipe.control.page.graph_drawing import job_href, topic_href
from jobpipe.control.page.page_snapshot import PageSnapshot
from jobpipe.control.page.rendering import RenderedPage, render_page
from jobpipe.control.page.views.page_action import PageAction
from jobpipe.control.permissions import Caller, Right
from jobpipe.errors import JobpipeError, TopicNotFound

ROWS = 50
WAIT_SECONDS = 0.5  # for what is not known yet; the page shows it as soon as it is


def letters_href(topic: str) -> str:
    """Return the address of the page of a topic of dead letters."""
    return f"/ui/dead-letters/{quote(topic, safe='')}"


class DeadLettersPages:
    """Makes them."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def all(self, snapshot: PageSnapshot) -> RenderedPage:
        """Return the page that lists the topics of dead letters."""
        return render_page(
            "dead_letters.html",
            "Dead letters",
            snapshot=snapshot,
            topics=self._control.dead_letters.topics(WAIT_SECONDS),
            letters_href=letters_href,
            job_href=job_href,
        )

    def one(self, topic: str, snapshot: PageSnapshot, caller: Caller) -> RenderedPage:
        """Return the page of one of them."""
        letters, operates = self._control.dead_letters, caller.right.includes(Right.OPERATE)
        try:
            found = letters.topic(topic, WAIT_SECONDS)
        except TopicNotFound as error:
            return render_page("not_found.html", "Not found", 404, error=error)
        rows = plan = None
        problem = ""
        try:
            rows = letters.rows(topic, ROWS, wait=WAIT_SECONDS)
            plan = letters.plan_redrive(topic, WAIT_SECONDS) if operates else None
        except JobpipeError as error:
            problem = error.message
        running = found.redrive is not None and found.redrive.state is RedriveState.RUNNING
        return render_page(
            "dead_letter_topic.html",
            topic,
            snapshot=snapshot,
            found=found,
            rows=rows,
            plan=plan,
            problem=problem,
            running=running,
            action=None if plan is None or running else _redrive(topic, plan),
            may_operate=operates,
            job_href=job_href,
            topic_href=topic_href,
        )


def _redrive(topic: str, plan: RedriveView) -> PageAction | None:
    """Return the button; None if it would publish nothing."""
    if not plan.rows and not plan.error:
        return None
    return PageAction("Redrive", "POST", f"/dead-letters/{quote(topic, safe='')}/redrive", f"{plan.said}.")
