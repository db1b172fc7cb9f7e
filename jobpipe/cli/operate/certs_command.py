"""``jobpipe certs``: the namespace's CA and the certificates it signs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.cli.common.output import emit_json, emit_pairs
from jobpipe.errors import ConfigError

_folder = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the files.  [default: certs under home]",
)


@click.group()
def certs() -> None:
    """Make, renew, revoke and show certificates."""


@certs.command()
@click.option("--ca-only", is_flag=True, help="Make only the CA, without the certificate `node`.")
@_folder
@pass_settings
def init(settings: Settings, ca_only: bool, directory: Path | None) -> None:
    """Make a CA, and a certificate `node` that may publish and read every topic. Prints how to use them.

    The embedded registry does this by itself on first use. An existing CA is never replaced. Anyone who has ca.key can
    issue certificates for any name: keep it in a separate, safe place.
    """
    from jobpipe.net.tls.certificates import NODE, NODE_NAMES, init_ca, issue

    directory = _chosen(settings, directory)
    init_ca(directory)
    if ca_only:
        click.echo(f"copy {directory / 'ca.crt'} to every host; {directory / 'ca.key'} stays here")
    else:
        _print_use(issue(directory, NODE, dns=NODE_NAMES))


@certs.command("issue")
@click.argument("name")
@click.option("--publish", "topics", multiple=True, metavar="TOPIC", help="Let it publish TOPIC; may be repeated.")
@click.option(
    "--subscription",
    "subscriptions",
    multiple=True,
    metavar="SUBSCRIPTION",
    help="Let it read as SUBSCRIPTION; may be repeated.",
)
@click.option(
    "--host", "hosts", multiple=True, metavar="HOST", help="Make it for a control server with this host name."
)
@click.option("--node", is_flag=True, help="Let it publish every topic: for one job that does everything.")
@_folder
@pass_settings
def issue_one(
    settings: Settings,
    name: str,
    topics: tuple[str, ...],
    subscriptions: tuple[str, ...],
    hosts: tuple[str, ...],
    node: bool,
    directory: Path | None,
) -> None:
    """Make NAME.crt and NAME.key, signed by the CA in the folder.

    The certificate carries the logical name TOPIC.topic.jobpipe or SUBSCRIPTION.subscription.jobpipe (hashed if that is
    not a DNS label), or HOST. Without --publish, --subscription, --host or --node it carries NAME.jobpipe, for people
    and tools. The publishers' access lists (security.access) say what a name may do. Only a certificate for publishing,
    or for a HOST, can be used by a server. A revoked NAME.crt is replaced, with a new key.
    """
    from jobpipe.discovery.registry_handler import map_registry_errors
    from jobpipe.net.tls.certificates import BOTH, CLIENT, NODE_NAMES, issue
    from jobpipe.net.tls.peer_names import subscription_name, topic_server_name
    from jobpipe_registry.names import check_name

    with map_registry_errors():
        for text in (*topics, *subscriptions):
            check_name(text)

    names = [*map(topic_server_name, topics), *map(subscription_name, subscriptions)]
    names += [*hosts, *(NODE_NAMES if node else ())]
    usages = BOTH if topics or hosts or node else (CLIENT,)
    _print_use(issue(_chosen(settings, directory), name, dns=names, usages=usages))


@certs.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_folder
@pass_settings
def renew(settings: Settings, names: tuple[str, ...], directory: Path | None) -> None:
    """Renew NAME.crt. It keeps its names and its key. `ca` renews the CA itself.

    Copy the new file over the old one: running jobs load it within seconds, without a restart.
    """
    from jobpipe.net.tls.certificates import describe
    from jobpipe.net.tls.certificates import renew as renew_one

    for name in names:
        path = renew_one(_chosen(settings, directory), name)
        click.echo(f"{path}: valid to {describe(path).not_after:%Y-%m-%d}")


@certs.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--serial", "serials", multiple=True, metavar="HEX", help="Serial number of a certificate whose file is lost."
)
@_folder
@pass_settings
def revoke(settings: Settings, names: tuple[str, ...], serials: tuple[str, ...], directory: Path | None) -> None:
    """Put NAME on the CA's revocation list, ca.crl. Without NAME, only renew the date of the list.

    This covers every certificate ever issued under NAME, because a renewed certificate has the same key.

    Copy ca.crl next to each job's ssl.ca, under the same name with the extension .crl, or point ssl.crl at it. Running
    jobs load it within seconds, and close the links of revoked certificates within half a minute. The list is valid
    for a year. With an expired list, every peer is refused.
    """
    from jobpipe.net.tls.revocation import describe_crls
    from jobpipe.net.tls.revocation import revoke as revoke_all

    try:
        numbers = [int(serial.replace(":", ""), 16) for serial in serials]
    except ValueError as error:
        raise ConfigError(f"--serial: expected a number as `jobpipe certs show` prints it: {error}") from error
    path = revoke_all(_chosen(settings, directory), names, serials=numbers)
    (info,) = describe_crls(path)
    click.echo(f"{path}: {len(info.revoked)} revoked, valid to {info.not_after:%Y-%m-%d}")


@certs.command()
@_folder
@json_option
@pass_settings
def show(settings: Settings, directory: Path | None, as_json: bool) -> int:
    """Show the certificates in use, or all of a folder, and the revocation list.

    Exits with 1 if there is no certificate, or if one is revoked or not valid now. JSON keys of each certificate: file,
    subject, issuer, names, usages, not_before, not_after, is_ca, serial, fingerprint, valid, revoked, days_left; of a
    revocation list: file, issuer, revoked (serials), not_before, not_after, valid, days_left.
    """
    config = None if directory is not None else settings.config
    if directory is None and config is not None and config.ssl_ca is not None and config.ssl_cert is not None:
        files, crl = [config.ssl_ca, config.ssl_cert], config.ssl_crl or config.ssl_ca.with_suffix(".crl")
    else:
        directory = _chosen(settings, directory)
        files, crl = sorted(directory.glob("*.crt")), directory / "ca.crl"
    found = list(_facts(files, crl))
    if as_json:
        emit_json(found)
    elif not found:
        click.echo(f"no certificates in {directory}: the first job makes them, or `jobpipe certs init`", err=True)
    for number, facts in enumerate([] if as_json else found):
        if number:
            click.echo()
        emit_pairs((key.replace("_", " "), ", ".join(v) if isinstance(v, list) else v) for key, v in facts.items())
    well = all(facts["valid"] and facts.get("revoked") is not True for facts in found)
    return Exit.OK if found and well else Exit.UNHEALTHY


def _chosen(settings: Settings, directory: Path | None) -> Path:
    if directory is not None:
        return directory.absolute()
    try:
        return settings.config.home / "certs"
    except ConfigError as error:  # it may be wrong only for want of these certificates
        raise ConfigError(f"{error.message}\npass --dir DIR to work without a configuration", **error.fields) from error


def _facts(files: list[Path], crl: Path) -> Iterator[dict[str, Any]]:
    from jobpipe.net.tls.certificates import describe_all
    from jobpipe.net.tls.revocation import describe_crls

    lists = describe_crls(crl) if crl.exists() else []
    revoked = {(info.issuer, serial) for info in lists for serial in info.revoked}
    for path in files:
        for info in describe_all(path):
            validity = _validity(info.not_before, info.not_after)
            yield {
                "file": str(path),
                **asdict(info),
                **validity,
                "names": list(info.names),
                "usages": list(info.usages),
                "revoked": (info.issuer, info.serial) in revoked,
            }
    for each in lists:
        validity = _validity(each.not_before, each.not_after)
        yield {"file": str(crl), **asdict(each), **validity, "revoked": list(each.revoked)}


def _validity(start: datetime, end: datetime) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "not_before": start.isoformat(timespec="seconds"),
        "not_after": end.isoformat(timespec="seconds"),
        "valid": start <= now < end,
        "days_left": (end - now).days,
    }


def _print_use(files: Any) -> None:
    from jobpipe.net.tls.certificates import describe

    click.echo(f"# known to access lists as {' and '.join(describe(files.cert).names)}")
    click.echo("jobpipe:")
    click.echo(f"  ssl: {{ca: {files.ca}, cert: {files.cert}, key: {files.key}}}")
