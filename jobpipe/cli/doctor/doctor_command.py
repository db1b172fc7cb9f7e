"""``jobpipe doctor``: is this machine fit to run jobs?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict

import click

from jobpipe.cli.common.command_context import Settings, json_option, pass_settings
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.cli.common.output import emit_json, printable
from jobpipe.cli.doctor.findings import Finding, fail, ok
from jobpipe.errors import ConfigError

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@json_option
@pass_settings
def doctor(settings: Settings, as_json: bool) -> int:
    """Check this machine, and say how to fix what is wrong.

    Looks at Python, Java, PySpark, running Spark sessions, configuration, certificates, registry, network and spool.
    Changes nothing. Starts Java and the Python of Spark's workers for a moment, and nothing else. Exits with 1 if any
    check fails. JSON keys of each: check, status (ok, warn, fail), detail, remedy.
    """
    found = []
    for finding in _findings(settings):
        found.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        emit_json([asdict(finding) for finding in found])
    return Exit.UNHEALTHY if any(finding.status == "fail" for finding in found) else Exit.OK


def _findings(settings: Settings) -> Iterator[Finding]:
    from jobpipe.cli.doctor import bus_checks, host_checks, registry_access_check, registry_connections_check

    yield host_checks.python()
    yield host_checks.pyarrow()
    yield host_checks.user()
    yield from host_checks.variables(os.environ)
    yield host_checks.java()
    yield host_checks.zookeeper()
    yield host_checks.pyspark()
    if host_checks.spark_version() is not None:
        yield host_checks.worker_python()
        yield host_checks.unix_sockets()
        yield host_checks.local_files()
    yield from host_checks.running_sessions()
    try:
        resolved = settings.resolved
    except ConfigError as error:
        remedy = "correct it: the other checks need it. `jobpipe config explain KEY` says what is expected"
        yield fail("configuration", error.message, remedy)
        if (address := bus_checks.doubtful_address(error)) is not None:
            yield bus_checks.address(address)
        return
    where = ", found in the working folder" if resolved.in_working_folder else ""
    yield ok("configuration", f"{resolved.file or 'no file, defaults'}{where}")
    config = resolved.config
    yield from bus_checks.certificates(config)
    yield from bus_checks.access(config)
    answer = bus_checks.registry(config)
    yield answer
    if answer.status == "ok":
        yield from registry_access_check.permissions(config)
        yield from registry_connections_check.connections(config)
    yield from host_checks.network(config)
    yield host_checks.spool(config)


def _print(finding: Finding) -> None:
    first, *others = finding.detail.splitlines() or [""]
    status = click.style(f"{finding.status:<4}", fg=_COLOURS[finding.status])
    color = False if os.environ.get("NO_COLOR") else None  # None: as the output is, of a terminal or not
    click.echo(f"{status}  {finding.check:<14}  {printable(first)}", color=color)
    for line in others:
        click.echo(" " * 22 + printable(line.strip()))
    if finding.remedy:
        click.echo(" " * 22 + "-> " + printable(finding.remedy))
