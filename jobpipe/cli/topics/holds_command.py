"""``jobpipe topics holds``: list what scheduled jobs keep from retention; drop one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.output import count, emit_json, emit_table
from jobpipe.plural import counted, seconds

if TYPE_CHECKING:
    from jobpipe.operations.admin_operations import HoldReply

HOLD_COLUMNS = ("HOLD", "FROM OFFSET", "FOR", "ENDS IN", "STATE", "OWNER")


@click.group()
def holds() -> None:
    """List or drop holds, which keep rows for scheduled jobs until their next run."""


@holds.command("list")
@click.argument("topic")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds to wait.")
@json_option
@pass_settings
def list_them(settings: Settings, topic: str, timeout: float, as_json: bool) -> None:
    """List the holds of TOPIC, those that keep most first, then the gaps.

    A gap reports that a hold was dropped: the hold was not moved in time, or the publisher drops the oldest batches
    when its spool is full. The gap ends when the hold is moved on or released. The owner is the identity in a
    certificate, or an address if there is no encryption.
    """
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        found = admin.holds(topic, timeout)
    if as_json:
        emit_json([hold.to_json() for hold in found])
    elif found:
        emit_table(HOLD_COLUMNS, map(hold_row, found), right=("FROM OFFSET",))
    else:
        click.echo("no holds")


def hold_row(hold: HoldReply) -> list[object]:
    """Return the cells of one hold."""
    ends = None if hold.left is None else seconds(max(0.0, hold.left))
    return [hold.name, count(hold.offset), seconds(hold.since), ends, _state(hold), hold.owner]


def _state(hold: HoldReply) -> str:
    return "holds" if hold.gap is None else f"GAP, {counted(hold.lost, 'batch')} removed: {hold.gap}"


@holds.command()
@click.argument("topic")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@json_option
@pass_settings
def drop(settings: Settings, topic: str, name: str, dry_run: bool, as_json: bool) -> None:
    """Drop hold NAME of TOPIC, so that retention no longer waits for it. For a gap, only the report is removed.

    The scheduled job of the hold fails if rows that it has not read yet are removed before its next run. This needs the
    right `admin` on the topic, or `read` under NAME if your own identity took the hold.
    """
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        done = admin.release(topic, name, dry_run=dry_run)
    if as_json:
        emit_json({**done.to_json(), "dry_run": dry_run})
        return
    click.echo(f"{'would drop' if dry_run else 'dropped'} hold {name} of {done.owner}, which {_kept(done)}")


def _kept(done: HoldReply) -> str:
    kept = f"kept the batches from offset {count(done.offset)} on"
    return kept if done.gap is None else f"had {kept}, and was a gap"
