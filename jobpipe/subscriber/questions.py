"""One-off questions of readers that hold no subscription: schemas, bounds, ranges. Blocking links, closed at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jobpipe.config import Config
from jobpipe.discovery.locate import TopicLocator
from jobpipe.discovery.security import dial_tls
from jobpipe.errors import LinkError, PeerNotTrusted, TopicNotFound
from jobpipe.net.blocking import BlockingLink
from jobpipe.net.identity import topic_server_name
from jobpipe.net.retry import RETRYABLE, Distrust
from jobpipe.subscriber.waiting import awaiting_publisher, telling
from jobpipe.wire.messages import Hello

__all__ = ["ask_schema", "control_link", "published_schemas"]

POLL_SECONDS = 5.0
ASK_SECONDS = 10.0
NO_SCHEMA = "its publisher runs, but has published no batch yet, and was made without a schema"


@contextmanager
def control_link(config: Config, locator: TopicLocator, topic: str, deadline: float) -> Iterator[BlockingLink]:
    """Yield a link to the topic's coordinator.

    Raises:
        TopicNotFound: no publisher was reached before ``deadline`` (monotonic seconds).
        NotAuthorized: it refuses us, or what the registry names is, again and again, none that we trust.
    """
    distrust = Distrust(config.registry_session_timeout)
    hello = Hello(topic=topic, role="reader", instance=f"reader-{os.getpid()}")
    with awaiting_publisher(topic, config, locator):
        while True:
            location = locator.wait(topic, max(deadline - time.monotonic(), 0.0))
            tls = dial_tls(config, location.control)
            try:
                link = BlockingLink.connect(
                    location.control, hello, tls=tls, server_hostname=topic_server_name(topic) if tls else None
                )
                break
            except (*RETRYABLE, PeerNotTrusted) as error:  # a registration is a hint: its publisher may be gone
                now = time.monotonic()
                if now >= deadline or distrust.is_final(error, location, now):
                    raise
                locator.doubt(location)
                time.sleep(0.2)
    try:
        yield link
    finally:
        link.close()


def ask_schema(link: BlockingLink, number: int | None = None) -> tuple[bytes, str | None] | None:
    """Return a topic's schema as Arrow and Spark have it, the newest or that of an id; None if it is not known."""
    reply = link.call("schema", {"id": number}, timeout=ASK_SECONDS)
    return None if reply.result["id"] is None else (reply.blob, reply.result["spark"])


def published_schemas(config: Config, topics: Sequence[str]) -> dict[str, tuple[bytes, str | None]]:
    """Return each topic's newest schema: Arrow's serialized form, and Spark's JSON if its publisher was Spark.

    Waits up to ``discovery.timeout`` for publishers that do not run yet, or have no batch yet.

    Raises:
        TopicNotFound: names the topic, and whether the publisher or its first batch is missing.
    """
    deadline = time.monotonic() + config.discovery_timeout
    locator = TopicLocator(config)
    try:
        return {topic: _schema(config, locator, topic, deadline) for topic in topics}
    finally:
        locator.close()


def _schema(config: Config, locator: TopicLocator, topic: str, deadline: float) -> tuple[bytes, str | None]:
    while True:
        try:
            with (
                control_link(config, locator, topic, deadline) as link,
                telling(topic, config, "a schema", lambda: NO_SCHEMA),
            ):
                while True:
                    wait = min(POLL_SECONDS, max(deadline - time.monotonic(), 0.0))
                    reply = link.call("schema", {"wait": wait}, timeout=wait + 5.0)
                    if reply.result["id"] is not None:
                        return reply.blob, reply.result["spark"]
                    if time.monotonic() >= deadline:
                        raise TopicNotFound(
                            f"topic {topic!r}: its publisher runs, but knows no schema yet: it has published no batch "
                            f"within {config.discovery_timeout:g} s. Give the publisher schema=..., or raise "
                            "discoveryTimeout",
                            topic=topic,
                            timeout=config.discovery_timeout,
                        )
        except LinkError:
            if time.monotonic() >= deadline:
                raise
