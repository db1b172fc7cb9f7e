"""``jobpipe certs``: the namespace's CA and the certificates it signs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from jobpipe.cli.context import Settings, json_option, pass_settings
from jobpipe.cli.exits import Exit
from jobpipe.cli.output import emit_json, emit_pairs
from jobpipe.errors import ConfigError

__all__ = ["certs"]

_folder = click.option(
    "--dir", "directory", type=click.Path(path_type=Path, file_okay=False), help="Folder.  [default: certs under home]"
)


@click.group()
def certs() -> None:
    """Make and show certificates."""


@certs.command()
@_folder
@pass_settings
def init(settings: Settings, directory: Path | None) -> None:
    """Make a CA, and a certificate `node` that may publish and subscribe every topic; say how to use them.

    The embedded registry does so by itself on first use. A CA that is there is never replaced. Whoever has ca.key can
    sign for everybody: keep it apart.
    """
    from jobpipe.net.certs import NODE, NODE_NAMES, init_ca, issue

    directory = _chosen(settings, directory)
    init_ca(directory)
    _tell_use(issue(directory, NODE, dns=NODE_NAMES))


@certs.command("issue")
@click.argument("name")
@click.option("--dns", multiple=True, help="DNS name to prove; may be given several times.  [default: NAME.jobpipe]")
@click.option("--topic", "topics", multiple=True, help="Topic to publish: adds its DNS name.")
@click.option("--replace", is_flag=True, help="Renew a certificate that is there, with its key.")
@_folder
@pass_settings
def issue_one(
    settings: Settings,
    name: str,
    dns: tuple[str, ...],
    topics: tuple[str, ...],
    replace: bool,
    directory: Path | None,
) -> None:
    """Make NAME.crt and NAME.key, signed by the CA in the folder."""
    from jobpipe.net.certs import issue, topic_server_name

    names = [*dns, *(topic_server_name(topic) for topic in topics)]
    _tell_use(issue(_chosen(settings, directory), name, dns=names, replace=replace))


@certs.command()
@_folder
@json_option
@pass_settings
def show(settings: Settings, directory: Path | None, as_json: bool) -> int:
    """Show the certificates in force, or all of a folder.

    Ends with 1 if there is none, or one is not valid now. JSON keys of each: file, subject, issuer, names, not_before,
    not_after, is_ca, serial, fingerprint, valid, days_left.
    """
    from jobpipe.net.certs import describe

    config = None if directory is not None else settings.config
    if directory is None and config is not None and config.ssl_ca is not None and config.ssl_cert is not None:
        files = [config.ssl_ca, config.ssl_cert]
    else:
        directory = _chosen(settings, directory)
        files = sorted(directory.glob("*.crt"))
    found = [_facts(path, describe(path)) for path in files]
    if as_json:
        emit_json(found)
    elif not found:
        click.echo(f"no certificates in {directory}: made on first use, or by `jobpipe certs init`", err=True)
    for number, facts in enumerate([] if as_json else found):
        if number:
            click.echo()
        emit_pairs((key.replace("_", " "), ", ".join(v) if key == "names" else v) for key, v in facts.items())
    return Exit.OK if found and all(facts["valid"] for facts in found) else Exit.UNHEALTHY


def _chosen(settings: Settings, directory: Path | None) -> Path:
    if directory is not None:
        return directory.absolute()
    try:
        return settings.config.home / "certs"
    except ConfigError as error:  # it may be wrong only for want of these certificates
        raise ConfigError(f"{error.message}\nsay --dir DIR to work without a configuration", **error.fields) from error


def _facts(path: Path, info: Any) -> dict[str, Any]:
    now = datetime.now(UTC)
    left = info.not_after - now
    facts = {"file": str(path), **asdict(info), "valid": info.not_before <= now < info.not_after}
    facts |= {key: facts[key].isoformat(timespec="seconds") for key in ("not_before", "not_after")}
    return {**facts, "names": list(info.names), "days_left": left.days}


def _tell_use(files: Any) -> None:
    click.echo("jobpipe:")
    click.echo(f"  ssl: {{ca: {files.ca}, cert: {files.cert}, key: {files.key}}}")
