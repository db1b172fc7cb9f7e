"""The log of one topic: what the coordinator's control process does with it."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from jobpipe.errors import Fenced, SpoolError, SpoolFull
from jobpipe.store import plan as planning
from jobpipe.store.batches import Batches
from jobpipe.store.boundary import Boundary
from jobpipe.store.cuts import Cutter
from jobpipe.store.database import Database
from jobpipe.store.files import CATALOG, SEGMENTS, Reserve, free_bytes, prepare_topic
from jobpipe.store.hosts import Hosts, LostBatch
from jobpipe.store.index import SegmentInfo
from jobpipe.store.locate import Locator, Window
from jobpipe.store.marker import mark_directory
from jobpipe.store.plan import Ahead, Plan
from jobpipe.store.position import Position
from jobpipe.store.recovery import Recovery, RecoveryPoint
from jobpipe.store.retention import Removed, Retention, Retirer
from jobpipe.store.seal import Last, NewBatch, Sealer
from jobpipe.store.slots import Slot, Slots
from jobpipe.store.status import describe_log
from jobpipe.store.subscriptions import Subscription, Subscriptions

__all__ = ["TopicLog"]

log = logging.getLogger(__name__)

_SHORTEN_AGAIN = 1.0  # seconds between two attempts that make a seal wait for readers in vain
_UPTIME_STEP = 10.0  # seconds of uptime that a crash may forget; each flush would cost an fsync


class TopicLog:
    """One topic's log, for one thread at a time. Every change needs the catalog's epoch to be :attr:`epoch`.

    Attributes:
        topic, log_id: The topic, and the random id made with the catalog.
        epoch: The epoch that this object acts for: the stored one at first, its own after :meth:`take_over`.
        directory, segments: The topic's directory, and the one that segment files are written to.
        uptime: Seconds during which a coordinator had the log open.
    """

    def __init__(
        self, database: Database, directory: Path, topic: str, *, fsync: bool, wall: Callable[[], float]
    ) -> None:
        self.topic = topic
        self.directory = directory
        self.segments = directory / SEGMENTS
        self._db = database
        self._wall = wall
        self._batches = Batches(database, topic)
        self._subscriptions = Subscriptions(database, self._batches)
        self._slots = Slots(database, self._batches)
        self._recovery = Recovery(database, self._batches)
        self._hosts = Hosts(database, self._batches)
        self._sealer = Sealer(database, self._batches, self._recovery, self._hosts, self.segments, fsync=fsync)
        self._locator = Locator(database, self._batches, self._recovery.resolve, wall)
        self._retirer = Retirer(database, self._batches, self._subscriptions, self._hosts, self.segments)
        self._reserve = Reserve(directory)
        if not self._reserve.take() or free_bytes(directory) < Reserve.BYTES // 10:
            self.make_room(reserve=True)
        self.log_id = self._batches.log_id
        self.epoch = int(database.value("SELECT epoch FROM meta"))
        self.uptime = float(database.value("SELECT uptime FROM meta"))
        self._written_uptime = self.uptime
        self._shorten_at = 0.0
        self.write_token = ""  # at host servers; known from the take-over on
        self._taken = False
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: Path,
        topic: str,
        *,
        fsync: bool = True,
        shared: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> TopicLog:
        """Open the log in ``directory`` (``<spool_dir>/<topic>``), or make it; ``shared`` with other hosts.

        Raises:
            SpoolError: the directory is not usable, or the catalog is damaged, of another format or topic.
        """
        prepare_topic(directory, topic)
        database = Database.create_or_open(directory / CATALOG, topic, fsync=fsync, shared=shared)
        try:
            return cls(database, directory, topic, fsync=fsync, wall=wall)
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Write what is pending and close; a log that was fenced has nothing to write. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._flush(force=True)
        except Fenced as error:
            log.info("topic %s: %s", self.topic, error)
        finally:
            self._db.close()

    def reopen(self) -> None:
        """Open the catalog anew after a SpoolError with ``fields["reopen"]``; grants, positions and epoch stay.

        What was being committed is there now, or never will be; the call that failed may be repeated.

        Raises:
            Fenced: another publisher has taken the log over meanwhile.
            SpoolError: the disk still fails; it may be tried again.
        """
        self._db.reopen(self.topic, self.log_id, self.epoch)
        self._subscriptions.reload()
        self._retirer.frontier.lower(self._retirer.acknowledged_n())

    def keep_to(self, namespace: str) -> None:
        """Bind the log to the namespace that it is published in; a topic of the same name elsewhere is another one.

        Raises:
            SpoolError: it is bound to another namespace; nothing is changed.
        """
        with self._db.take_over():
            known = self._db.value("SELECT namespace FROM meta")
            if known is None:
                self._db.execute("UPDATE meta SET namespace = ?", namespace)
            elif known != namespace:
                raise SpoolError(
                    f"{self.directory} holds the topic {self.topic!r} of namespace {known}, not of {namespace}: two "
                    "topics that are alike in name only. Give each namespace a jobpipe.spool.dir of its own",
                    file=str(self.directory),
                    namespace=known,
                )

    # -- epoch ---------------------------------------------------------------------------------------------------------

    def take_over(self, epoch: int, publisher: str) -> None:
        """Make ``epoch`` the topic's: all objects of lower epochs are fenced from now on.

        Raises:
            Fenced: the stored epoch is as high, or higher.
        """
        with self._db.take_over():
            stored = int(self._db.value("SELECT epoch FROM meta"))
            if epoch <= stored:
                raise Fenced(
                    f"topic {self.topic!r}: epoch {epoch} is not above the catalog's {stored}",
                    topic=self.topic,
                    epoch=epoch,
                    newest=stored,
                )
            self._db.execute("UPDATE meta SET epoch = ?", epoch)
            self._db.execute(
                "INSERT INTO epochs VALUES (?, ?, ?, ?)", epoch, self._batches.next_n(), publisher, self._wall()
            )
            self._retirer.clip_leases(self.uptime)
            token = self._hosts.write_token()
        self.epoch = epoch
        self.write_token = token
        self._taken = True
        self._subscriptions.reload()

    def mark(self, instance: str) -> None:
        """Note in the topic's directory that coordinator ``instance`` serves it, see :mod:`jobpipe.store.marker`.

        Raises:
            Fenced: another publisher has taken the log over; its mark stays.
            SpoolError: the disk refuses.
        """
        with self._db.write(self.epoch):
            mark_directory(self.directory, instance)

    # -- loss of the spool, see recovery.py ----------------------------------------------------------------------------

    @property
    def is_new(self) -> bool:
        """True while nobody has ever published into this log."""
        return int(self._db.value("SELECT count(*) FROM epochs WHERE publisher != ''")) == 0

    def restore(self, point: RecoveryPoint) -> None:
        """Make this new log the continuation of one that was lost: its id, and the offset where ``point`` says.

        Raises:
            Fenced: another publisher has begun to use the log since :attr:`is_new` was true; nothing is changed.
        """
        with self._db.take_over():
            if not self.is_new:
                raise Fenced(
                    f"topic {self.topic!r}: another publisher has taken the new log over meanwhile", topic=self.topic
                )
            self._recovery.begin(point)
        self._batches.log_id = self.log_id = point.log
        self.epoch = int(self._db.value("SELECT epoch FROM meta"))

    def recovery_point(self) -> RecoveryPoint:
        """Return where the topic would go on if the spool were lost now."""
        return self._recovery.undecided or self._recovery.now()

    def recovery_point_before(self, batch: NewBatch, *, rows: bool) -> RecoveryPoint | None:
        """Return where the topic would go on if the spool were lost while ``batch`` is being sealed.

        Args:
            rows: The batch has some.

        Returns:
            None for a batch that is sealed already: then nothing new is to be said.
        """
        last = self._sealer.last(batch.query_id) if batch.query_id else None
        if last is not None and batch.batch_id <= last.batch_id:
            return None
        return self._recovery.before(
            batch.query_id, batch.batch_id, epoch=self.epoch, visible=rows or batch.end, end_mark=batch.end
        )

    @property
    def waits_for_publisher(self) -> bool:
        """True while only the publisher's next batch can tell where a log goes on that was lost."""
        return self._recovery.undecided is not None

    def resolve(self, position: Position) -> Position | None:
        """Return a subscriber's position as this log counts it; None if it must wait, see :class:`Recovery`."""
        return self._recovery.resolve(position)

    # -- host servers, see hosts.py ------------------------------------------------------------------------------------

    def kept_by_hosts(self) -> dict[str, dict[str, int]]:
        """Return segments and bytes that lie with host servers, by host id."""
        return self._hosts.kept()

    def lost(self, first: int, end: int, gone: Collection[str]) -> list[LostBatch]:
        """Return the batches from ``first`` to ``end`` (exclusive) that have segments on hosts in ``gone``."""
        return self._hosts.lost(first, end, gone)

    def is_last(self, query_id: str, batch_id: int) -> bool:
        """Tell whether that batch is the newest of the log."""
        newest = self._batches.row(self._batches.next_n() - 1)
        return newest is not None and (newest["query_id"], newest["batch_id"]) == (query_id, batch_id)

    def take_back(self, query_id: str, batch_id: int) -> None:
        """Undo the seal of the newest batch, whose segments are lost, so that its publisher may seal it again.

        Raises:
            Fenced: our epoch is not above the one that sealed it: subscribers could not tell the two apart.
        """
        if self._batches.epoch_before(self._batches.next_n()) >= self.epoch:
            raise Fenced(f"topic {self.topic!r}: epoch {self.epoch} sealed this batch itself", topic=self.topic)
        with self._changing():
            self._hosts.take_back(query_id, batch_id)
        self._subscriptions.reload()

    def orphans(self, names: list[str], keep: Container[str]) -> list[str]:
        """Return those of a host server's files that no batch refers to; ``keep`` as for :meth:`sweep`."""
        return self._retirer.orphans(names, keep, epoch=self.epoch)

    def hosts_to_sweep(self) -> set[str]:
        """Return, once, the hosts whose files batches removed since the last call had."""
        found, self._retirer.left_on = self._retirer.left_on, set()
        return found

    # -- sealing -------------------------------------------------------------------------------------------------------

    def add_schema(self, arrow: bytes, spark_json: str | None) -> int:
        """Return the id of a schema, the same for the same one; it is the topic's newest now."""
        fingerprint = hashlib.sha256(len(arrow).to_bytes(8, "big") + arrow + (spark_json or "").encode()).digest()
        newest = self._db.one("SELECT id, fingerprint FROM schemas WHERE id = (SELECT schema_id FROM meta)")
        if newest is not None and newest["fingerprint"] == fingerprint:
            return int(newest["id"])
        with self._db.write(self.epoch):
            self._db.execute(
                "INSERT INTO schemas(fingerprint, arrow, spark) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                *(fingerprint, arrow, spark_json),
            )
            number = int(self._db.value("SELECT id FROM schemas WHERE fingerprint = ?", fingerprint))
            self._db.execute("UPDATE meta SET schema_id = ?", number)
        return number

    def newest_schema(self) -> tuple[int, bytes, str | None] | None:
        """Return (id, Arrow schema message, Spark's JSON) of the newest schema."""
        newest = self._db.value("SELECT schema_id FROM meta")
        return None if newest is None else self.schema(newest)

    def schema(self, number: int) -> tuple[int, bytes, str | None] | None:
        """Return (id, Arrow schema message, Spark's JSON) of a schema."""
        row = self._db.one("SELECT id, arrow, spark FROM schemas WHERE id = ?", number)
        return None if row is None else (row["id"], row["arrow"], row["spark"])

    def check_epoch(self) -> None:
        """Raise Fenced if another publisher has taken the log over."""
        self._db.check_epoch(self.epoch)

    def behind(self, last: Last) -> Position:
        """The position behind a query's last batch."""
        return self._batches.at(last.n)

    def last_sealed(self, query_id: str) -> Last | None:
        """Return the last sealed batch of a query; permanent, also for a batch without rows."""
        return self._sealer.last(query_id)

    def newest_query(self) -> dict[str, Any] | None:
        """Return who sealed last, as JSON: ``query_id``, ``batch_id``, and ``n``, the offset after it; or None."""
        return self._sealer.newest()

    def seal(self, batch: NewBatch, segments: list[SegmentInfo], *, writing: Container[str] | None = None) -> Position:
        """Make the batch visible, durably, together with the acknowledgements that wait; return the position behind it.

        A batch that is sealed already is left alone. A batch without rows, but for an end mark, takes no offset.
        The order of ``segments`` is the order of rows within each partition.

        Args:
            writing: Write ids of calls in progress, as for :meth:`sweep`: files of any other call may be gone, or be
                on the list of those that a host server is about to remove. Without it any call may seal.

        Raises:
            Fenced: the epoch is not ours any more, or was never taken over by this object.
            CheckpointTooOld: a later batch of the query is sealed.
            DuplicateCall: the same run of the query sealed it by another call.
            SegmentCorrupt: a file is missing or too short, inline bytes do not match their checksum.
            SpoolError: the disk fails, or the call is not in ``writing`` any more. Nothing is visible, unless the error
                says that the catalog must be opened again.
        """
        if not self._taken:
            raise Fenced(f"topic {self.topic!r}: take over an epoch before sealing", topic=self.topic, epoch=self.epoch)
        self._db.check_epoch(self.epoch)  # again in the transaction: nobody else can seal in this epoch
        replayed = self._sealer.replayed(batch)
        if replayed is not None:
            return replayed
        if writing is not None and batch.write_id not in writing and any(segment.file for segment in segments):
            raise SpoolError(
                f"topic {self.topic!r}: batch {batch.batch_id} was written by call {batch.write_id}, and another batch "
                "has begun since: its files may be removed by now. Start the query again, it writes the batch again",
                topic=self.topic,
                batch_id=batch.batch_id,
                write_id=batch.write_id,
            )
        if not self._reserve.take():
            raise SpoolFull(
                f"the disk of {self.directory} is full; what little is left is for the catalog alone, until batches "
                "can be removed or the disk has room again",
                file=str(self.directory),
            )
        segments, decided = self._sealer.check(batch, segments), self.waits_for_publisher
        wall_ms = int(self._wall() * 1000)
        with self._db.write(self.epoch):
            position = self._sealer.insert(batch, segments, epoch=self.epoch, wall_ms=wall_ms, uptime=self.uptime)
            self._subscriptions.write()
        self._written_uptime = self.uptime
        self._subscriptions.written()
        if decided:
            self._subscriptions.reload()
        return position

    # -- reading -------------------------------------------------------------------------------------------------------

    def head(self) -> Position:
        """The position behind the newest batch."""
        return self._batches.head()

    def tail(self) -> Position:
        """The earliest position that can be read."""
        return self._batches.tail()

    def at(self, n: int) -> Position:
        """The position at offset ``n``."""
        return self._batches.at(n)

    def window(
        self, start: Boundary, end: Boundary | None, *, committed: Position, skip_removed: bool = False
    ) -> Window:
        """Return what lies between two boundaries; see :meth:`jobpipe.store.locate.Locator.window`."""
        return self._locator.window(start, end, committed=committed, skip_removed=skip_removed, epoch=self.epoch)

    def demand_order(self, begin: Position, end: Boundary) -> None:
        """Check that a read ends behind where it begins; raises ConfigError."""
        self._locator.demand_order(begin, end, epoch=self.epoch)

    def end_of(self, boundary: Boundary) -> Position | None:
        """Return where a read ends, None while that is open; see :meth:`jobpipe.store.locate.Locator.end`."""
        return self._locator.end(boundary, epoch=self.epoch)

    def parallelism(self) -> int:
        """The partitions of the newest batch; 1 while there is none."""
        shape = self._batches.shape(self._batches.next_n())
        return 1 if shape is None else shape.partitions

    def ended(self) -> bool:
        """True when the newest batch is an end mark."""
        return self._batches.ended()

    def used_bytes(self) -> int:
        """Bytes of all segments that are there, and of the catalog's log beyond what it needs."""
        return self._batches.used_bytes() + max(0, self._db.log_bytes() - Reserve.BYTES)

    def make_room(self, *, reserve: bool) -> None:
        """After a SpoolFull: shrink the catalog's write-ahead log, so that the call may be repeated.

        Args:
            reserve: Use the room kept for a full disk too. Then nothing is sealed until it can be taken again.
        """
        if reserve:
            self._reserve.release()
        with contextlib.suppress(SpoolFull):
            self._db.make_room()

    def shorten(self) -> None:
        """Cut the catalog's log if it has outgrown the reserve; readers that are slow put it off for a second."""
        if self._db.log_bytes() <= Reserve.BYTES or time.monotonic() < self._shorten_at:
            return
        if not self._db.make_room():
            self._shorten_at = time.monotonic() + _SHORTEN_AGAIN

    def free_bytes(self) -> int:
        """Bytes that the spool's file system has left for us."""
        return free_bytes(self.directory)

    def check(self, position: Position) -> None:
        """Check that reading can go on there; raises DataLoss, see :meth:`Batches.check`."""
        self._batches.check(position)

    def plan(
        self,
        start: Position,
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        until: Position | None = None,
    ) -> Plan:
        """Return the next range to read; see :func:`jobpipe.store.plan.plan`."""
        with self._db.read():
            return planning.plan(self._batches, start, max_rows=max_rows, max_bytes=max_bytes, until=until)

    def describe_range(self, start: Position, end: Position) -> list[Plan]:
        """Return a given range, cut where the shape changes; see :func:`jobpipe.store.plan.describe`."""
        with self._db.read():
            return planning.describe(self._batches, start, end)

    def ahead(self, start: Position, until: Position | None = None) -> Ahead:
        """Return how much lies behind ``start``; see :func:`jobpipe.store.plan.ahead`."""
        with self._db.read():
            return planning.ahead(self._batches, start, until=until)

    def cutter(
        self,
        start: Position,
        end: Position,
        *,
        wanted: Collection[int] | None = None,
        max_rows: int | None = None,
        at_least: int = 1,
    ) -> Cutter:
        """Return what cuts a given range in pieces that are read side by side, step by step; see :class:`Cutter`."""
        return Cutter(self._batches, self._db.read, start, end, wanted=wanted, max_rows=max_rows, at_least=at_least)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribe(self, name: str, *, required: bool = False) -> Subscription:
        """Return the subscription, made if it is new: a required one stands at the tail, another nowhere yet.

        Until it stands somewhere, it holds all that is in the log now.
        """
        if required or not self._subscriptions.exists(name):
            with self._changing():
                self._subscriptions.create(name, required=required, uptime=self.uptime)
            self._retirer.frontier.lower(self._batches.tail_n())
        return self._subscriptions.get(name)

    def require(self, names: Iterable[str]) -> None:
        """Make exactly these the required subscriptions, creating the missing ones at the tail."""
        with self._changing():
            self._subscriptions.require(names, uptime=self.uptime)
        self._retirer.frontier.lower(self._batches.tail_n())

    def subscriptions(self) -> list[Subscription]:
        """Return all subscriptions, by name."""
        return self._subscriptions.all()

    def first_position(self, name: str, proposed: Position) -> Position:
        """Return where a new checkpoint of the subscription begins.

        The answer is stored, and repeated while nothing beyond it was acknowledged. After that the question means a
        new checkpoint: ``proposed`` is stored, and the subscription stands there, also if it stood further on before.

        Raises:
            DataLoss: ``proposed`` does not fit.
            Fenced: the subscription does not exist.
        """
        self.flush()
        self._batches.check(proposed)
        with self._changing():
            stored = self._subscriptions.first_position(name, proposed)
        if stored is not None:
            return stored
        self._subscriptions.moved(name, proposed)
        self._retirer.frontier.lower(proposed.n)
        return proposed

    def grant(self, name: str, holder: dict[str, Any]) -> int:
        """Give the name to a new holder; return the grant's number. Older ones are refused from now on."""
        self.flush()
        with self._changing():
            number = self._subscriptions.grant(name, holder, uptime=self.uptime)
        self._subscriptions.granted(name, number, uptime=self.uptime)
        return number

    def acknowledge(self, name: str, grant: int, position: Position) -> bool:
        """Advance the acknowledged position, in memory until :meth:`flush`; False for a late or repeated one.

        Inside of a batch, the position counts as the batch's beginning.

        Raises:
            Fenced: another grant is valid, or the subscription does not exist.
            DataLoss: the position does not fit.
        """
        return self._subscriptions.acknowledge(name, grant, position, uptime=self.uptime)

    def declare(self, name: str, grant: int, position: Position) -> None:
        """Note where the live holder reads now: retention keeps it, until an acknowledgement passes it.

        Raises:
            Fenced, DataLoss: as :meth:`acknowledge`.
        """
        self._subscriptions.declare(name, grant, position, uptime=self.uptime)
        self._retirer.frontier.lower(position.n)

    def drop_declared(self, name: str) -> None:
        """Forget the declared position: the holder is not live any more."""
        self._subscriptions.drop_declared(name)

    def touch(self, name: str) -> None:
        """Note that the subscriber is alive; expiry counts from here."""
        self._subscriptions.touch(name, uptime=self.uptime)

    def seek(self, name: str, position: Position) -> None:
        """Set the acknowledged position, forwards or backwards.

        Raises:
            DataLoss, Fenced: the position does not fit; the subscription does not exist.
        """
        self.flush()
        self._batches.check(position)
        with self._changing():
            self._subscriptions.seek(name, position)
        self._subscriptions.moved(name, position)
        self._retirer.frontier.lower(position.n)

    def drop(self, name: str) -> bool:
        """Delete a subscription, required or not; False when it does not exist."""
        with self._changing():
            dropped = self._subscriptions.drop(name)
        self._subscriptions.reload()
        return dropped

    def flush(self) -> None:
        """Write the acknowledgements that wait, and the uptime."""
        self._flush(force=False)

    def tick(self, seconds: float) -> None:
        """Count uptime."""
        self.uptime += seconds

    # -- slots, see slots.py -------------------------------------------------------------------------------------------

    def slot(self, name: str, grant: int, slot: str) -> Slot:
        """Return a subscription's slot.

        Raises:
            Fenced: another grant is valid.
            DataLoss: this log does not know the slot.
        """
        self._subscriptions.check_grant(name, grant)
        return self._slots.get(name, slot)

    def add_slot(self, name: str, grant: int, slot: str, start: Position, *, empty: bool = False) -> None:
        """Add a slot that begins at ``start``; again, it changes nothing. Only the newest of a name are kept.

        Args:
            empty: It ends there too.

        Raises:
            Fenced: another grant is valid.
        """
        with self._db.write(self.epoch):
            self._subscriptions.check_grant(name, grant)
            self._slots.add(name, slot, start, epoch=self.epoch)
            if empty:
                self._slots.bind(name, slot, start, uptime=self.uptime)

    def bind_slot(self, name: str, grant: int, slot: str, end: Position) -> Slot:
        """Let a slot end at ``end``, durably, and return it; one that is bound stays as it is.

        Raises:
            Fenced: another grant is valid.
            DataLoss: this log does not know the slot.
        """
        with self._db.write(self.epoch):
            self._subscriptions.check_grant(name, grant)
            self._slots.bind(name, slot, end, uptime=self.uptime)
        return self._slots.get(name, slot)

    # -- retention -----------------------------------------------------------------------------------------------------

    def retain(self, policy: Retention, *, need: int = 0) -> Removed:
        """Remove batches from the front while each may go; first drop subscriptions that expired.

        A batch may go when (a) every subscription has acknowledged it, and none reads it or what lies before it;
        (b) that is so for ``ack_grace``; (c) it is older than ``policy.time``, or the topic is over
        ``policy.bytes``, or ``need`` bytes are not free yet; (d) no lease holds it. While fewer than
        ``min_subscribers`` exist nothing goes.

        Args:
            need: Bytes to free.
        """
        self.flush()
        expired = self.expire(policy.subscription_expiry)
        removed = self._retirer.retain(policy, need=need, uptime=self.uptime, epoch=self.epoch)
        return Removed(removed.batches, removed.rows, removed.bytes, tuple(expired))

    def expire(self, seconds: float) -> list[str]:
        """Drop the subscriptions that were silent for so long, but no required and no live one; return their names."""
        live = self._subscriptions.declared_names()
        expired = [
            known.name
            for known in self._subscriptions.all()
            if not known.required and known.name not in live and self.uptime - known.seen_up > seconds
        ]
        for name in expired:
            log.warning("topic %s: subscription %s expired after %.0f s of silence", self.topic, name, seconds)
            self.drop(name)
        return expired

    def drop_oldest(self, need: int) -> Removed:
        """Remove the oldest batches until ``need`` bytes are free, acknowledged or not; leases still hold."""
        self.flush()
        return self._retirer.drop_oldest(need, epoch=self.epoch)

    def sweep(self, keep: Container[str]) -> int:
        """Unlink segment files that no batch refers to; return how many.

        Args:
            keep: Write ids of calls in progress. Pass the live collection itself, with every id in it before that id
                is given away: it is asked right before each unlink.
        """
        return self._retirer.sweep(keep, epoch=self.epoch)

    def lease(self, key: str, first_n: int, last_n: int, seconds: float) -> None:
        """Hold batches for a bounded read; the same key again renews.

        Raises:
            DataLoss: the first ones are gone.
        """
        with self._db.write(self.epoch):
            self._retirer.lease(key, first_n, last_n, until_up=self.uptime + seconds)

    def release(self, key: str) -> None:
        """Give a lease back; unknown keys are ignored."""
        with self._db.write(self.epoch):
            self._retirer.release(key)

    def shorten_lease(self, key: str, seconds: float) -> None:
        """Let a lease end in so many seconds, if not before."""
        with self._db.write(self.epoch):
            self._retirer.shorten_lease(key, until_up=self.uptime + max(seconds, 0.0))

    def leases(self) -> list[dict[str, Any]]:
        """Return the leases, as JSON, by the offset that they hold; at most 100."""
        return self._retirer.leases(self.uptime)

    # -- status --------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the state as JSON values; costs the same for any number of batches."""
        with self._db.read():
            return {
                "topic": self.topic,
                "log": self.log_id,
                "epoch": self.epoch,
                "uptime": self.uptime,
                "catalog_bytes": self._db.file_bytes(),
                "last_query": self.newest_query(),
                **describe_log(self._db, self._batches, self._subscriptions, uptime=self.uptime, wall=self._wall()),
                "leases": self.leases(),
            }

    def _flush(self, *, force: bool) -> None:
        late = self.uptime - self._written_uptime
        if self._subscriptions.dirty or late >= _UPTIME_STEP or (force and late > 0):
            with self._changing():
                self._subscriptions.write()
                self._db.execute("UPDATE meta SET uptime = max(uptime, ?)", self.uptime)
            self._written_uptime = self.uptime
            self._subscriptions.written()
        self._retirer.frontier.note(self.uptime, self._retirer.acknowledged_n())

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with self._db.write(self.epoch):
                yield
        except BaseException:
            with contextlib.suppress(SpoolError):
                self._subscriptions.reload()
            raise
