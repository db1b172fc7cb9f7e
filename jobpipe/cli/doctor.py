"""``jobpipe doctor``: is this machine fit to run jobs?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict

import click

from jobpipe.cli.context import Settings, json_option, pass_settings
from jobpipe.cli.exits import Exit
from jobpipe.cli.findings import Finding, fail, ok
from jobpipe.cli.output import emit_json, printable
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
    from jobpipe.cli import doctor_bus, doctor_host, doctor_registry

    yield doctor_host.python()
    yield doctor_host.pyarrow()
    yield doctor_host.user()
    yield from doctor_host.variables(os.environ)
    yield doctor_host.java()
    yield doctor_host.zookeeper()
    yield doctor_host.pyspark()
    if doctor_host.spark_version() is not None:
        yield doctor_host.worker_python()
        yield doctor_host.unix_sockets()
        yield doctor_host.local_files()
    yield from doctor_host.running_sessions()
    try:
        resolved = settings.resolved
    except ConfigError as error:
        remedy = "correct it: the other checks need it. `jobpipe config explain KEY` says what is expected"
        yield fail("configuration", error.message, remedy)
        if (address := doctor_bus.doubtful_address(error)) is not None:
            yield doctor_bus.address(address)
        return
    where = ", found in the working folder" if resolved.in_working_folder else ""
    yield ok("configuration", f"{resolved.file or 'no file, defaults'}{where}")
    config = resolved.config
    yield from doctor_bus.certificates(config)
    yield from doctor_bus.access(config)
    answer = doctor_bus.registry(config)
    yield answer
    if answer.status == "ok":
        yield from doctor_registry.permissions(config)
    yield from doctor_host.network(config)
    yield doctor_host.spool(config)


def _print(finding: Finding) -> None:
    first, *others = finding.detail.splitlines() or [""]
    status = click.style(f"{finding.status:<4}", fg=_COLOURS[finding.status])
    color = False if os.environ.get("NO_COLOR") else None  # None: as the output is, of a terminal or not
    click.echo(f"{status}  {finding.check:<14}  {printable(first)}", color=color)
    for line in others:
        click.echo(" " * 22 + printable(line.strip()))
    if finding.remedy:
        click.echo(" " * 22 + "-> " + printable(finding.remedy))
