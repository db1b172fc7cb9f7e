"""The plain Python client: follow a topic without Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from jobpipe.config import Config, load_given
from jobpipe.discovery.configured_tls import dial_tls
from jobpipe.discovery.topic_lookup import TopicLocator
from jobpipe.errors import ConfigError, JobpipeError
from jobpipe.net.links.fork_guard import ForkGuard
from jobpipe.net.retry import Deadline
from jobpipe.operations.data_operations import PartHeader
from jobpipe.operations.subscriber_operations import AckRequest, FirstRequest, PlanReply, PlanRequest
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import Boundary
from jobpipe.subscribing.fetching.part_fetch import Fetched, decode, fetch_plan, is_intact
from jobpipe.subscribing.topic_follower import ANSWER_SECONDS, FollowerState, TopicFollower
from jobpipe.subscribing.wait_logging import connect
from jobpipe_registry.names import check_name
from jobpipe_registry.registry_errors import InvalidName

log = logging.getLogger(__name__)

PLAN_SECONDS = 15.0  # that one plan waits for rows
LINK_SECONDS = 1.0  # that news, or a link, are waited for between two plans which do not wait
ACK_SECONDS = 2.0
ACK_EVERY_SECONDS = 0.1  # at most: an acknowledgement costs a round trip, small batches come by the thousand
PLAN_BYTES = 64 * 1024 * 1024  # of whole batches for which one plan, and one stream a partition, will do


class Subscription:
    """A named, durable position in a topic; iterating it yields record batches, for ever or until the end mark.

    The publisher's batches come one after another, each by partition: order holds within a partition. Batches that
    were read are acknowledged with each request for more rows, in between at most ten times a second, and by
    :meth:`close`. So a reader that is killed and returns reads the batch it was in again, from its first row, and
    perhaps some that it read just before: at least once. Use it as a context manager, or call :meth:`close`.

    Ctrl-C raises KeyboardInterrupt out of the loop, as anywhere in Python; the context manager then closes within
    seconds, whatever the publisher does.
    """

    def __init__(self, topic: str, *, name: str, starting: Boundary, config: Config) -> None:
        self.topic = topic
        self.name = name
        self._config = config
        self._owner = ForkGuard(f"topic {topic!r}: this subscription")
        self._starting = starting
        self._locator = TopicLocator(config)
        self._follower = TopicFollower(topic, name, locator=self._locator, tls=partial(dial_tls, config), polls=False)
        self._unacknowledged = False  # batches before `_position` that no acknowledgement or plan has told of
        self._acknowledged_at = 0.0
        self._read = 0  # rows before `_position` that the caller was given by this object, for the ledger
        self._position: Position | None = None
        self._started = False

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the name go; the position stays with the publisher. Nothing is done in a fork of the process it is of."""
        if not self._owner.is_here:
            return
        with ExitStack() as stack:  # a second Ctrl-C ends the step it comes in, and no other
            stack.callback(self._locator.close)
            stack.callback(self._follower.close)
            if self._unacknowledged:
                self._acknowledge()

    def position(self, *, patient: bool = True) -> Position:
        """Return where the next batch begins, asking for the first position once.

        Args:
            patient: wait without end for the publisher of a topic that was published before; else, as for one that
                never was, ``discovery.timeout``.

        Raises:
            TopicNotFound: no publisher came in time.
            DataLoss: the log does not have the offset to start at.
            ConfigError: nothing was published since the time to start at.
            ForkedProcess: this is a fork of the process that subscribed.
        """
        self._owner.require()
        if not self._started:
            self._follower.start()
            timeout = self._config.discovery_timeout
            connect(self._follower, self._config, self._locator, timeout, patient=patient)
            self._started = True
        if self._position is None:
            reply = self._follower.call(
                lambda grant: FirstRequest(grant, self._starting), timeout=self._config.read_timeout
            )
            self._position = reply.position
        return self._position

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def batches(self, timeout: float | None = None) -> Iterator[pa.RecordBatch]:
        """Yield record batches; end at the end mark, or after ``timeout`` seconds without news.

        Raises:
            DataLoss: the position does not fit the log; names topic and missing range.
            NameTaken: another live subscriber has the name.
            TopicNotFound: no publisher came within ``discovery.timeout``, and the topic was never published, or there
                is a ``timeout``; with a ``timeout`` also if a publisher that was there is away for ``read.timeout``.
            ForkedProcess: this is a fork of the process that subscribed.
        """
        at = self.position(patient=timeout is None)
        deadline = Deadline(timeout)
        while True:
            self._owner.require()
            plan = self._plan(at, deadline.left(PLAN_SECONDS), patient=timeout is None)
            if plan is None:
                self._wait(at, deadline.left(LINK_SECONDS))
                if deadline.passed:
                    return
                continue
            start, end = plan.start, plan.end
            if end != start:
                header: PartHeader | None = None  # of what was yielded last
                rows = 0  # after `_position`
                for fetched in self._rows(plan):
                    if header is not None and header.n != fetched.header.n:
                        self._position = Position(start.log, header.epoch, header.n + 1, 0)
                        self._unacknowledged = True
                        self._read, rows = self._read + rows, 0
                        if time.monotonic() - self._acknowledged_at > ACK_EVERY_SECONDS:
                            self._acknowledge()
                    header = fetched.header
                    yield fetched.batch
                    rows += fetched.batch.num_rows
                    self._owner.require()
                at, self._unacknowledged = end, False
                self._position = end  # the next plan acknowledges it
                self._read += rows
                deadline = Deadline(timeout)
                continue
            at = self._position = start  # the same place, as the log counts it now
            news = self._follower.wait_beyond(at, 0.0)
            if plan.ends or (news is not None and news.ended and news.head == at):
                return
            if plan.news is None:  # it has not waited: its coordinator is older, or the link is new
                if not self._wait(at, LINK_SECONDS if timeout is None else timeout) and timeout is not None:
                    return
            elif deadline.passed:
                return

    def _rows(self, plan: PlanReply) -> Iterator[Fetched]:
        """Yield a plan's record batches, batch after batch; those that came with it, or else of the data process."""
        held = plan.held
        if held is not None and sum(part.header.rows for part in held) == plan.rows and all(map(is_intact, held)):
            return (fetched for part in held for fetched in decode(part, self.topic))
        return fetch_plan(self.topic, plan, plan.data or self._data_endpoint(), self._config)

    def _wait(self, at: Position, timeout: float) -> bool:
        """Wait for news up to ``timeout`` seconds; tell whether there are any."""
        news = self._follower.poll(at, timeout)
        return news is not None and (news.is_beyond(at) or news.ended)

    def _acknowledge(self) -> None:
        assert self._position is not None  # noqa: S101 - something was read
        self._acknowledged_at, self._unacknowledged = time.monotonic(), False
        try:
            at, read = self._position, self._read
            self._follower.call(lambda grant: AckRequest(grant, at, read), timeout=ACK_SECONDS, wait=False)
        except (JobpipeError, TimeoutError) as error:
            log.debug("topic %s: acknowledgement waits for the next one (%s)", self.topic, error)

    def _plan(self, at: Position, wait: float, *, patient: bool) -> PlanReply | None:
        """Acknowledge a position and plan what follows, waiting for it; None if the link was lost meanwhile.

        Args:
            wait: seconds for which the coordinator may wait for something to plan.
            patient: without a link, wait for one without end.

        Raises:
            TopicNotFound: there is no link, and none was made within ``read.timeout``.
        """
        read = self._read
        if self._follower.state is FollowerState.CONNECTED:
            plan = self._follower.ask_once(
                lambda grant: PlanRequest(grant, at, max_bytes=PLAN_BYTES, wait=wait, held=True, read=read),
                timeout=wait + ANSWER_SECONDS,
            )
        else:
            if patient:
                connect(self._follower, self._config, self._locator, self._config.read_timeout, patient=True)
            plan = self._follower.call(
                lambda grant: PlanRequest(grant, at, max_bytes=PLAN_BYTES, held=True, read=read),
                timeout=self._config.read_timeout,
            )
        if plan is not None and plan.news is not None:
            self._follower.note_news(plan.news)
        return plan

    def _data_endpoint(self) -> str:
        known = self._locator.current(self.topic) or self._follower.location  # a link outlives its registration
        return str((known or self._locator.wait(self.topic, self._config.read_timeout)).data)


def subscribe(
    topic: str,
    *,
    name: str,
    starting: str | int | datetime | Boundary = "committed",
    config: str | Path | Config | None = None,
    **overrides: Any,
) -> Subscription:
    """Subscribe to ``topic`` under ``name`` and return an iterable of ``pyarrow.RecordBatch``.

    Args:
        starting: ``committed`` (where this name stopped; a new name starts at ``latest``), ``earliest``, ``latest``,
            an offset, or a time with its zone: begin with the first batch published then or later.
        config: a file, or a loaded configuration; otherwise found as always.
        overrides: single settings, as for :class:`jobpipe.JobPipeSink`.

    Raises:
        ConfigError: a value does not fit.
    """
    start = Boundary.of(starting, "starting")
    if not name:
        raise ConfigError("name is empty: a subscription needs a name of its own", key="name")
    try:
        check_name(name)
    except InvalidName as error:
        raise ConfigError(f"name: {error}", key="name") from error
    loaded = load_given(config, overrides, caller=subscribe)
    return Subscription(topic, name=name, starting=start, config=loaded)
