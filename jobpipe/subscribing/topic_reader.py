"""Reads a topic without a subscription: nothing is acknowledged, and retention does not wait for us."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import TracebackType

import pyarrow as pa

from jobpipe.config import Config
from jobpipe.discovery.topic_lookup import TopicLocator
from jobpipe.errors import JobpipeError, SchemaMismatch
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.retry import RETRYABLE, Deadline
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.operations.messages.message_fields import R, RequestFor
from jobpipe.operations.publisher_operations import marked_rows
from jobpipe.operations.range_messages import News, PlannedRange
from jobpipe.operations.reader_operations import (
    Bounds,
    BoundsRequest,
    RangeReply,
    RangeRequest,
    ReleaseRequest,
    SchemaRequest,
)
from jobpipe.operations.status_operations import StatusRequest
from jobpipe.operations.subscriber_operations import PollRequest
from jobpipe.store.catalog.position import Position
from jobpipe.store.catalog.redrive_marks import SourceRow
from jobpipe.store.reading.boundary import Boundary
from jobpipe.subscribing.absent_publisher import without_publisher
from jobpipe.subscribing.fetching.part_fetch import Fetched, FetchRange, fetch, fetch_plan
from jobpipe.subscribing.lease_renewal import HeldLease, held_while, lease_seconds
from jobpipe.subscribing.one_off_requests import control_link

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
        bounds = self.bounds(starting)
        if timeout is None and (why := without_publisher(self._call(StatusRequest()))) is not None:
            log.warning("topic %s: %s", self._topic, why)
        known = News(head=bounds.head, ended=bounds.ended)
        at = bounds.start
        hold, quiet = True, time.monotonic()
        while True:
            if known.head != at:
                yield from (fetched.batch for fetched in self.fetch(at, known.head, hold=hold))
                at, hold, quiet = known.head, False, time.monotonic()
            if known.ended:
                return
            wait = POLL_SECONDS if timeout is None else min(POLL_SECONDS, quiet + timeout - time.monotonic())
            if wait <= 0:
                return
            known = self._call(PollRequest(head=known.head, ended=known.ended, waiting=known.waiting, wait=wait))

    def bounds(self, start: Boundary, end: Boundary | None = None) -> Bounds:
        """Return where a read would begin and end, and what the log has.

        Raises:
            DataLoss: the start was removed, or never was there.
            ConfigError: nothing was published since the time to begin at; or the start comes after the end.
        """
        return self._call(BoundsRequest(start=start, end=end))

    def marked(self, rows: Sequence[SourceRow]) -> set[SourceRow]:
        """Return those of some rows of the topic that were published in it again."""
        return marked_rows(self._call, rows)

    def shape(self, start: Position, end: Position) -> tuple[int, bytes, str | None]:
        """Return the partitions, and the schema as Arrow and Spark have it, of the first rows between.

        Raises:
            SchemaMismatch: there are none.
        """
        for plan in self._call(RangeRequest(start=start, end=end)).plans:
            if plan.rows and (found := self._call(SchemaRequest(id=plan.schema_id)).schema) is not None:
                return plan.partitions, *found
        raise SchemaMismatch(
            f"topic {self._topic!r}: there are no rows from offset {start.n} to {end.n}, and so no schema",
            topic=self._topic,
        )

    def ranges(self, start: Position, end: Position) -> RangeReply:
        """Return what lies between, one plan for each run of batches of one shape.

        Raises:
            DataLoss: an end was removed, or never was there.
        """
        return self._call(RangeRequest(start=start, end=end))

    def fetch_plan(self, plan: PlannedRange, data: str) -> Iterator[Fetched]:
        """Yield the record batches of a plan of :meth:`ranges`, batch after batch, and within one by partition."""
        return fetch_plan(self._topic, plan, data, self._config)

    def fetch_partition(self, plan: PlannedRange, data: str, partition: int, skip: int) -> Iterator[Fetched]:
        """Yield the record batches of one partition of a plan, without the first ``skip``."""
        return fetch(FetchRange(self._topic, plan.start, plan.end, partition, data), self._config, skip=skip)

    def fetch(self, start: Position, end: Position, *, hold: bool = True) -> Iterator[Fetched]:
        """Yield the record batches that lie between, with their places.

        Args:
            hold: keep them from retention while they are read.

        Raises:
            DataLoss: some were removed, or are lost with a host server.
        """
        with self.hold_range(start, end) if hold else contextlib.nullcontext():
            reply = self._call(RangeRequest(start=start, end=end))
            for plan in reply.plans:
                yield from fetch_plan(self._topic, plan, reply.data, self._config)

    @contextlib.contextmanager
    def hold_range(self, start: Position, end: Position) -> Iterator[None]:
        """Keep what lies between from retention while the block lasts."""
        held = HeldLease(self._topic, self._lease, start.n, end.n, "", lease_seconds(self._config))
        self._call(held.request())
        try:
            with held_while(None if self._link is None else replace(held, control=self._link.peer), self._config):
                yield
        finally:
            if self._link is not None:
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
