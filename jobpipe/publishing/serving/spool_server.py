"""Serves a topic's spool without its job, and gives way to a publisher that returns."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import replace
from types import TracebackType

from jobpipe.config import Config
from jobpipe.discovery.dial import dial_blocking
from jobpipe.errors import Fenced, TopicNotFound
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.operations.publisher_operations import OpenRequest
from jobpipe.operations.subscriber_operations import PollRequest
from jobpipe.publishing.coordinator_launcher import attach
from jobpipe.store.spool.spool_files import CATALOG, check_topic
from jobpipe.wire.wire_messages import Hello

OPEN_SECONDS = 90.0  # a dead owner's registry session may have to end first
ANSWER_SECONDS = 30.0
FOREVER_SECONDS = 10 * 365 * 86_400.0
UNLIMITED_BYTES = 2**60


def check_spool(config: Config, topic: str) -> None:
    """Raise TopicNotFound if there is no spool of the topic on this host."""
    check_topic(topic)
    place = config.spool_dir / topic
    if not (place / CATALOG).is_file():
        raise TopicNotFound(
            f"topic {topic!r} has no spool in {place.parent}: serve it on the host, and with the jobpipe.spool.dir, "
            "of its publisher",
            topic=topic,
            directory=str(place),
        )


class SpoolServer:
    """Serves one topic, by this process's coordinator; a context manager. Removes no rows and no subscription.

    Raises:
        TopicNotFound: there is no spool on this host.
        TopicOwned: a publisher is alive.
    """

    def __init__(self, config: Config, topic: str) -> None:
        check_spool(config, topic)
        coordinator = attach(config)
        self._secret = coordinator.secret
        self.endpoint = coordinator.endpoint
        name = f"jobpipe topics serve@{socket.gethostname()}, pid {os.getpid()}"
        hello = Hello(topic=topic, role="publisher", name=name, instance=uuid.uuid4().hex)
        self._link = dial_blocking(config, coordinator.endpoint, hello)
        try:
            serving_config = replace(
                config,
                retention_time=FOREVER_SECONDS,
                retention_bytes=UNLIMITED_BYTES,
                subscription_expiry=FOREVER_SECONDS,
            )
            opening = OpenRequest(name=name, parallelism=1, config=serving_config, serve=True)
            ask_blocking(self._link, opening, timeout=OPEN_SECONDS, job=self._secret)
        except BaseException:
            self._link.close()
            raise
        self._poll = PollRequest(wait=0.0)

    def __enter__(self) -> SpoolServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def serves(self, wait: float) -> bool:
        """Wait so many seconds, or until something changes; False once a publisher has taken the topic over."""
        try:
            news = ask_blocking(self._link, replace(self._poll, wait=wait), timeout=ANSWER_SECONDS, job=self._secret)
        except (Fenced, TopicNotFound):
            return False
        self._poll = PollRequest(head=news.head, ended=news.ended, waiting=news.waiting)
        return True

    def close(self) -> None:
        self._link.close()
