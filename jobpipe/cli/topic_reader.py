"""Reads a topic without a subscription: nothing is acknowledged, and retention does not wait for us."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType

import pyarrow as pa

from jobpipe.cli.status import without_publisher
from jobpipe.config import Config
from jobpipe.discovery.locate import TopicLocator
from jobpipe.errors import JobpipeError
from jobpipe.net.blocking import BlockingLink
from jobpipe.net.retry import RETRYABLE, Deadline
from jobpipe.operations.administration import StatusRequest
from jobpipe.operations.calls import ask_blocking
from jobpipe.operations.fields import R, RequestFor
from jobpipe.operations.ranges import News
from jobpipe.operations.reading import BoundsRequest, RangeRequest, ReleaseRequest
from jobpipe.operations.subscribing import PollRequest
from jobpipe.store.boundary import Boundary
from jobpipe.store.position import Position
from jobpipe.subscriber.fetch import fetch_plan
from jobpipe.subscriber.lease import Held, held_while, lease_seconds
from jobpipe.subscriber.questions import control_link

log = logging.getLogger(__name__)

CALL_SECONDS = 30.0
POLL_SECONDS = 5.0


class TopicReader:
    """Follows one topic; a context manager. A publisher that is away is waited for up to ``discovery.timeout``."""

    def __init__(self, config: Config, topic: str) -> None:
        self._config = config
        self._topic = topic
        self._locator = TopicLocator(config)
        self._link: BlockingLink | None = None
        self._owned = contextlib.ExitStack()  # of the link
        self._lease = secrets.token_hex(16)

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owned.close()
        self._locator.close()

    def batches(self, starting: Boundary, timeout: float | None) -> Iterator[pa.RecordBatch]:
        """Yield record batches, batch after batch, and within one by partition; end at the end mark.

        Args:
            starting: where to begin; not where a subscription stands, since there is none.
            timeout: end after so many seconds without news; None follows for ever.

        Raises:
            TopicNotFound: no publisher came within ``discovery.timeout``.
            DataLoss: rows were removed before we read them, or never were there.
            ConfigError: nothing was published since the time to begin at.
        """
        bounds = self._call(BoundsRequest(start=starting))
        if timeout is None and (why := without_publisher(self._call(StatusRequest()).document)) is not None:
            log.warning("topic %s: %s", self._topic, why)
        known = News(head=bounds.head, ended=bounds.ended)
        at = bounds.start
        hold, quiet = True, time.monotonic()
        while True:
            if known.head != at:
                yield from self._range(at, known.head, hold=hold)
                at, hold, quiet = known.head, False, time.monotonic()
            if known.ended:
                return
            wait = POLL_SECONDS if timeout is None else min(POLL_SECONDS, quiet + timeout - time.monotonic())
            if wait <= 0:
                return
            known = self._call(PollRequest(head=known.head, ended=known.ended, waiting=known.waiting, wait=wait))

    def _range(self, start: Position, end: Position, *, hold: bool) -> Iterator[pa.RecordBatch]:
        """Yield what lies between; ``hold`` keeps a backlog from retention while we read it."""
        held = Held(self._topic, self._lease, start.n, end.n, "", lease_seconds(self._config)) if hold else None
        if held is not None:
            self._call(held.request())
            held = None if self._link is None else replace(held, control=self._link.peer)
        try:
            reply = self._call(RangeRequest(start=start, end=end))
            with held_while(held, self._config):
                for plan in reply.plans:
                    for fetched in fetch_plan(self._topic, plan, reply.data, self._config):
                        yield fetched.batch
        finally:
            if hold and self._link is not None:
                with contextlib.suppress(JobpipeError):  # it ends by itself
                    ask_blocking(self._link, ReleaseRequest(secret=self._lease), timeout=CALL_SECONDS)

    def _call(self, request: RequestFor[R]) -> R:
        """Ask the coordinator, over as many links as it takes. Only for questions that may be repeated."""
        deadline = Deadline(self._config.discovery_timeout)
        while True:
            if self._link is None:
                self._link = self._owned.enter_context(control_link(self._config, self._locator, self._topic, deadline))
            try:
                return ask_blocking(self._link, request, timeout=CALL_SECONDS)
            except RETRYABLE:  # it ended, or it hands the topic over
                self._link = None
                self._owned.close()
                if deadline.passed:
                    raise
                time.sleep(0.1)
