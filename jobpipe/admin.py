"""What an administrator asks: which topics there are, and how each one stands."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TypeVar

from jobpipe.config import Config
from jobpipe.deletion import Deleter, Deletion
from jobpipe.discovery.dial import dial_blocking
from jobpipe.discovery.registry_handler import map_registry_errors
from jobpipe.discovery.topic_lookup import Location, TopicLocator, from_records
from jobpipe.errors import DataLoss, JobpipeError, LinkError, RegistryUnavailable, TopicAway, TopicNotFound
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.operations.admin_operations import (
    DropLeaseRequest,
    DropRequest,
    HoldReply,
    HoldRequest,
    LeaseReply,
    MovedReply,
    ReleaseHoldRequest,
    RequiredReply,
    RequireRequest,
    SeekRequest,
)
from jobpipe.operations.flow_operations import ResetFlowRequest
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.operations.reader_operations import BoundsRequest, RangeRequest
from jobpipe.operations.status_operations import LedgerReply, StatusRequest, TopicStatus
from jobpipe.status_walk import Answer, LedgerAnswer, StatusWalk
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.spool_folders import has_spool
from jobpipe.store.reading.boundary import COMMITTED, Boundary
from jobpipe.store.spool.spool_files import is_topic
from jobpipe.wire.wire_messages import Hello

log = logging.getLogger(__name__)
T = TypeVar("T", TopicStatus, LedgerReply)

AWAY = (TopicAway, LinkError, RegistryUnavailable)
"""Errors of :class:`Admin` after which the same may be asked again later: nothing was changed, or it is not known.

