"""A task's link to the coordinator of a topic, dialled again after a cut."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from jobpipe.config import Config
from jobpipe.discovery.node_overrides import on_this_node
from jobpipe.discovery.topic_lookup import Location
from jobpipe.errors import JobpipeError, LinkClosed, TopicNotFound
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.retry import Attempts
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.operations.messages.message_fields import R, RequestFor
from jobpipe.subscribing.fetching.part_fetch import refresh_location
from jobpipe.wire.wire_messages import Hello

log = logging.getLogger(__name__)

SLICE_SECONDS = 0.1  # every pause looks at its caller this often


class ControlLink:
    """One link, for one thread; made again after a cut, wherever the coordinator is by then.

    Args:
        config: of the driver.
        topic: whose coordinator.
        role: in HELLO.
        stopped: asked between two attempts; when it is true they end.
        patient: tells of other errors whether another attempt may mend them.
        flow, token: in HELLO, of a task that publishes; "" for others.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        role: str,
        stopped: Callable[[], bool],
        *,
        patient: Callable[[JobpipeError], bool] = lambda _: False,
        flow: str = "",
        token: str = "",
    ) -> None:
        self._config = config
        self._topic = topic
        self._stopped = stopped
        self._patient = patient
        self._hello = Hello(topic=topic, role=role, name=flow or None, instance=f"flow-{os.getpid()}", proof=token)
        self._link: BlockingLink | None = None
        self._location: Location | None = None

    def ask(self, request: RequestFor[R], *, timeout: float) -> R:
        """Ask, over as many links as it takes within ``read.timeout``; repeatable requests only.

        Args:
            request: what is asked.
            timeout: seconds for one attempt.

        Raises:
            LinkClosed: it was stopped.
            JobpipeError: what the coordinator answers; LinkError, TopicNotFound: it was not there in time.
        """
        attempts = Attempts(self._config.read_timeout, session=self._config.registry_session_timeout)
        while True:
            try:
                return ask_blocking(self._connected(attempts), request, timeout=timeout)
            except JobpipeError as error:
                if not (isinstance(error, Attempts.ERRORS) or self._patient(error)):
                    raise
                self.close()
                pause = attempts.failed(error, self._location)
                level = logging.INFO if attempts.failures == 1 else logging.DEBUG
                log.log(level, "topic %s: %s; trying again", self._topic, error)
                self._wait(pause)

    def _connected(self, attempts: Attempts) -> BlockingLink:
        if self._link is None:
            found = refresh_location(self._config, self._topic, self._location, attempts.deadline)
            self._location = found or self._location
            if self._location is None:
                raise TopicNotFound(f"topic {self._topic!r}: it is not served now", topic=self._topic)
            endpoint = self._location.control
            self._link = BlockingLink.connect(endpoint, self._hello, tls=on_this_node(self._config, endpoint))
        return self._link

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            if self._stopped():
                raise LinkClosed(f"topic {self._topic!r}: the flow is stopped", topic=self._topic)
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, SLICE_SECONDS))

    def close(self) -> None:
        """End the link. Idempotent."""
        link, self._link = self._link, None
        if link is not None:
            link.abort()
