"""``jobpipe subscriptions``: list durable positions; move or drop those of readers that do not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.offset_argument import PlaceType
from jobpipe.cli.common.output import count, emit_json, emit_table, printable
from jobpipe.cli.common.topic_status import connection, holder, last_seen, position, subscription_lines
from jobpipe.store.reading.boundary import Boundary

if TYPE_CHECKING:
    from jobpipe.operations.status_operations import SubscriptionStatus, TopicStatus

_dry_run = click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")


@click.group()
def subscriptions() -> None:
    """List, move, drop or require subscriptions.

    `seek` and `drop` are refused while a running subscriber holds the name.
    """


@subscriptions.command("list")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds to wait.")
@json_option
@pass_settings
def list_them(settings: Settings, topics: tuple[str, ...], timeout: float, as_json: bool) -> None:
    """List the subscriptions of TOPIC, or of all topics that are served.

    A position is the offset of the next batch to read, and the epoch of the publisher that sealed the batch before it.
    JSON keys of each as those of `jobpipe topics lag`.
    """
    if lines := subscription_lines(settings, topics, timeout, as_json=as_json):
        columns = ("TOPIC", "SUBSCRIPTION", "STATE", "POSITION", "LAG BATCHES", "LAST SEEN", "REQUIRED", "HOLDER")
        emit_table(columns, map(_row, lines), right=("POSITION", "LAG BATCHES"))


def _row(of: tuple[TopicStatus, SubscriptionStatus]) -> list[object]:
    status, line = of
    return [
        status.topic,
        line.name,
        connection(line),
        position(line),
        count(line.lag.batches),
        last_seen(line),
        line.required,
        holder(line),
    ]


@subscriptions.command()
@click.argument("topic")
@click.argument("name")
@click.option(
    "--to",
    type=PlaceType("earliest", "latest"),
    required=True,
    metavar="earliest|latest|OFFSET|TIME",
    help="Where the next new checkpoint begins. TIME means the first batch published then or later.",
)
@_dry_run
@json_option
@pass_settings
def seek(settings: Settings, topic: str, name: str, to: Boundary, dry_run: bool, as_json: bool) -> None:
    """Move subscription NAME of TOPIC to another position.

    A checkpoint with a committed batch continues from its own position. So `seek` is for readers that start with a new
    checkpoint, have committed nothing yet, or read without Spark. A flow continues from its cursors: it is refused
    until `jobpipe topics flows reset` has deleted them. This needs the right `admin` on the topic, or `read`
    under NAME.
    """
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        if (kept_in := admin.flow_keeper(topic, name)) is not None:
            raise click.UsageError(
                f"{printable(name)} is a flow: its next start goes on at its cursors, which topic {printable(kept_in)} "
                f"keeps. Stop the flow, and run `jobpipe topics flows reset {printable(name)}` before this"
            )
        done = admin.seek(topic, name, to, dry_run=dry_run)
    if as_json:
        emit_json({**done.to_json(), "dry_run": dry_run})
        return
    click.echo(f"{'would move' if dry_run else 'moved'} {name} from {_offset(done.before)} to {_offset(done.to)}")


@subscriptions.command()
@click.argument("topic")
@click.argument("name")
@_dry_run
@json_option
@pass_settings
def drop(settings: Settings, topic: str, name: str, dry_run: bool, as_json: bool) -> None:
    """Delete subscription NAME of TOPIC. Rows are no longer kept for it.

    A reader that returns with its checkpoint creates the subscription again at the position of the checkpoint. It fails
    if the rows after that position were removed in the meantime. A required subscription stays required, and acks=all
    waits for it: run `unrequire` first.
    """
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        done = admin.drop(topic, name, dry_run=dry_run)
    if as_json:
        emit_json({**done.to_json(), "dry_run": dry_run})
        return
    click.echo(f"{'would drop' if dry_run else 'dropped'} {name}, which was at {_offset(done.before)}")


@subscriptions.command()
@click.argument("topic")
@click.argument("name")
@_dry_run
@json_option
@pass_settings
def require(settings: Settings, topic: str, name: str, dry_run: bool, as_json: bool) -> None:
    """Make subscription NAME of TOPIC required, while the publisher runs.

    The subscription is created at the oldest batch if it does not exist. It never expires, and acks=all waits for it.
    This lasts until the publisher declares other required subscriptions than before. This needs the right `publish` or
    `admin`.
    """
    _change(settings, topic, name, required=True, dry_run=dry_run, as_json=as_json)


@subscriptions.command()
@click.argument("topic")
@click.argument("name")
@_dry_run
@json_option
@pass_settings
def unrequire(settings: Settings, topic: str, name: str, dry_run: bool, as_json: bool) -> None:
    """Make subscription NAME of TOPIC optional again, while the publisher runs.

    A publisher that waits for the subscription continues. The subscription stays until it is dropped or expires. It is
    optional until the publisher declares other required subscriptions than before. This needs the right `publish` or
    `admin`.
    """
    _change(settings, topic, name, required=False, dry_run=dry_run, as_json=as_json)


def _change(settings: Settings, topic: str, name: str, *, required: bool, dry_run: bool, as_json: bool) -> None:
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        done = admin.require(topic, name, required=required, dry_run=dry_run)
    if as_json:
        emit_json({**done.to_json(), "dry_run": dry_run})
        return
    which = "required" if required else "not required"
    said = f"{name} {'would be' if dry_run else 'is'} {which}" if done.before != required else f"{name} was {which}"
    click.echo(f"{said}; required: {', '.join(done.required) or 'none'}")


def _offset(value: Any) -> str:
    return "no offset yet" if value is None else f"offset {count(value)}"
