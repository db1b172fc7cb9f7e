"""``jobpipe topics lag``: what each subscription has not read yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.output import count, emit_table, size
from jobpipe.cli.common.topic_status import connection, last_seen, position, subscription_lines
from jobpipe.plural import seconds

if TYPE_CHECKING:
    from jobpipe.operations.status_operations import SubscriptionStatus, TopicStatus

_NUMBERS = ("POSITION", "HEAD", "BATCHES", "ROWS", "BYTES", "TIME", "RECONNECTS")


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds to wait.")
@json_option
@pass_settings
def lag(settings: Settings, topics: tuple[str, ...], timeout: float, as_json: bool) -> None:
    """Show the lag of each subscription of TOPIC, or of all topics that are served.

    Lag is the data that a subscription has not acknowledged. A position is the offset of the next batch to read, and
    the epoch of the publisher that sealed the batch before it. A link is connected, reconnecting (it broke a moment
    ago), or absent. JSON keys of each: topic, head, publishing, publisher_gone (seconds since its process died),
    served_for (seconds, without a publisher), name, state, since, position, epoch, lag (batches, rows, bytes, seconds),
    reconnects, last_seen, required, where.
    """
    if lines := subscription_lines(settings, topics, timeout, as_json=as_json):
        emit_table(("TOPIC", "SUBSCRIPTION", "STATE", *_NUMBERS, "LAST SEEN"), map(_row, lines), right=_NUMBERS)


def _row(of: tuple[TopicStatus, SubscriptionStatus]) -> list[object]:
    status, line = of
    return [
        status.topic,
        line.name,
        connection(line),
        position(line),
        count(status.head),
        count(line.lag.batches),
        count(line.lag.rows),
        size(line.lag.bytes),
        seconds(line.lag.seconds),
        line.reconnects,
        last_seen(line),
    ]
