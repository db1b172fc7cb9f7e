"""Logs what a reader is waiting for: without that, a wait looks like a bug."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobpipe.config import Config
from jobpipe.discovery.topic_lookup import TopicLocator
from jobpipe.errors import TopicNotFound
from jobpipe.subscribing.topic_follower import TopicFollower

log = logging.getLogger(__name__)

FIRST_SECONDS = 2.0
AGAIN_SECONDS = 60.0


def connect(follower: TopicFollower, config: Config, locator: TopicLocator, timeout: float, *, patient: bool) -> None:
    """Wait for a follower's link, and tell of the wait, as :func:`log_while_waiting`.

    Args:
        timeout: seconds, for a topic that was never published.
        patient: one that was published before is waited for without end: its publisher is away, or takes long to start.

    Raises:
        TopicNotFound: no publisher came in time.
        JobpipeError: the reason that ended the follower for good.
    """
    with awaiting_publisher(follower.topic, config, locator):
        while True:
            try:
                follower.connected(timeout)
            except TopicNotFound:
                if not patient or not locator.was_published(follower.topic):
                    raise
                timeout = max(timeout, AGAIN_SECONDS)
            else:
                return


@contextmanager
def awaiting_publisher(topic: str, config: Config, locator: TopicLocator) -> Iterator[None]:
    """Log the wait for a publisher, as :func:`log_while_waiting`; if none comes, the error says what is known."""

    def known() -> str:
        return locator.why_absent(topic) or "the registry does not answer"

    try:
        with log_while_waiting(topic, config, "a publisher", known):
            yield
    except TopicNotFound as error:
        raise TopicNotFound(f"{error.message} ({known()})", **error.fields) from error


@contextmanager
def log_while_waiting(topic: str, config: Config, what: str, known: Callable[[], str]) -> Iterator[None]:
    """Log at WARNING what the block waits for, once it has taken two seconds, and then each minute.

    Args:
        topic: what is read.
        config: names the registry.
        what: of the topic that is missing.
        known: returns what can be said of it by then; called in another thread.
    """
    registry = f"the embedded one of {config.home}" if config.embedded else config.registry_connect
    done = threading.Event()

    def watch() -> None:
        waited, pause = 0.0, FIRST_SECONDS
        while not done.wait(pause):
            waited, pause = waited + pause, AGAIN_SECONDS
            log.warning(
                "topic %r: waiting for %s for %.0f s (registry: %s, namespace: %s): %s. `jobpipe doctor` "
                "checks this host",
                topic,
                what,
                waited,
                registry,
                config.namespace,
                known(),
            )

    threading.Thread(target=watch, name=f"waiting-{topic}", daemon=True).start()
    try:
        yield
    finally:
        done.set()
