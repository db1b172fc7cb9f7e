"""``jobpipe server``: the control server in the foreground; ``jobpipe server host`` is in host_server_command.py."""

from __future__ import annotations

import dataclasses
import logging
import sys
from typing import TYPE_CHECKING

import click

from jobpipe.cli.command_tree import CommandGroup
from jobpipe.cli.common.command_context import Settings
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.errors import ConfigError

if TYPE_CHECKING:
    from jobpipe.control.rest.rest_server import RestServer


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--host", metavar="HOST", help="Listen at this address instead of jobpipe.server.host.")
@click.option("--port", type=click.IntRange(1, 65535), help="Listen on this port instead of jobpipe.server.port.")
@click.option(
    "--sign-in", is_flag=True, help="Print an address of the running server that signs a browser in, once, and exit."
)
@click.option("--stop", is_flag=True, help="Stop the server of jobpipe.home. Its jobs keep running.")
@click.option("--detached", is_flag=True, hidden=True)
@click.pass_context
def server(ctx: click.Context, host: str | None, port: int | None, sign_in: bool, stop: bool, detached: bool) -> int:
    """Run the control server, which takes pipelines, starts and watches their jobs, and has a page and a REST API.

    In a terminal it prints the address of its page.

    It stays in the foreground until SIGTERM or Ctrl-C. Jobs keep running without it, and the next server takes them
    over. Its token is in server/token under jobpipe.home: anyone who has it may run programs as this user. A read-only
    token is in server/view-token.

    Except on loopback, it accepts only TLS with certificates (jobpipe.server.access). Exits with 1 if a server of this
    jobpipe.home is already running.
    """
    if ctx.invoked_subcommand is not None:
        if host is not None or port is not None or sign_in or stop or detached:
            raise click.UsageError(f"options of `jobpipe server` do not go with {ctx.invoked_subcommand}")
        return Exit.OK
    settings = ctx.ensure_object(Settings)
    config = settings.config
    if stop:
        from jobpipe.control.process.local_server import stop_server

        click.echo("stopped" if stop_server(config) else "no control server is running")
        return Exit.OK
    if sign_in:
        from jobpipe.control.process.local_server import require_server
        from jobpipe.control.rest.rest_client import ControlClient

        address = require_server(config)
        click.echo(f"{address.url}{ControlClient(address).sign_in_code().path}")
        return Exit.OK
    if host is not None:
        config = dataclasses.replace(config, server_host=host)
    if port is not None:
        config = dataclasses.replace(config, server_port=(port, port))
    try:
        from jobpipe.control.process.control_program import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "h11", "jinja2", "prometheus_client"):
            raise
        raise ConfigError(
            "the control server needs Starlette, uvicorn, Jinja2, cronsim and prometheus-client: "
            "pip install 'starlette>=0.46' 'uvicorn>=0.34' 'jinja2>=3.1.6' 'cronsim>=2.6' 'prometheus-client>=0.22'"
        ) from error
    from jobpipe.control.server_files import ServerFiles

    if detached:
        from jobpipe.coordinator.log_file_rotation import BoundedHandler

        shape = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        logging.basicConfig(
            level=logging.INFO, format=shape, handlers=[BoundedHandler(ServerFiles.of(config.home).log)], force=True
        )
    serve(config, settings.resolved.file, _print_address)
    return Exit.OK


def _print_address(rest: RestServer) -> None:
    """Say where it is, and how it knows who asks."""
    url, token = rest.state.url, rest.state.token
    known = "certificates as jobpipe.server.access says" if token is None else f"its token is in {token}"
    click.echo(f"control server at {url}; {known}; SIGTERM or Ctrl-C stops it, and its jobs keep running")
    if sys.stdout.isatty() and (path := rest.sign_in_path()) is not None:  # not in a log, which others may read
        click.echo(f"its page, for the first browser that opens it: {url}{path}")
    elif token is not None:
        click.echo("its page: `jobpipe server --sign-in` prints an address for a browser")
