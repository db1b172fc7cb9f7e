"""What a task reads: the record batches of its partitions, one after another, with the place after each."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from jobpipe.config import Config
from jobpipe.errors import DataLoss
from jobpipe.flows.task_links import ControlLink
from jobpipe.operations.flow_operations import FollowedPart, FollowRequest, PartAt
from jobpipe.store.catalog.position import Position
from jobpipe.subscribing.fetching.part_fetch import Fetched, FetchRange, decode, fetch

log = logging.getLogger(__name__)

WAIT_SECONDS = 2.0  # of one question: a task that fails ends its reading so soon
LOOK_SECONDS = 0.1  # whether the flow is stopped
AHEAD = 2  # record batches that wait for the function
LEAVE_SECONDS = 0.3  # for a reading that is to end; one that waits for an answer ends by itself when that comes


@dataclass(frozen=True)
class Item:
    """A record batch and the place after it in its partition; without one, nothing lies before that place.

    Attributes:
        index: which record batch of its partition of its batch it is.
    """

    partition: int
    to: Position
    fetched: Fetched | None = None
    index: int = 0


@dataclass(frozen=True)
class Flush:
    """Whether cursors are to move at once: the source's publisher waits for them, or does no longer."""

    on: bool


@dataclass(frozen=True)
class EndOfStream:
    """The flow is stopped."""


@dataclass(frozen=True)
class Repartitioned:
    """The source has more partitions now."""

    partitions: int


Read: TypeAlias = Item | Flush | EndOfStream | Repartitioned


@dataclass(frozen=True)
class SourceReader:
    """Reads some partitions of a topic, from their cursors on.

    Attributes:
        name, grant: of the subscription.
        partitions: how many the source has, as far as the driver knows.
        skip_removed: begin at what is there where something is removed.
    """

    config: Config
    topic: str
    name: str
    grant: int
    partitions: int
    skip_removed: bool = False

    def items(self, places: dict[int, Position], stopped: Callable[[], bool]) -> Generator[Read]:
        """Yield what comes, until the flow is stopped or the source has more partitions.

        Args:
            places: where each partition goes on.
            stopped: asked between two questions.

        Raises:
            DataLoss: what comes next is not there any more.
            Fenced: another has the subscription.
            LinkError, TopicNotFound: the source was not served within ``read.timeout``.
        """
        places, hurries = dict(places), False
        link = ControlLink(self.config, self.topic, "reader", stopped)
        try:
            while not stopped():
                parts = tuple(PartAt(partition, at) for partition, at in sorted(places.items()))
                asked = FollowRequest(
                    *(self.name, self.grant, parts, self.partitions, self.skip_removed, WAIT_SECONDS, hurries)
                )
                reply = link.ask(asked, timeout=WAIT_SECONDS + 20.0)
                if reply.over:
                    yield EndOfStream()
                    return
                if reply.partitions > self.partitions:
                    yield Repartitioned(reply.partitions)
                    return
                if reply.hurry != hurries:
                    hurries = reply.hurry
                    yield Flush(hurries)
                for part in reply.parts:
                    self._warn_of_loss(places[part.partition], part)
                    yield from self._read(part, reply.data)
                    places[part.partition] = part.end
        finally:
            link.close()

    def _read(self, part: FollowedPart, data: str) -> Iterator[Item]:
        at, start = part.start, Position(part.start.log, part.start.epoch, part.start.n)
        if part.fetch:
            stream = self._fetched(FetchRange(self.topic, start, part.end, part.partition, data), at.r)
        else:
            stream = (fetched for held in part.held for fetched in decode(held, self.topic))
        # Each waits for the next one: the place after it is where that one is, and the place after the last is the end.
        held: tuple[Fetched, int] | None = None
        for fetched in stream:
            header = fetched.header
            index = at.r if header.n == at.n else 0
            here = Position(at.log, header.before or 0, header.n, index)
            if held is not None:
                yield Item(part.partition, here, *held)
            held, at = (fetched, index), Position(here.log, here.epoch, here.n, index + 1)
        yield Item(part.partition, part.end) if held is None else Item(part.partition, part.end, *held)

    def _fetched(self, wanted: FetchRange, skip: int) -> Iterator[Fetched]:
        """Yield a range's record batches, without those of batches that a lost host server keeps, if that is allowed.

        Args:
            skip: record batches of the range that were read before.
        """
        while wanted.start.place < wanted.end.place:
            try:
                yield from fetch(wanted, self.config, skip=skip)
                return
            except DataLoss as error:
                following = _after_lost(error, wanted) if self.skip_removed else None
                if following is None:
                    raise
                log.warning("%s; failOnDataLoss=false: reading continues at %d", error.message, following.n)
                wanted, skip = replace(wanted, start=following), 0

    def _warn_of_loss(self, at: Position, part: FollowedPart) -> None:
        if part.start.n > at.n:
            log.warning(
                "topic %s, partition %d: batches %d to %d are missing; failOnDataLoss=false: reading continues at %d",
                *(self.topic, part.partition, at.n, part.start.n - 1, part.start.n),
            )


def _after_lost(error: DataLoss, wanted: FetchRange) -> Position | None:
    """Return the place after a batch that a lost host server keeps; None if something else is lost."""
    n, epoch = error.fields.get("offset"), error.fields.get("epoch")
    if error.fields.get("reason") != "host lost" or not isinstance(n, int) or not isinstance(epoch, int):
        return None
    return Position(wanted.start.log, epoch, n + 1) if n >= wanted.start.n else None


class Prefetch:
    """Reads ahead in a thread of its own: at most two record batches wait for the function.

    Use it as a context manager; iterating it yields the items until ``stopped()``, or raises what ended the reading.
    """

    def __init__(
        self,
        make: Callable[[Callable[[], bool]], Generator[Read]],
        name: str,
        stopped: Callable[[], bool],
    ) -> None:
        self._make = make
        self._stopped = stopped
        self._stop = threading.Event()
        self._queue: queue.Queue[Read | Exception] = queue.Queue(AHEAD)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Prefetch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(LEAVE_SECONDS)

    def __iter__(self) -> Iterator[Read]:
        while not self._stopped():
            try:
                item = self._queue.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(item, Exception):
                raise item
            yield item

    def _run(self) -> None:
        try:
            with contextlib.closing(self._make(self._stop.is_set)) as items:
                for item in items:
                    self._put(item)
                    if self._stop.is_set():
                        return
        except Exception as error:
            log.debug("reading ended", exc_info=True)
            self._put(error)

    def _put(self, item: Read | Exception) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return