What drops or releases something may have done so before its answer was lost; then the name is not found."""


@dataclass(frozen=True)
class TopicLine:
    """One topic as the registry has it; ``location`` is None while it is not served."""

    name: str
    location: Location | None


@dataclass(frozen=True)
class Distance:
    """What lies between a subscription's position and another place of its topic.

    Attributes:
        position: where it stands; None: nowhere yet.
        target: the other place.
        rows: how many lie between, of those that are kept; None: that cannot be said.
        lost: batches that were removed before it had read them.
        problem: why it cannot be said; "" if it can.
    """

    position: Position | None
    target: Position
    rows: int | None
    lost: int = 0
    problem: str = ""


@dataclass(frozen=True)
class NewestRows:
    """The newest batches of a topic that together have at most so many rows; the newest one, if that alone has more.

    Attributes:
        start: the offset of the first of them.
        rows: in all of them.
        all: rows that the topic has.
    """

    start: int
    rows: int
    all: int


class Admin:
    """A registry session and one-off requests to coordinators; a context manager."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._locator = TopicLocator(config)
        self._walk = StatusWalk(config)
        self._places: dict[str, Location] = {}  # where topics were found last; replaced as a whole

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the registry session, and the links to coordinators."""
        self._walk.close()
        self._locator.close()

    def topics(self) -> list[TopicLine]:
        """Return all topics of the namespace, by name.

        Raises:
            RegistryUnavailable: the registry does not answer.
        """
        with map_registry_errors():
            names = self._locator.handler.topics()
        places = self._look_up(names)
        self._places = places
        return [TopicLine(name, places.get(name)) for name in names]

    def known_topics(self) -> list[str]:
        """Return the names of all topics that were ever published in the namespace and not deleted.

        Raises:
            RegistryUnavailable: the registry does not answer.
        """
        with map_registry_errors():
            return self._locator.handler.known_topics()

    def statuses(self, topics: Sequence[str], timeout: float) -> dict[str, TopicStatus]:
        """Return the status of each topic whose coordinator answers us in time; all are asked at once."""
        found: dict[str, TopicStatus] = {}
        for topic, answer in self.answers(topics, timeout).items():
            if isinstance(answer, TopicStatus):
                found[topic] = answer
            else:
                log.info("topic %s: no status (%s)", topic, answer)
        return found

    def answers(self, topics: Sequence[str], timeout: float) -> dict[str, Answer]:
        """Return for each topic its status, or the error for which there is none; all coordinators are asked at once.

        Args:
            topics: their names.
            timeout: seconds in which a coordinator must be reached, and then for each of its answers.
        """
        return self._answers(topics, lambda places: self._walk.ask(places, timeout))

    def ledgers(
        self, topics: Sequence[str], timeout: float, *, minutes: int = 60, name: str | None = None
    ) -> dict[str, LedgerAnswer]:
        """Return for each topic its ledger, or the error for which there is none; all coordinators are asked at once.

        Args:
            topics, timeout: as of :meth:`answers`.
            minutes: the newest ones in which something was published.
            name: of the one subscription to ask for; None: all.
        """
        return self._answers(topics, lambda places: self._walk.ledgers(places, timeout, minutes=minutes, name=name))

    def _answers(
        self, topics: Sequence[str], ask: Callable[[Sequence[Location]], dict[str, T | JobpipeError]]
    ) -> dict[str, T | JobpipeError]:
        """Ask where topics were found last, and those that do not answer there where they are found now."""
        places = {topic: self._places[topic] for topic in topics if topic in self._places}
        found = ask(list(places.values()))
        missing = [topic for topic in topics if topic not in found or isinstance(found[topic], JobpipeError)]
        if not missing:
            return found
        try:
            new = self._look_up(missing)
        except JobpipeError as error:
            return {topic: found.get(topic, error) for topic in topics}
        kept = {topic: place for topic, place in self._places.items() if topic not in missing}
        self._places = {**kept, **new}
        moved = [place for topic, place in new.items() if place != places.get(topic)]
        found |= ask(moved)
        for topic in missing:
            if topic not in new and topic not in found:
                found[topic] = TopicAway(f"topic {topic!r} is not served now", topic=topic)
        return {topic: found[topic] for topic in topics}

    def _look_up(self, topics: Sequence[str]) -> dict[str, Location]:
        """Return where those of the topics are served that are. Raises RegistryUnavailable."""
        with map_registry_errors():
            records = self._locator.handler.records_of(topics)
        places = {topic: from_records(topic, found) for topic, found in records.items()}
        return {topic: place for topic, place in places.items() if place is not None}

    def locate(self, topic: str) -> Location:
        """Return where ``topic`` is served now.

        Raises:
            TopicAway: it was published before, and is not served now; says what the registry knows of it.
            TopicNotFound: it was never published.
        """
        with map_registry_errors():
            found = from_records(topic, self._locator.handler.records(topic))
        if found is None:
            kind = TopicAway if self._was_published(topic) else TopicNotFound
            raise kind(f"topic {topic!r} is not served: {self._locator.why_absent(topic)}", topic=topic)
        return found

    def status(self, topic: str, timeout: float = 5.0) -> TopicStatus:
        """Return the coordinator's status of ``topic``.

        Raises:
            TopicNotFound: it is not served.
            LinkError: its coordinator does not answer.
        """
        with self._link(topic) as link:
            return ask_blocking(link, StatusRequest(), timeout=timeout)

    def seek(self, topic: str, name: str, to: str | int | datetime | Boundary, *, dry_run: bool = False) -> MovedReply:
        """Move a subscription that has no holder to ``earliest``, ``latest``, an offset, or a time with its zone.

        Returns:
            Where it stood and stands, in offsets; with ``dry_run`` nothing is changed.

        Raises:
            NameTaken: a live subscriber holds it; the message names it.
            SubscriptionNotFound, DataLoss: there is no such subscription, or no such offset.
            ConfigError: nothing was published since that time.
        """
        asked = SeekRequest(name, Boundary.of(to, "to"), dry_run)
        with self._link(topic) as link:
            return ask_blocking(link, asked, timeout=10.0)

    def distance(self, topic: str, name: str, to: Boundary) -> Distance:
        """Return what :meth:`seek` would pass: rows are counted by the coordinator, none is read.

        This needs the right to read the topic.

        Raises:
            DataLoss, ConfigError: as :meth:`seek`, of the place to go to.
            NotAuthorized: we may not read the topic.
        """
        with self._link(topic, "reader") as link:
            target = ask_blocking(link, BoundsRequest(start=to), timeout=10.0).start
            try:
                bounds = ask_blocking(link, BoundsRequest(name=name, start=COMMITTED), timeout=10.0)
            except DataLoss as loss:
                position = Position.from_json(loss.fields["position"])
                if loss.fields["reason"] != "removed":
                    return Distance(position, target, None, problem=loss.message)
                tail = ask_blocking(link, BoundsRequest(), timeout=10.0).tail
                return Distance(position, target, _rows_between(link, tail, target), tail.n - position.n)
            if bounds.standing is None:
                return Distance(None, target, None, problem="it has no position yet")
            return Distance(bounds.start, target, _rows_between(link, bounds.start, target))

    def newest(self, topic: str, rows: int) -> NewestRows:
        """Return where the newest rows of a topic begin, by halving; this needs the right to read it."""
        with self._link(topic, "reader") as link:
            bounds = ask_blocking(link, BoundsRequest(), timeout=10.0)

            def from_offset(n: int) -> int:
                start = ask_blocking(link, BoundsRequest(start=Boundary("offset", n)), timeout=10.0).start
                return _rows_between(link, start, bounds.head)

            low, high = bounds.tail.n, bounds.head.n
            everything = from_offset(low)
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if from_offset(middle) <= rows else (middle + 1, high)
            if low > bounds.tail.n and from_offset(low) == 0:
                low -= 1
            return NewestRows(low, from_offset(low), everything)

    def flow_keeper(self, topic: str, name: str, timeout: float = 5.0) -> str | None:
        """Return which topic that is served keeps cursors of flow ``name`` for the log that ``topic`` has now.

        Returns:
            None if no topic that answers does.
        """
        served = [line.name for line in self.topics() if line.location is not None]
        found = self.statuses(served, timeout)
        source = found.get(topic)
        if source is None:
            return None
        wanted = (name, topic, source.log)
        keepers = (
            each for each in found.values() for flow in each.flows if (flow.flow, flow.topic, flow.log) == wanted
        )
        return next((each.topic for each in keepers), None)

    def drop(self, topic: str, name: str, *, dry_run: bool = False) -> MovedReply:
        """Delete a subscription that has no holder; returns and raises as :meth:`seek`.

        A required one stays required: it is made again when its reader returns, and ``acks=all`` waits for it. So
        :meth:`require` it no more first.
        """
        with self._link(topic) as link:
            return ask_blocking(link, DropRequest(name, dry_run), timeout=10.0)

    def delete(self, topic: str, *, unread: bool = False, dry_run: bool = False) -> Deletion:
        """Delete a topic that is not served: its spool on this host, its epoch and recovery point in the registry.

        Args:
            unread: delete also what subscriptions have not read, or may not have read: where no spool is here.
            dry_run: check, and change nothing.

        Raises:
            TopicNotFound: neither the registry nor the spool folder knows it.
            TopicOwned: it is served, or about to be.
            DataLoss: subscriptions have not read everything; names them.
            SpoolError: its spool is not here, of another namespace, or cannot be removed.
        """
        return Deleter(self.config, self._locator).delete(topic, unread=unread, dry_run=dry_run)

    def drop_lease(self, topic: str, lease: str, *, dry_run: bool = False) -> LeaseReply:
        """Take a lease away, so that what it holds may be removed; the read that took it fails if that happens.

        Returns:
            What it held; times in seconds. With ``dry_run`` nothing is changed.

        Raises:
            TopicNotFound: there is no such lease, or the topic is not served.
        """
        with self._link(topic) as link:
            return ask_blocking(link, DropLeaseRequest(lease, dry_run), timeout=10.0)

    def reset_flow(self, topic: str, flow: str, *, dry_run: bool = False) -> tuple[str, ...]:
        """Delete the cursors that ``topic`` keeps of a flow job, so that the flow begins again.

        Returns:
            The flow's sources, one for each of their logs. With ``dry_run`` nothing is changed.

        Raises:
            FlowNotFound: the topic keeps none.
            TopicNotFound: the topic is not served.
        """
        with self._link(topic) as link:
            return ask_blocking(link, ResetFlowRequest(flow, dry_run), timeout=10.0).topics

    def holds(self, topic: str, timeout: float = 5.0) -> list[HoldReply]:
        """Return the holds of ``topic``, those that hold most first, and the gaps that are left of some.

        Raises:
            TopicAway: it is not served now.
            TopicNotFound, LinkError: it was never published; its coordinator does not answer.
        """
        return list(self.status(topic, timeout).holds)

    def hold(
        self,
        topic: str,
        name: str,
        to: str | int | datetime | Boundary | Position,
        *,
        max_time: float | None = None,
    ) -> HoldReply:
        """Keep what lies from a place on for a scheduled job, until the hold is moved on, released, or too old.

        A place at which it stands already, or before that, moves nothing; release it first to hold more.

        Args:
            topic: the topic.
            name: of the hold; the job that reads will use the same for its subscription.
            to: ``earliest``, ``latest``, an offset, a time with its zone, or a position.
            max_time: seconds for which it may stay where it is; at most the publisher's ``jobpipe.hold.max_time``.

        Returns:
            How it stands. With ``gap`` it was dropped and not moved on by this call: what lies from ``offset`` on may
            be missing, and ``lost`` batches are.

        Raises:
            DataLoss: what lies there was removed.
            NotAuthorized: another identity took it, and we may not administer the topic.
            ConfigError: too many holds; nothing was published since that time.
            TopicAway: the topic is not served now.
        """
        boundary = Boundary("position", to) if isinstance(to, Position) else Boundary.of(to, "to")
        with self._link(topic) as link:
            return ask_blocking(link, HoldRequest(name, boundary, max_time), timeout=10.0)

    def release(self, topic: str, name: str, *, dry_run: bool = False) -> HoldReply:
        """Give a hold back, or forget a gap; return how it stood. With ``dry_run`` nothing is changed.

        Raises:
            HoldNotFound: there is none of that name.
            NotAuthorized: another identity took it, and we may not administer the topic.
            TopicAway: the topic is not served now.
        """
        with self._link(topic) as link:
            return ask_blocking(link, ReleaseHoldRequest(name, dry_run), timeout=10.0)

    def require(self, topic: str, name: str, *, required: bool = True, dry_run: bool = False) -> RequiredReply:
        """Make a subscription required, created at the oldest batch if it is missing, or not required any more.

        That holds until the publisher declares other required subscriptions than it did before. A publisher that waits
        looks again at once.

        Returns:
            Whether it was required before, and all that are now. With ``dry_run`` nothing is changed.

        Raises:
            ConfigError: there are too many.
            TopicAway: the topic is not served now.
        """
        with self._link(topic) as link:
            return ask_blocking(link, RequireRequest(name, required, dry_run), timeout=10.0)

    def _was_published(self, topic: str) -> bool:
        """Tell whether the registry has heard of a topic, or its spool is here; a registry that is away is an error."""
        with map_registry_errors():
            known = self._locator.handler.epoch(topic) > 0 or self._locator.handler.is_claimed(topic)
        return known or (is_topic(topic) and has_spool(self.config.spool_dir / topic))

    @contextmanager
    def _link(self, topic: str, role: str = "admin") -> Iterator[BlockingLink]:
        hello = Hello(topic=topic, role=role, instance=f"admin-{os.getpid()}")
        try:
            link = dial_blocking(self.config, self.locate(topic).control, hello)
            try:
                yield link
            finally:
                link.close()
        except TopicNotFound as error:
            if isinstance(error, TopicAway) or "lease" in error.fields or not self._was_published(topic):
                raise
            raise TopicAway(error.message, **error.fields) from error  # it was registered, and went away meanwhile


def _rows_between(link: BlockingLink, one: Position, other: Position) -> int:
    start, end = sorted((one, other), key=lambda position: position.place)
    return sum(plan.rows for plan in ask_blocking(link, RangeRequest(start=start, end=end), timeout=10.0).plans)
