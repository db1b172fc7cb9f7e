"""Idle links to data and host servers, kept by endpoint, topic and process: a Spark worker reads many ranges."""

from __future__ import annotations

import contextlib
import os
import ssl

from jobpipe.net.address import Endpoint
from jobpipe.net.blocking import BlockingLink
from jobpipe.net.identity import topic_server_name
from jobpipe.wire.messages import Hello

__all__ = ["give_back", "take"]

POOL_PER_ENDPOINT = 4

_pool: dict[tuple[int, Endpoint, str], list[tuple[BlockingLink, ssl.SSLContext | None]]] = {}
"""Idle links, each with the context it was made with: another context means other certificates."""


def take(endpoint: Endpoint, topic: str, tls: ssl.SSLContext | None) -> BlockingLink:
    """Return an idle link, or a new one.

    Raises:
        LinkError, NotAuthorized, TopicNotFound: nobody there serves us.
    """
    idle = _pool.get((os.getpid(), endpoint, topic), [])
    with contextlib.suppress(IndexError):  # none is left, or another thread took the last one
        while True:
            link, context = idle.pop()
            if context is tls and link.usable():
                return link
            link.abort()
    hello = Hello(topic=topic, role="reader", instance=f"reader-{os.getpid()}")
    return BlockingLink.connect(endpoint, hello, tls=tls, server_hostname=topic_server_name(topic) if tls else None)


def give_back(link: BlockingLink, endpoint: Endpoint, topic: str, tls: ssl.SSLContext | None) -> None:
    """Keep a link whose last answer was read to its end."""
    idle = _pool.setdefault((os.getpid(), endpoint, topic), [])
    if len(idle) < POOL_PER_ENDPOINT:
        idle.append((link, tls))
    else:
        link.close()
