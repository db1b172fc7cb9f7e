"""What needs a person's attention: of jobs, topics and schedules, the worst first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jobpipe.control.page.graph_drawing import job_href, topic_href
from jobpipe.control.page.marks import Mark, job_mark, topic_mark
from jobpipe.control.page.page_snapshot import PageSnapshot
from jobpipe.control.page.rendering import seconds
from jobpipe.control.page.views.ledger_page import ledger_href, news_since
from jobpipe.control.page.views.schedules_page import schedule_href
from jobpipe.graph.namespace_graph import TopicState
from jobpipe.ledger.difference_words import count_words
from jobpipe.ledger.hop_states import newest_since
from jobpipe.operations.status_operations import TopicStatus
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.plural import counted

LAG_SECONDS = 300.0  # from which on a lag is named: the default of lag-time in alerts
MOST_CHARACTERS = 300  # of what is said of one
_WORSE = {"alarm": 0, "warn": 1, "good": 2, "": 3}


@dataclass(frozen=True)
class Trouble:
    """One thing, in a sentence, with where to look."""

    mark: Mark
    name: str
    href: str
    said: str


def troubles(snapshot: PageSnapshot) -> tuple[Trouble, ...]:
    """Return all of them, the worst first."""
    found = [
        replace(each, said=_short(each.said))
        for each in (*_of_jobs(snapshot), *_of_topics(snapshot), *_of_hops(snapshot))
    ]
    return tuple(sorted(found, key=lambda each: (_WORSE[each.mark.tone], each.name)))


def _short(text: str) -> str:
    """Return the beginning of a long text: the page that the trouble leads to has all of it."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1].rstrip()}…"


def _of_jobs(snapshot: PageSnapshot) -> Iterator[Trouble]:
    for job in snapshot.jobs.values():
        name, href = f"{job.pipeline}.{job.name}", job_href(job.pipeline, job.name)
        if job.state in (JobState.FAILED, JobState.LOST, JobState.RESTARTING, JobState.BLOCKED):
            yield Trouble(job_mark(job), name, href, job.detail or f"the job is {job_mark(job).word}")
        schedule, href = job.schedule, schedule_href(job.pipeline, job.name)
        if schedule is not None and schedule.problem:
            yield Trouble(Mark("cross", "schedule", "alarm"), name, href, schedule.problem)
        elif schedule is not None and schedule.failed:
            said = f"{counted(schedule.failed, 'interval')} failed: run again, or skip"
            yield Trouble(Mark("cross", "failed", "alarm"), name, href, said)


def _of_topics(snapshot: PageSnapshot) -> Iterator[Trouble]:
    labels = snapshot.graph.labels
    for block in snapshot.graph.blocks:
        said = f"{labels[block.blocked]} waits for {labels[block.by]}"
        yield Trouble(Mark("diamond", "blocked", "warn"), block.topic, topic_href(block.topic), said)
    for topic in snapshot.graph.topics.values():
        if topic.state is TopicState.UNKNOWN:
            said = topic.error or "its coordinator does not answer"
            yield Trouble(topic_mark(topic.state), topic.name, topic_href(topic.name), said)
    for edge in snapshot.graph.edges:
        if edge.lost_batches:
            said = f"{counted(edge.lost_batches, 'batch')} were removed before {edge.name} had read them"
            yield Trouble(Mark("cross", "rows lost", "alarm"), edge.topic, topic_href(edge.topic), said)
        elif (edge.lag_seconds or 0.0) >= LAG_SECONDS:
            said = f"{edge.name} lags by {seconds(edge.lag_seconds)}, {counted(edge.lag_rows or 0, 'row')}"
            yield Trouble(Mark("half", "lagging", "warn"), edge.topic, topic_href(edge.topic), said)


def _of_hops(snapshot: PageSnapshot) -> Iterator[Trouble]:
    """Yield the subscriptions that have committed other rows than were published, as was found in the last day."""
    mark, since = Mark("cross", "rows differ", "alarm"), news_since(snapshot)
    for topic, answer in snapshot.topics.items():
        for line in answer.subscriptions if isinstance(answer, TopicStatus) else ():
            if (newest := newest_since(line.counts, since)) is not None:
                yield Trouble(mark, topic, ledger_href(topic, line.name), f"{line.name}: {count_words(newest)}")
