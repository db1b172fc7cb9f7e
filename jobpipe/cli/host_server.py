"""``jobpipe host-server``: keeps segments on the host that wrote them."""

from __future__ import annotations

import asyncio

import click

from jobpipe.cli.context import Settings, pass_settings

__all__ = ["host_server"]


@click.command("host-server")
@pass_settings
def host_server(settings: Settings) -> None:
    """Keep and serve this host's segments, for publishers with spool.placement=host.

    One a host, for all applications and topics of a namespace; runs in the foreground until SIGTERM or Ctrl-C. Tasks
    on this host find it by jobpipe.hostserver.dir of their own configuration; without one, or when it does not answer,
    their segments go to the coordinator. The segments stay on the disk, and are served again by the next server of the
    same folder.
    """
    from jobpipe.hostserver.program import serve_host

    asyncio.run(serve_host(settings.config, click.echo))
