"""``jobpipe server host``: keeps segments on the host that wrote them."""

from __future__ import annotations

import asyncio

import click

from jobpipe.cli.common.command_context import Settings, pass_settings


@click.command()
@pass_settings
def host(settings: Settings) -> None:
    """Run a host server: keep and serve this host's segments, for publishers with spool.placement=host.

    Run one per host, for all applications and topics of a namespace. It stays in the foreground until SIGTERM or
    Ctrl-C. Tasks on this host find it through jobpipe.hostserver.dir in their own configuration. If there is no host
    server, or it does not answer, their segments go to the coordinator.

    The segments stay on disk. The next host server with the same folder serves them again.
    """
    from jobpipe.hostserver.host_program import serve_host

    asyncio.run(serve_host(settings.config, click.echo))
