"""``jobpipe topics leases``: list what bounded reads keep from retention; end one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.output import count, emit_json, emit_table
from jobpipe.plural import seconds

if TYPE_CHECKING:
    from jobpipe.operations.admin_operations import LeaseReply

LEASE_COLUMNS = ("LEASE", "FIRST OFFSET", "LAST OFFSET", "FOR", "ENDS IN", "CONNECTED", "OWNER")


@click.group()
def leases() -> None:
    """List or end leases, which keep rows while spark.read or `jobpipe topics tail` reads them."""


@leases.command("list")
@click.argument("topic")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds to wait.")
@json_option
@pass_settings
def list_them(settings: Settings, topic: str, timeout: float, as_json: bool) -> None:
    """List the leases of TOPIC, at most 100, those that keep most first.

    The owner is the identity in the certificate of the reader that took the lease, or its address if there is no
    encryption. It is unknown if the lease was taken from an earlier coordinator and has not been renewed since.
    """
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        status = admin.status(topic, timeout)
    found = status.leases
    if as_json:
        emit_json([lease.to_json() for lease in found])
    elif found:
        emit_table(LEASE_COLUMNS, map(lease_row, found), right=("FIRST OFFSET", "LAST OFFSET"))
        if status.lease_count > len(found):
            click.echo(f"and {status.lease_count - len(found)} more, which keep less")
    else:
        click.echo("no leases")


def lease_row(lease: LeaseReply) -> list[object]:
    """Return the cells of one lease."""
    first, last = count(lease.first), count(lease.last)
    return [lease.id, first, last, seconds(lease.since), seconds(lease.left), lease.connected, lease.owner]


@leases.command()
@click.argument("topic")
@click.argument("lease")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@json_option
@pass_settings
def drop(settings: Settings, topic: str, lease: str, dry_run: bool, as_json: bool) -> None:
    """End LEASE of TOPIC, so that retention no longer waits for it. `jobpipe topics leases list` shows the names.

    The reader that took the lease continues. It fails with data loss if rows that it has not read yet are removed.
    """
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        done = admin.drop_lease(topic, lease, dry_run=dry_run)
    if as_json:
        emit_json({**done.to_json(), "dry_run": dry_run})
        return
    verb = "would end" if dry_run else "ended"
    owner = done.owner or "a reader from before the coordinator's restart"
    click.echo(f"{verb} lease {lease} of {owner}, which held offsets {count(done.first)} to {count(done.last)}")
