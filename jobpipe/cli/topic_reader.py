"""Reads a topic without a subscription: nothing is acknowledged, and retention does not wait for us."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any

import pyarrow as pa

from jobpipe.cli.standing import without_publisher
from jobpipe.config import Config
from jobpipe.discovery.locate import TopicLocator
from jobpipe.errors import JobpipeError
from jobpipe.net.blocking import BlockingLink
from jobpipe.net.retry import RETRYABLE
from jobpipe.store import Boundary, Position
from jobpipe.subscriber.fetch import fetch_plan
from jobpipe.subscriber.hold import Held, held_while, lease_seconds
from jobpipe.subscriber.questions import control_link

__all__ = ["TopicReader"]

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
        self._lease = uuid.uuid4().hex

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
        news = self._call("bounds", {"name": "", "start": starting.to_json()})
        if timeout is None and (why := without_publisher(self._call("status", {}))) is not None:
            log.warning("topic %s: %s", self._topic, why)
        known = {"head": news["head"], "ended": news["ended"], "waiting": None}
        at = Position.from_json(news["start"])
        hold, quiet = True, time.monotonic()
        while True:
            head = Position.from_json(known["head"])
            if head != at:
                yield from self._range(at, head, hold=hold)
                at, hold, quiet = head, False, time.monotonic()
            if known["ended"]:
                return
            wait = POLL_SECONDS if timeout is None else min(POLL_SECONDS, quiet + timeout - time.monotonic())
            if wait <= 0:
                return
            known = self._call("poll", {**known, "wait": wait})

    def _range(self, start: Position, end: Position, *, hold: bool) -> Iterator[pa.RecordBatch]:
        """Yield what lies between; ``hold`` keeps a backlog from retention while we read it."""
        held = Held(self._topic, self._lease, start.n, end.n, "", lease_seconds(self._config)) if hold else None
        if held is not None:
            self._call("lease", held.args())
            held = None if self._link is None else replace(held, control=self._link.peer)
        try:
            answer = self._call("range", {"start": start.to_json(), "end": end.to_json()})
            with held_while(held, self._config):
                for plan in answer["plans"]:
                    for fetched in fetch_plan(self._topic, plan, answer["data"], self._config):
                        yield fetched.batch
        finally:
            if hold and self._link is not None:
                with contextlib.suppress(JobpipeError):  # it ends by itself
                    self._link.call("release", {"id": self._lease}, timeout=CALL_SECONDS)

    def _call(self, op: str, args: dict[str, Any]) -> dict[str, Any]:
        """Ask the coordinator, over as many links as it takes. Only for questions that may be repeated."""
        deadline = time.monotonic() + self._config.discovery_timeout
        while True:
            if self._link is None:
                self._link = self._owned.enter_context(control_link(self._config, self._locator, self._topic, deadline))
            try:
                return self._link.call(op, args, timeout=CALL_SECONDS).result
            except RETRYABLE:  # it ended, or it hands the topic over
                self._link = None
                self._owned.close()
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)
