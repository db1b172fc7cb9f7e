"""One-off requests of readers without a subscription: schemas, bounds, ranges. Blocking links, closed at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jobpipe.config import Config
from jobpipe.discovery.dial import dial_blocking
from jobpipe.discovery.topic_lookup import TopicLocator
from jobpipe.errors import LinkError, TopicNotFound
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.retry import Attempts, Deadline
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.operations.reader_operations import SchemaRequest
from jobpipe.subscribing.wait_logging import awaiting_publisher, log_while_waiting
from jobpipe.wire.wire_messages import Hello

POLL_SECONDS = 5.0
ASK_SECONDS = 10.0
NO_SCHEMA = "its publisher runs, but has published no batch yet, and was made without a schema"


@contextmanager
def control_link(config: Config, locator: TopicLocator, topic: str, deadline: Deadline) -> Iterator[BlockingLink]:
    """Yield a link to the topic's coordinator.

    Raises:
        TopicNotFound: no publisher was reached before ``deadline``.
        NotAuthorized: it refuses us, or the registry repeatedly leads to an untrusted server.
    """
    hello = Hello(topic=topic, role="reader", instance=f"reader-{os.getpid()}")
    attempts = Attempts(0.0, session=config.registry_session_timeout, cap=0.2, deadline=deadline, protocol_tries=None)
    with awaiting_publisher(topic, config, locator):
        while True:
            location = locator.wait(topic, deadline.left())
            try:
                link = dial_blocking(config, location.control, hello)
                break
            except Attempts.ERRORS as error:  # a registration is a hint: its publisher may be gone
                pause = attempts.failed(error, location)
                locator.doubt(location)
                time.sleep(pause)
    try:
        yield link
    finally:
        link.close()


def ask_schema(link: BlockingLink, number: int | None = None) -> tuple[bytes, str | None] | None:
    """Return a topic's schema as Arrow and Spark have it, the newest or that of an id; None if it is not known."""
    return ask_blocking(link, SchemaRequest(id=number), timeout=ASK_SECONDS).schema


def published_schemas(config: Config, topics: Sequence[str]) -> dict[str, tuple[bytes, str | None]]:
    """Return each topic's newest schema: Arrow's serialized form, and Spark's JSON if its publisher was Spark.

    Waits up to ``discovery.timeout`` for publishers that do not run yet, or have no batch yet.

    Raises:
        TopicNotFound: names the topic, and whether the publisher or its first batch is missing.
    """
    deadline = Deadline(config.discovery_timeout)
    locator = TopicLocator(config)
    try:
        return {topic: _schema(config, locator, topic, deadline) for topic in topics}
    finally:
        locator.close()


def _schema(config: Config, locator: TopicLocator, topic: str, deadline: Deadline) -> tuple[bytes, str | None]:
    while True:
        try:
            with (
                control_link(config, locator, topic, deadline) as link,
                log_while_waiting(topic, config, "a schema", lambda: NO_SCHEMA),
            ):
                while True:
                    wait = deadline.left(POLL_SECONDS)
                    found = ask_blocking(link, SchemaRequest(wait=wait), timeout=wait + 5.0).schema
                    if found is not None:
                        return found
                    if deadline.passed:
                        raise TopicNotFound(
                            f"topic {topic!r}: its publisher runs, but knows no schema yet: it has published no batch "
                            f"within {config.discovery_timeout:g} s. Give the publisher schema=..., or raise "
                            "discoveryTimeout",
                            topic=topic,
                            timeout=config.discovery_timeout,
                        )
        except LinkError:
            if deadline.passed:
                raise
