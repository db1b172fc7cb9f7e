"""``jobpipe topics describe``: all facts of one topic, from its coordinator.

What it shows comes from ``ServedTopic.status`` (coordinator/topic/served_topic.py) and store/log/catalog_status.py; the
endpoints, host servers and identities are added by ``AdminHandlers._status`` (coordinator/handlers/admin_handlers.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.output import count, emit_json, emit_pairs, emit_table, size
from jobpipe.cli.common.topic_status import connection, holder, last_seen, position, publisher, source_pairs
from jobpipe.cli.topics.flows_command import flow_offsets
from jobpipe.cli.topics.holds_command import HOLD_COLUMNS, hold_row
from jobpipe.cli.topics.leases_command import LEASE_COLUMNS, lease_row
from jobpipe.plural import counted, seconds
from jobpipe.publishing.first_publish_check import author

if TYPE_CHECKING:
    from jobpipe.operations.status_operations import FlowStatus, HostStatus, SubscriptionStatus, TopicStatus

_NUMBERS = ("POSITION", "LAG BATCHES", "LAG ROWS", "LAG BYTES", "LAG TIME", "RECONNECTS")


@click.command()
@click.argument("topic")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds to wait.")
@json_option
@pass_settings
def describe(settings: Settings, topic: str, timeout: float, as_json: bool) -> None:
    """Show the state of TOPIC and of its subscriptions.

    Offsets count batches. A position is the offset of the next batch to read, and the epoch of the publisher that
    sealed the batch before it. Lag is the data that a subscription has not acknowledged. A link is connected,
    reconnecting (it broke a moment ago), or absent. The name of a required subscription stays listed when the
    subscription is dropped.

    With placement "host", host servers are listed with their state (registered, absent, or lost) and how much of the
    topic they keep. A flow is listed if its cursors are kept here: it publishes TOPIC, or reads it and publishes
    nothing. `jobpipe topics flows status` shows more about flows.

    Of a topic that has the changes of a database, its source is shown as the capture has said it last: where it is in
    the database's log, its lag, how much of the log the database keeps for it, and the tables that it still reads.

    Exits with 1 if the topic is not served.
    """
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        status = admin.status(topic, timeout)
    if as_json:
        emit_json(status.to_json())
        return
    emit_pairs([*_pairs(status), *source_pairs(status.source)])
    click.echo()
    if status.hosts:
        emit_table(
            ("HOST SERVER", "STATE", "FOR", "SEGMENTS", "BYTES", "ENDPOINT"),
            (_host(name, kept) for name, kept in status.hosts.items()),
            right=("SEGMENTS", "BYTES"),
        )
        click.echo()
    if status.leases:
        emit_table(LEASE_COLUMNS, map(lease_row, status.leases), right=("FIRST OFFSET", "LAST OFFSET"))
        click.echo()
    if status.holds:
        emit_table(HOLD_COLUMNS, map(hold_row, status.holds), right=("FROM OFFSET",))
        click.echo()
    if status.flows:
        columns = ("FLOW", "SOURCE", "PARTITIONS", "OFFSETS", "IDLE")
        emit_table(columns, map(_flow, status.flows), right=columns[2:])
        click.echo()
    refused = {name: held for name, held in status.identities.items() if any("refused" in kind for kind in held)}
    if refused:
        emit_table(("IDENTITY AT ITS LIMIT", "HOLDS OF THIS COORDINATOR"), map(_identity, refused.items()))
        click.echo()
    if not status.subscriptions:
        click.echo("no subscriptions")
        return
    emit_table(
        ("SUBSCRIPTION", "STATE", *_NUMBERS, "LAST SEEN", "REQUIRED", "HOLDER"),
        map(_subscription, status.subscriptions),
        right=_NUMBERS,
    )


def _pairs(status: TopicStatus) -> list[tuple[str, object]]:
    return [
        ("topic", status.topic),
        ("publisher", publisher(status)),
        ("published last", _last_query(status)),
        ("waits for", status.waiting),
        ("requires", ", ".join(status.required) or None),
        ("ended", status.ended),
        ("endpoint", status.endpoint),
        ("data endpoint", status.data),
        ("parallelism", status.parallelism),
        ("log", status.log),
        ("epoch", status.epoch),
        ("offsets", f"{count(status.tail)} to {count(status.head)} ({counted(status.batches, 'batch')} kept)"),
        ("published", f"{counted(status.rows, 'row')}, {size(status.bytes)}"),
        ("stored", f"{size(status.stored_bytes)}, catalog {size(status.catalog_bytes)}"),
    ]


def _last_query(status: TopicStatus) -> str | None:
    """Return who published the last batch: a query, whose id its checkpoint holds, or a plain publisher."""
    last = status.last_query
    return None if last is None else f"{author(last.query_id)}, batch {last.batch_id}, offset {last.n}"


def _host(name: str, kept: HostStatus) -> list[object]:
    away = seconds(kept.absent) if kept.absent else None
    return [name, kept.state, away, count(kept.segments), size(kept.bytes), kept.endpoint]


def _flow(line: FlowStatus) -> list[object]:
    idle = seconds(min(cursor.idle for cursor in line.cursors))
    offsets = flow_offsets([cursor.n for cursor in line.cursors])
    return [line.flow, line.topic, count(len(line.cursors)), offsets, idle]


def _identity(each: tuple[str, dict[str, int]]) -> list[object]:
    return [each[0], ", ".join(f"{kind}: {count(amount)}" for kind, amount in each[1].items())]


def _subscription(line: SubscriptionStatus) -> list[object]:
    return [
        line.name,
        connection(line),
        position(line),
        count(line.lag.batches),
        count(line.lag.rows),
        size(line.lag.bytes),
        seconds(line.lag.seconds),
        line.reconnects,
        last_seen(line),
        line.required,
        holder(line),
    ]
