"""``jobpipe topics``: what the registry and this host's spools know; ``jobpipe topics delete``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jobpipe.cli.command_tree import CommandGroup
from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.output import count, emit_json, emit_table, printable, size
from jobpipe.cli.common.topic_status import publisher
from jobpipe.plural import counted

if TYPE_CHECKING:
    from jobpipe.admin import TopicLine
    from jobpipe.deletion import Deletion
    from jobpipe.operations.status_operations import TopicStatus
    from jobpipe.store.log.spool_folders import Spool

_SERVED = ("topic", "served", "endpoint", "parallelism", "epoch", "ssl", "state")
_STATE = ("publisher", "publishing", "publisher_gone", "served_for")


_all = click.option(
    "--all", "everything", is_flag=True, help="Also list topics that are not served, and where their data is."
)
_timeout = click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds to wait."
)


@click.group(cls=CommandGroup, invoke_without_command=True)
@_all
@_timeout
@json_option
@click.pass_context
def topics(ctx: click.Context, everything: bool, timeout: float, as_json: bool) -> None:
    """List the topics of the namespace that are served. With --all, also list those that are not.

    --all adds the topics that the registry knows, and those with a spool in this host's jobpipe.spool.dir. It does not
    see spools on other hosts.

    JSON keys of each topic: topic, served, endpoint, data, parallelism, epoch,
    instance, ssl, publisher, publishing, publisher_gone (seconds since its process died), served_for (seconds, without
    a publisher); all but the first two are null while the topic is not served. With --all also spool (its folder),
    rows, disk_bytes, unread (batches by subscription), serve (the command); null where no spool is here.
    """
    if ctx.invoked_subcommand is None:
        _list(ctx.ensure_object(Settings), everything, timeout, as_json)


@topics.command("list", hidden=True)
@_all
@_timeout
@json_option
@pass_settings
def list_all(settings: Settings, everything: bool, timeout: float, as_json: bool) -> None:
    """List the topics, as `jobpipe topics` does."""
    _list(settings, everything, timeout, as_json)


def _list(settings: Settings, everything: bool, timeout: float, as_json: bool) -> None:
    from jobpipe.admin import Admin

    config = settings.config
    with Admin(config) as admin:
        found = {line.name: line for line in admin.topics()}
        status = admin.statuses([name for name, line in found.items() if line.location is not None], timeout)
        known = sorted({*found, *admin.known_topics()}) if everything else sorted(found)
    lines = {name: _facts(name, found.get(name), status.get(name)) for name in known}
    if everything:
        spools = _spools(config.spool_dir, config.namespace)
        for name in spools.keys() - lines.keys():
            lines[name] = _facts(name, None, None)
        for name, line in lines.items():
            line.update(_spool_facts(spools.get(name), served=line["served"]))
    listed = [lines[name] for name in sorted(lines)]
    if as_json:
        emit_json([{key: value for key, value in line.items() if key != "state"} for line in listed])
    elif not listed:
        click.echo(f"no topics under {config.namespace} (registry {config.registry_connect})", err=True)
    else:
        _print(listed, everything=everything)


@topics.command()
@click.argument("topic")
@click.option("--unread", is_flag=True, help="Delete the topic even if subscriptions have not read all of it.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted; change nothing.")
@pass_settings
def delete(settings: Settings, topic: str, unread: bool, dry_run: bool) -> None:
    """Delete TOPIC: its spool on this host, and its entries in the registry.

    Refused (exit code 1) while the topic is served, or while a subscription has not read all of it. If the topic is
    published again later, it is a new topic: its subscriptions are gone, and queries need new checkpoints.
    """
    from jobpipe.admin import Admin

    with Admin(settings.config) as admin:
        found = admin.delete(topic, unread=unread, dry_run=dry_run)
    for line in _deleted(found, "would delete" if dry_run else "deleted"):
        click.echo(printable(line))


def _deleted(found: Deletion, verb: str) -> list[str]:
    spool = found.spool
    lines = []
    if spool is not None:
        what = f"{counted(spool.head - spool.tail, 'batch')}, {counted(spool.rows, 'row')}, {size(spool.disk_bytes)}"
        lines.append(f"{verb} {spool.directory}: {what}")
    lines += [f"{verb} {directory}, of the host server here" for directory in found.host_files]
    if found.epoch:
        lines.append(f"{verb} topic {found.topic} from the registry (epoch {found.epoch})")
    if found.elsewhere:
        lines.append(f"host server {', '.join(found.elsewhere)} has kept segments; files on other hosts stay there")
    return lines or [f"{verb} topic {found.topic}"]


def _facts(name: str, line: TopicLine | None, status: TopicStatus | None) -> dict[str, Any]:
    place = None if line is None else line.location
    state = None if status is None else publisher(status)
    return {
        "topic": name,
        "served": place is not None,
        "endpoint": None if place is None else str(place.control),
        "data": None if place is None else str(place.data),
        "parallelism": None if place is None else place.parallelism,
        "epoch": None if place is None else place.epoch,
        "instance": None if place is None else place.instance,
        "ssl": None if place is None else place.ssl,
        **{key: getattr(status, key, None) for key in _STATE},
        "state": state,
    }


def _spools(folder: Any, namespace: str) -> dict[str, Spool]:
    """Return the spools of the namespace; those that cannot be read are named on standard error."""
    from jobpipe.errors import SpoolError
    from jobpipe.store.log.spool_folders import list_spools

    found = {}
    for spool in list_spools(folder):
        if isinstance(spool, SpoolError):
            click.echo(f"cannot read a spool: {printable(spool.message)}", err=True)
        elif spool.namespace in (None, namespace):
            found[spool.topic] = spool
    return found


def _spool_facts(spool: Spool | None, *, served: bool) -> dict[str, Any]:
    return {
        "spool": None if spool is None else str(spool.directory),
        "rows": None if spool is None else spool.rows,
        "disk_bytes": None if spool is None else spool.disk_bytes,
        "unread": None if spool is None else spool.unread,
        "serve": None if spool is None or served else f"jobpipe topics serve {spool.topic}",
    }


def _print(lines: list[dict[str, Any]], *, everything: bool) -> None:
    columns = ["TOPIC", "SERVED", "ENDPOINT", "PARALLELISM", "EPOCH", "TLS", "PUBLISHER"]
    rows = [[line[key] for key in _SERVED] for line in lines]
    if everything:
        columns[-1:] = ["ROWS", "DISK", "UNREAD BY", "SPOOL", "PUBLISHER"]
        for row, line in zip(rows, lines, strict=True):
            unread = line["unread"]
            readers = None if unread is None else ", ".join(sorted(unread)) or "none"
            row[-1:] = [count(line["rows"]), size(line["disk_bytes"]), readers, line["spool"], line["state"]]
    emit_table(columns, rows, right=("PARALLELISM", "EPOCH", "ROWS", "DISK"))
    if everything and any(not line["served"] for line in lines):
        click.echo(
            "\nTo serve a topic that is not served: jobpipe topics serve TOPIC, on the host of its spool. "
            "To delete it: jobpipe topics delete TOPIC"
        )
