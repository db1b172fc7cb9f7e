"""``jobpipe registry``: the embedded ZooKeeper of the configured home, or a look at the ensemble."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.cli.common.output import emit_json, emit_pairs, emit_table
from jobpipe.errors import ConfigError, RegistryUnavailable

if TYPE_CHECKING:
    from jobpipe.config import Config
    from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper


@click.group()
def registry() -> None:
    """Start, stop and inspect the registry."""


@registry.command()
@click.option(
    "--linger",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds without a session after which it stops by itself.",
)
@pass_settings
def start(settings: Settings, linger: float) -> None:
    """Start the embedded ZooKeeper of jobpipe.home, unless it is running, and print its endpoint.

    This is optional: the first job that needs the embedded ZooKeeper starts it.
    """
    from jobpipe.config.home_folder import make_home
    from jobpipe.discovery.registry_handler import map_registry_errors

    server = _embedded(settings.config, linger)
    make_home(settings.config.home)
    with map_registry_errors():
        click.echo(server.ensure())


@registry.command()
@pass_settings
def stop(settings: Settings) -> None:
    """Stop the embedded ZooKeeper of jobpipe.home, even while jobs use it. Its data is kept."""
    from jobpipe.discovery.registry_handler import map_registry_errors

    server = _embedded(settings.config)
    with map_registry_errors():
        click.echo("stopped" if server.stop() else "it was not running")


@registry.command()
@json_option
@pass_settings
def status(settings: Settings, as_json: bool) -> int:
    """Read the registry and report its state. Starts nothing.

    Exits with 1 if the embedded ZooKeeper is not running, with 3 if a registry does not answer. JSON keys: connect,
    embedded, running, endpoint, pid, since, namespace, topics, answer_seconds.
    """
    from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

    config = settings.config
    facts: dict[str, Any] = {"connect": config.registry_connect, "embedded": config.embedded, "running": True}
    facts |= {"endpoint": config.registry_connect, "pid": None, "since": None, "namespace": config.namespace}
    facts |= {"topics": None, "answer_seconds": None}
    if config.embedded:
        server = EmbeddedZooKeeper(config.home).status()
        facts |= {"running": server is not None, "endpoint": None}
        if server is not None:
            since = datetime.fromtimestamp(server.since, UTC).isoformat(timespec="seconds")
            facts |= {"endpoint": server.endpoint, "pid": server.pid, "since": since}
    if facts["running"]:
        facts |= _read(config)
    if as_json:
        emit_json(facts)
    elif facts["running"]:
        emit_pairs((name.replace("_", " "), value) for name, value in facts.items() if value is not None)
    else:
        click.echo(f"the embedded ZooKeeper of {config.home} is not running; the first job that needs it starts it")
    return Exit.OK if facts["running"] else Exit.UNHEALTHY


@registry.command()
@click.option(
    "--fix",
    is_flag=True,
    help="Give each node the ACL of jobpipe.registerserver.acl. Run this as the jobs' identity: `auth` means you.",
)
@json_option
@pass_settings
def acl(settings: Settings, fix: bool, as_json: bool) -> int:
    """List the nodes that grant strangers more than jobpipe.registerserver.acl says.

    A stranger is a client that does not authenticate. Permissions: c(reate), r(ead), w(rite), d(elete), a(dminister).
    Exits with 1 if any node is left as it was. JSON keys of each: path, permissions, fixed, error.
    """
    from jobpipe.discovery.registry_handler import map_registry_errors, open_handler
    from jobpipe_registry.zookeeper.zookeeper_handler import ZooKeeperRegisterServerHandler

    handler = open_handler(settings.config)
    try:
        if not isinstance(handler, ZooKeeperRegisterServerHandler):
            raise ConfigError("this handler has no ACLs", key="jobpipe.registerserver.handler")
        with map_registry_errors():
            found = handler.exposed_nodes()
        lines = [_closed(handler, node.path, node.permissions, fix) for node in found]
    finally:
        handler.shutdown()
    if as_json:
        emit_json(lines)
    elif lines:
        columns = ("path", "permissions", "fixed", "error")
        emit_table([name.upper() for name in columns], ([line[name] for name in columns] for line in lines))
    else:
        click.echo("none: all nodes are as jobpipe.registerserver.acl says", err=True)
    if not as_json and settings.config.registry_acl in (None, "open") and not _knows_us(settings.config):
        click.echo(
            "but the ACL is open: anyone who can reach it may change every node; see docs/registry-security.md",
            err=True,
        )
    return Exit.OK if all(line["fixed"] for line in lines) else Exit.UNHEALTHY


@registry.command()
@click.argument("topic")
@click.option(
    "--dry-run", is_flag=True, help="Only show the values in the registry and the log, and what they would become."
)
@click.option(
    "--epoch",
    type=click.IntRange(min=0),
    help="The epoch of the topic's log, if its catalog is not on this host; 0 if the spool is lost for good.",
)
@json_option
@pass_settings
def repair(settings: Settings, topic: str, dry_run: bool, epoch: int | None, as_json: bool) -> int:
    """Repair the epoch of TOPIC, or its recovery point, after another program has overwritten it.

    A publisher refuses a topic if its epoch in the registry is not a number, or is further above the epoch of its log
    than takeovers can explain. This command sets the epoch in the registry to that of the log. If the epoch of the log
    is at the end of the range, it is lowered. Run the command on the host of the spool, while the topic has no
    publisher. Batches, subscriptions and checkpoints stay as they are.

    A recovery point (acks=all) that is invalid, or has such an epoch, is removed. If the spool is lost too, the next
    publisher begins a new log, and subscribers need new checkpoints to read it.

    Exits with 1 if something is wrong and was not repaired (--dry-run, or a publisher has the topic). JSON keys: topic,
    registered, data, catalog, epoch, owner, to_registered, to_epoch, recovery_point, done.
    """
    from jobpipe.discovery.epoch_repair import repair_epoch

    found = repair_epoch(settings.config, topic, epoch=epoch, dry_run=dry_run)
    if as_json:
        emit_json(found.to_json())
    else:
        unreadable = "not a number" if found.data is not None else "none"
        registered = unreadable if found.registered is None else found.registered
        lines: list[tuple[str, Any]] = [
            ("epoch in the registry", registered),
            ("its node holds", found.data if found.registered is None else None),
            ("epoch of the log", found.epoch),
            ("catalog", found.catalog),
            ("publisher", found.owner),
        ]
        verb = "now" if found.done else "would become"
        lines += [(f"registry {verb}", found.to_registered), (f"log {verb}", found.to_epoch)]
        if found.recovery_point is not None:
            removed = "is removed" if found.done else "would be removed"
            lines.append(("recovery point", f"{found.recovery_point}; it {removed}"))
        emit_pairs((name, value) for name, value in lines if value is not None)
        if not found.wrong:
            click.echo("nothing to repair", err=True)
    return Exit.UNHEALTHY if found.wrong and not found.done else Exit.OK


def _knows_us(config: Config) -> bool:
    return config.embedded or config.registry_sasl_mechanism is not None or config.registry_ssl_cert is not None


def _closed(handler: Any, path: str, permissions: str, fix: bool) -> dict[str, Any]:
    from jobpipe.discovery.registry_handler import map_registry_errors

    error = None
    if fix:
        try:
            with map_registry_errors():
                handler.protect(path)
        except RegistryUnavailable as failure:
            error = failure.message
    return {"path": path, "permissions": permissions, "fixed": fix and error is None, "error": error}


def _embedded(config: Config, linger: float = 60.0) -> EmbeddedZooKeeper:
    from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

    if not config.embedded:
        raise ConfigError(
            f"jobpipe.registerserver.connect is {config.registry_connect}: jobpipe starts and stops only an embedded "
            "ZooKeeper. `jobpipe registry status` shows the state of any other",
            key="jobpipe.registerserver.connect",
        )
    return EmbeddedZooKeeper(config.home, linger=linger)


def _read(config: Config) -> dict[str, Any]:
    """Open a session and list the topics: what a subscriber does first."""
    from jobpipe.discovery.registry_handler import map_registry_errors, open_handler

    began = time.monotonic()
    handler = open_handler(config)
    try:
        with map_registry_errors():
            topics = len(handler.topics())
        return {"topics": topics, "answer_seconds": round(time.monotonic() - began, 3)}
    finally:
        handler.shutdown()
