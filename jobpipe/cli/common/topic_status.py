"""The state of topics and their subscriptions: asked of each coordinator, and put into words for tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import Settings
from jobpipe.cli.common.output import count, emit_json, printable, size
from jobpipe.errors import JobpipeError, LinkError, NotAuthorized, TopicNotFound
from jobpipe.plural import counted, seconds
from jobpipe.subscribing.absent_publisher import without_publisher

if TYPE_CHECKING:
    from jobpipe.admin import Admin
    from jobpipe.operations.messages.source_messages import SourceStatus
    from jobpipe.operations.status_operations import SubscriptionStatus, TopicStatus

_TOPIC_FACTS = ("topic", "head", "publishing", "publisher_gone", "served_for")
_FACTS = ("name", "state", "since", "position", "epoch", "lag", "reconnects", "last_seen", "required", "where")


def statuses(admin: Admin, topics: Sequence[str], timeout: float) -> list[TopicStatus]:
    """Return the status of the given topics, or of all that are served; the others are named on standard error.

    One whose coordinator does not answer, or refuses us, does not hide the others; it is named on standard error too.

    Raises:
        TopicNotFound: a given one is not served; says what is known of it.
        LinkError: the coordinator of a given one, or of all, does not answer.
    """
    if topics:
        return [admin.status(topic, timeout) for topic in topics]
    lines = admin.topics()
    if away := [line.name for line in lines if line.location is None]:
        click.echo(f"not served now: {', '.join(map(printable, away))}", err=True)
    found: list[TopicStatus] = []
    silent: JobpipeError | None = None
    for name, answer in admin.answers([line.name for line in lines if line.location is not None], timeout).items():
        if isinstance(answer, JobpipeError):
            if not isinstance(answer, LinkError | TopicNotFound | NotAuthorized):
                raise answer
            silent = answer  # a registration outlives its coordinator by a session; not all topics are for everybody
            said = "refuses us" if isinstance(answer, NotAuthorized) else "does not answer"
            click.echo(f"topic {printable(name)} {said}: {printable(str(answer))}", err=True)
        else:
            found.append(answer)
    if silent is not None and not found:
        raise silent
    return found


def subscription_lines(
    settings: Settings, topics: Sequence[str], timeout: float, *, as_json: bool
) -> list[tuple[TopicStatus, SubscriptionStatus]]:
    """Return the subscriptions of the given topics, or of all, for a table; none if JSON, or why none, was printed."""
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        found = statuses(admin, topics, timeout)
    lines = [(status, line) for status in found for line in status.subscriptions]
    if as_json:
        emit_json([_as_json(status, line) for status, line in lines])
        return []
    _report_absent(found)
    if not lines:
        click.echo("no subscriptions" if found else "no topic is served")
    return lines


def _as_json(status: TopicStatus, line: SubscriptionStatus) -> dict[str, object]:
    topic, subscription = status.to_json(), line.to_json()
    return {key: topic[key] for key in _TOPIC_FACTS} | {key: subscription[key] for key in _FACTS}


def _report_absent(found: Sequence[TopicStatus]) -> None:
    """Say on standard error which topics have no publisher now."""
    for status in found:
        if (why := without_publisher(status)) is not None:
            click.echo(f"topic {status.topic}: {printable(why)}", err=True)


def publisher(status: TopicStatus) -> str:
    """Return who publishes a topic, or what is known where there is no publisher."""
    return without_publisher(status) or status.publisher


def source_pairs(source: SourceStatus | None) -> list[tuple[str, object]]:
    """Return how the database stands whose changes a topic has, each fact with its name; [] without one."""
    if source is None:
        return []
    lag = "not known yet" if source.behind_seconds is None else seconds(source.behind_seconds)
    safe = "" if source.safe_bytes is None else f", {size(source.safe_bytes)} more before it removes changes"
    reading = [
        f"{table.name} ({count(table.rows)}{'' if table.estimate is None else f' of about {count(table.estimate)}'})"
        for table in source.tables
    ]
    more = [f"{counted(source.more_tables, 'more table')}"] if source.more_tables else []
    return [
        ("source", f"{source.position}, as of {seconds(source.age)} ago"),
        ("source lag", f"{lag}, {size(source.behind_bytes)} of its log"),
        ("source keeps", "not known" if source.retained_bytes is None else f"{size(source.retained_bytes)}{safe}"),
        ("source reads", ", ".join([*reading, *more]) or None),
    ]


def position(line: SubscriptionStatus) -> str | None:
    """Return a subscription's position: its offset, and the epoch of what lies before."""
    offset = count(line.position)
    return offset if line.epoch is None else f"{offset} (epoch {line.epoch})"


def connection(line: SubscriptionStatus) -> str:
    """Return the state of a subscription's link, and for how long."""
    since = seconds(line.since)
    return line.state if since is None else f"{line.state} for {since}"


def last_seen(line: SubscriptionStatus) -> str | None:
    """Return how long ago a subscription's reader was heard of."""
    seen = seconds(line.last_seen)
    return None if seen is None else f"{seen} ago"


def holder(line: SubscriptionStatus) -> str | None:
    """Return where a subscription's reader runs, or ran."""
    return None if line.where is None else f"{line.where.host}, pid {line.where.pid}"
