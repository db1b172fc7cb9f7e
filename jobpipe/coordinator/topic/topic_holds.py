"""The holds of one topic: what scheduled jobs that do not run now have still to read."""

from __future__ import annotations

import dataclasses
import time

from jobpipe.coordinator.topic.topic_state import TopicState
from jobpipe.errors import TopicNotFound
from jobpipe.operations.admin_operations import HoldReply, HoldRequest
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.boundary import Boundary
from jobpipe.store.subscriptions.holds import Hold


class TopicHolds:
    """Takes and releases holds. All that is known of them is in the log, so a coordinator may come and go."""

    def __init__(self, topic: TopicState) -> None:
        self._topic = topic

    async def take(self, owner: str, asked: HoldRequest, *, others: bool) -> HoldReply:
        """Make a hold, or move it on; see :meth:`jobpipe.store.subscriptions.holds.Holds.take`.

        Args:
            owner: the identity that asks.
            asked: the hold, and where; ``committed`` is where it stands, the tail for a new one.
            others: holds of other owners may be moved.

        Raises:
            TopicNotFound: the spool was lost, and where the topic goes on is not known yet.
            NotAuthorized, ConfigError: it is another owner's; the owner, or the topic, has too many.
            DataLoss: the position does not fit, or was removed.
        """
        most = self._topic.config.hold_max_time
        max_time = most if asked.max_time is None else min(asked.max_time, most)

        def work() -> Hold:
            store = self._topic.store
            return store.holds.take(asked.name, owner, _located(store, asked.to, asked.name), max_time, others=others)

        return _reply(await self._topic.run_then(work, lambda _: self._topic.acked.notify_all()))

    async def release(self, name: str, owner: str, *, others: bool, dry_run: bool) -> HoldReply:
        """Give a hold back; what only it kept may go from now on.

        Raises:
            HoldNotFound: there is none of that name.
            NotAuthorized: it is another owner's.
        """

        def work() -> Hold:
            return self._topic.store.holds.release(name, owner, others=others, dry_run=dry_run)

        return _reply(await self._topic.run_then(work, lambda _: self._topic.acked.notify_all()))


def hold_words(topic: str, hold: Hold) -> str:
    """Say which hold keeps a spool full, whose it is, and until when."""
    return (
        f"hold {hold.name!r} of {hold.owner} keeps batches from offset {hold.offset} on until a scheduled job has "
        f"read them, until {_until(hold.left or 0.0)} at the latest; "
        f"`jobpipe topics holds drop {topic} {hold.name}` ends it"
    )


def _until(left: float) -> str:
    """Return the wall clock's time in so many seconds, by whole minutes: each other text is news to subscribers."""
    minute = -int(-(time.time() + max(left, 0.0)) // 60) * 60
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(minute))


def _located(store: TopicLog, to: Boundary, name: str) -> Position:
    """Return the position that a boundary means; in the log's thread."""
    known = isinstance(to.value, Position) and store.recovery.resolve(to.value) is not None
    if not known and store.recovery.undecided is not None:
        raise TopicNotFound(
            f"topic {store.topic!r}: its spool was lost; where it continues is known once its publisher has sealed the "
            "next batch",
            topic=store.topic,
        )
    batches, stands = store.batches, store.holds.offset_of(name)
    named = store.resolver.end(to) if to.kind in ("offset", "position") else None
    if named is not None and stands is not None and named.n <= stands:
        return named  # it may be removed already, and is no move
    return store.resolver.resolve(to, None, committed=batches.tail() if stands is None else batches.at(stands)).start


def _reply(hold: Hold) -> HoldReply:
    return HoldReply(**dataclasses.asdict(hold))
