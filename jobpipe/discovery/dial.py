"""Opens links to servers, with the TLS context that the configuration has in force now: certificates change."""

from __future__ import annotations

import asyncio

from jobpipe.config import Config
from jobpipe.discovery.configured_tls import dial_tls
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import Link, connect
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.wire.wire_messages import Hello


async def dial(config: Config, endpoint: Endpoint, hello: Hello) -> Link:
    """Open a link of asyncio to a server that serves the topic of ``hello``.

    Raises:
        ConfigError: the certificates cannot be used.
        JobpipeError: as :func:`jobpipe.net.links.async_link.connect`.
    """
    tls = await asyncio.to_thread(dial_tls, config, endpoint)
    return await connect(endpoint, hello, tls=tls)


def dial_blocking(config: Config, endpoint: Endpoint, hello: Hello) -> BlockingLink:
    """Open a blocking link; raises as :func:`dial`."""
    return BlockingLink.connect(endpoint, hello, tls=dial_tls(config, endpoint))
