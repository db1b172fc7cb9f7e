"""The log of one topic: what the coordinator's control process does with it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from pathlib import Path

from jobpipe.errors import Fenced, JobpipeError, SchemaMismatch, SpoolError, SpoolFull
from jobpipe.store.catalog.batches import Batches
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.catalog.log_clock import LogClock
from jobpipe.store.catalog.position import Position
from jobpipe.store.catalog.recovery import Recovery, RecoveryPoint
from jobpipe.store.catalog.redrive_marks import RedriveMarks, SourceRow
from jobpipe.store.catalog.topic_schemas import TopicSchemas
from jobpipe.store.log.catalog_status import LogStatus, describe_log
from jobpipe.store.log.flow_commits import FlowCommitter, PartOutcome, SegmentPart
from jobpipe.store.log.flow_cursors import FlowCursors
from jobpipe.store.log.host_segments import HostSegments
from jobpipe.store.log.retention import RetentionCleaner
from jobpipe.store.log.seal import BatchSealer, NewBatch
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.store.reading.change_feed import ChangeFeed
from jobpipe.store.reading.offset_resolution import OffsetResolver
from jobpipe.store.reading.read_plan import ReadPlanner
from jobpipe.store.reading.shared_plans import SharedPlans
from jobpipe.store.reading.slots import Slots
from jobpipe.store.spool.segment_index import SegmentInfo
from jobpipe.store.spool.spool_files import CATALOG, SEGMENTS, Reserve, free_bytes, mark_directory, prepare_topic
from jobpipe.store.subscriptions.holds import Holds
from jobpipe.store.subscriptions.leases import Leases
from jobpipe.store.subscriptions.positions import Subscriptions
from jobpipe.store.subscriptions.required_subscriptions import RequiredSubscriptions

log = logging.getLogger(__name__)

CHANGED = "changed"
_SHORTEN_AGAIN = 1.0  # seconds until the next try if readers blocked the last one; each try delays seals


class TopicLog:
    """One topic's log, used by one thread at a time: its parts, and the operations that involve several of them.

    Every change, by this object or its parts, requires that the catalog's epoch is :attr:`epoch`, and
    :meth:`Database.write` checks it. The exceptions are :meth:`take_over`, :meth:`restore` and :meth:`keep_to`.

    Attributes:
        topic: Its name.
        directory, segments: The topic's directory, and the one that segment files are written to.
        clock: Wall clock and uptime.
        batches: What is sealed.
        schemas: The schemas of sealed batches.
        resolver: Finds where a read begins and ends.
        planner: Divides what is to be read into ranges.
        subscriptions, slots, leases: The readers' state in this log.
        ledger: Whether each subscription has read what was published.
        holds: What is kept for scheduled jobs.
        required: Which subscriptions the publisher requires.
        redriven: Which rows of the topic were published in it again.
        cursors: Progress of the flow jobs that keep their progress in this catalog.
        parts: What flow jobs read.
        plans: What subscribers read next, and their acknowledgements.
        cleaner: Removes what no reader needs.
        hosts: What host servers keep.
        recovery: Where the log continues after its spool is lost.
        superseded: It was served without its publisher, and the topic may go on in a newer spool.
        write_token: The token of this log at host servers; set by :meth:`take_over`.
    """

    def __init__(
        self, database: Database, directory: Path, topic: str, *, fsync: bool, wall: Callable[[], float]
    ) -> None:
        self.topic = topic
        self.directory = directory
        self.segments = directory / SEGMENTS
        self._db = database
        self.clock = clock = LogClock(database, wall)
        self.batches = batches = Batches(database, topic)
        self.schemas = TopicSchemas(database)
        self.planner = ReadPlanner(database, batches)
        self.recovery = Recovery(database, batches)
        self.resolver = OffsetResolver(database, batches, self.recovery, clock)
        self.subscriptions = Subscriptions(database, batches, clock)
        self.ledger = self.subscriptions.ledger
        self.required = RequiredSubscriptions(database, self.subscriptions)
        self.redriven = RedriveMarks(database, topic)
        self.slots = Slots(database, batches, self.subscriptions, clock)
        self.leases = Leases(database, batches, clock)
        self.holds = holds = Holds(database, batches, clock)
        self.cursors = FlowCursors(database, clock)
        self.hosts = HostSegments(database, batches)
        self.cleaner = RetentionCleaner(
            *(database, batches, self.subscriptions, self.hosts, self.leases, holds, clock, self.segments)
        )
        self._sealer = BatchSealer(database, batches, self.recovery, self.hosts, clock, self.segments, fsync=fsync)
        reader = CatalogReader(database, directory, topic, batches)
        self.parts = ChangeFeed(batches, self.planner, self.recovery, self.subscriptions, reader)
        self.plans = SharedPlans(
            *(database, batches, self.planner, self.resolver, self.recovery, self.subscriptions, reader)
        )
        self._part_sealer = FlowCommitter(database, batches, self._sealer, self.cursors, self.subscriptions)
        self._reserve = Reserve(directory)
        if not self._reserve.take() or free_bytes(directory) < Reserve.BYTES // 10:
            self.make_room(reserve=True)
        self.write_token = ""
        self.superseded = bool(database.value("SELECT superseded FROM meta"))
        self._shorten_at = 0.0
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
        """Open the log in ``directory`` (``<spool_dir>/<topic>``), or make it; ``shared``: other hosts use it too.

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
        """Write what is pending, unless another publisher has fenced the log, and close. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self.subscriptions.flush(force=True)
        except Fenced as error:
            log.info("topic %s: %s", self.topic, error)
        finally:
            self._db.close()

    @property
    def log_id(self) -> str:
        """The random id made with the catalog, or that of the log that this one continues."""
        return self.batches.log_id

    @property
    def epoch(self) -> int:
        """The epoch that this object acts for: the stored one at first, its own after :meth:`take_over`."""
        return self._db.epoch

    def reopen(self) -> None:
        """Open the catalog again after a SpoolError with ``fields["reopen"]``; grants, positions and epoch stay.

        Afterwards the commit that failed is in the catalog, or it never will be. The failed call may be repeated.

        Raises:
            Fenced: another publisher has taken the log over meanwhile.
            SpoolError: the disk still fails; it may be tried again.
        """
        self._db.reopen(self.topic, self.log_id)
        self.subscriptions.reload()

    def keep_to(self, namespace: str) -> None:
        """Bind the log to its namespace; a topic of the same name elsewhere is a different topic.

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
                    "different topics of the same name. Give each namespace a jobpipe.spool.dir of its own",
                    file=str(self.directory),
                    namespace=known,
                )

    # -- epoch ---------------------------------------------------------------------------------------------------------

    def take_over(self, epoch: int, publisher: str, *, serve: bool = False) -> None:
        """Set the log's epoch. From now on a TopicLog of a lower epoch gets Fenced when it changes the log.

        Args:
            serve: It has no publisher, so it says nothing new of where the topic is published. An epoch that is not the
                next one then means that the topic was published from another spool since: :attr:`superseded`.

        Raises:
            Fenced: the stored epoch is not lower.
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
            superseded = serve and (epoch > stored + 1 or self.superseded)
            self._db.execute("UPDATE meta SET epoch = ?, superseded = ?", epoch, int(superseded))
            self._db.execute(
                "INSERT INTO epochs VALUES (?, ?, ?, ?)", epoch, self.batches.next_n(), publisher, self.clock.wall()
            )
            self.leases.clip()
            token = self.hosts.write_token()
        self._db.epoch = epoch
        self.superseded = superseded
        self.write_token = token
        self._taken = True
        self.subscriptions.reload()

    def mark(self, instance: str) -> None:
        """Note in the topic's directory that coordinator ``instance`` serves it: see :func:`mark_directory`.

        Raises:
            Fenced: another publisher has taken the log over; its mark stays.
            SpoolError: the disk refuses.
        """
        with self._db.write():
            mark_directory(self.directory, instance)

    @property
    def is_new(self) -> bool:
        """True until a publisher has taken this log over for the first time."""
        return int(self._db.value("SELECT count(*) FROM epochs WHERE publisher != ''")) == 0

    def restore(self, point: RecoveryPoint) -> None:
        """Make this new log continue one that was lost: with its id, from the offset in ``point`` on.

        Raises:
            Fenced: another publisher has begun to use the log since :attr:`is_new` was true; nothing is changed.
        """
        with self._db.take_over():
            if not self.is_new:
                raise Fenced(
                    f"topic {self.topic!r}: another publisher has taken over the new log in the meantime",
                    topic=self.topic,
                )
            self.recovery.begin(point)
            self.ledger.begin_again(0)
        self.batches.log_id = point.log
        self._db.epoch = int(self._db.value("SELECT epoch FROM meta"))

    def take_back(self, query_id: str, batch_id: int) -> None:
        """Undo the seal of the newest batch, whose segments are lost, so that its publisher may seal it again.

        Raises:
            Fenced: it was sealed in our epoch, or a higher one. Subscribers could not tell the two seals apart.
        """
        if self.batches.epoch_before(self.batches.next_n()) >= self.epoch:
            raise Fenced(
                f"topic {self.topic!r}: this batch was sealed in the present epoch {self.epoch}; raise it first",
                topic=self.topic,
            )
        with self._db.write():
            self.hosts.take_back(query_id, batch_id)
            self.ledger.begin_again(self.batches.next_n())
            self.ledger.write()
        self.ledger.written()
        self.subscriptions.reload()

    # -- sealing -------------------------------------------------------------------------------------------------------

    def check_epoch(self) -> None:
        """Raise Fenced if another publisher has taken the log over."""
        self._db.check_epoch()

    def seal(
        self,
        batch: NewBatch,
        segments: list[SegmentInfo],
        *,
        writing: Container[str] | None = None,
        marks: Sequence[SourceRow] = (),
        end_after: bool = False,
    ) -> Position:
        """Make the batch visible, durably, together with pending acknowledgements; return the position after it.

        A batch that is sealed already is left alone. A batch without rows takes no offset, with two exceptions: an end
        mark, and a batch that is sealed again after its spool or a host server was lost. The latter takes its old
        offset. The order of ``segments`` is the order of rows within each partition.

        Args:
            writing: Write ids of the batches that are being written, as for :meth:`RetentionCleaner.sweep`. If the
                batch has files, its own write id must be among them: the files of any other id may have been removed,
                or a host server may be about to do so. None skips this check.
            marks: Which rows of the topic the batch publishes again.
            end_after: An end mark follows it.

        Raises:
            AlreadyRedriven: one of these was published again before; nothing is sealed.
            Fenced: another publisher has taken the log over, or this object never did.
            CheckpointTooOld: a later batch of the query is sealed.
            DuplicateCall: another call of the same run of the query has sealed it.
            SegmentCorrupt: a file is missing or too short, or inline bytes do not match their checksum.
            SpoolFull: the disk is full.
            SpoolError: the disk fails, or the batch has files and its write id is not in ``writing``. The batch is not
                visible. If ``fields["reopen"]`` is true it may be: only :meth:`reopen` can tell.
        """
        self._require_epoch()
        replayed = self._sealer.replayed(batch)
        if replayed is not None:
            return replayed
        if writing is not None and batch.write_id not in writing and any(segment.file for segment in segments):
            raise SpoolError(
                f"topic {self.topic!r}: the files of batch {batch.batch_id} (write id {batch.write_id}) may have been "
                "removed, because another batch has begun since. Restart the query: it writes the batch again. If two "
                "queries of this application publish to the topic with equal options, give each a queryName",
                topic=self.topic,
                batch_id=batch.batch_id,
                write_id=batch.write_id,
            )
        self._require_room()
        segments, was_undecided = self._sealer.check(batch, segments), self.recovery.undecided is not None
        first = self.batches.next_n()
        with self._db.write():
            position = self._sealer.insert(batch, segments)
            if end_after:
                self._sealer.insert(NewBatch.end_mark(batch.partitions), [])
            if marks:
                self.redriven.mark(marks, self.clock.uptime)
            self.subscriptions.write()
        self.subscriptions.written()
        self.subscriptions.note_sealed(first)
        if was_undecided:
            self.subscriptions.reload()
        return position

    def append(
        self,
        batch: NewBatch,
        segments: list[SegmentInfo],
        schema: tuple[bytes, str | None],
        *,
        marks: Sequence[SourceRow] = (),
        end_again: bool = False,
    ) -> Position:
        """Seal a batch as :meth:`seal`, of an appender, which publishes next to the topic's publisher.

        It must have the newest schema, and the partitions of the newest batch: what comes later is the publisher's to
        decide. All its segments are inline.

        Args:
            marks: As for :meth:`seal`.
            end_again: There is no publisher. If the topic has ended, another end mark follows, in the same transaction:
                else its readers would wait for more.

        Raises:
            SchemaMismatch: it has others; ``fields["reason"]`` is ``CHANGED``. Nothing is sealed.
            SpoolError: what became of a batch in a lost spool is for the publisher's next batch to tell; or as for
                :meth:`seal`.
        """
        self._require_epoch()
        replayed = self._sealer.replayed(batch)
        if replayed is not None:
            return replayed
        if self.recovery.undecided is not None:
            raise SpoolError(
                f"topic {self.topic!r}: its spool was lost, and the batch that its publisher was sealing then comes "
                "first. Start the publisher, and publish these rows once it has published",
                topic=self.topic,
            )
        newest, shape = self.schemas.newest(), self.batches.shape(self.batches.next_n())
        same = shape is None or (shape.partitions, shape.partitioner) == (batch.partitions, batch.partitioner)
        if newest is None or newest[1:] != schema or not same:
            raise SchemaMismatch(
                f"topic {self.topic!r}: its schema, or its partitions, changed while the batch was written; nothing "
                "was sealed. Begin the batch again",
                topic=self.topic,
                reason=CHANGED,
            )
        self.redriven.check(marks)  # before anything is written to a file
        self.batches.require_room_for_appender(batch.query_id)
        end = end_again and self.batches.ended()
        return self.seal(replace(batch, schema_id=newest[0]), segments, marks=marks, end_after=end)

    def seal_parts(self, parts: Sequence[SegmentPart], *, writing: Container[str]) -> list[PartOutcome | JobpipeError]:
        """Seal what tasks of flow jobs publish, and move their cursors; see :meth:`FlowCommitter.seal`."""
        self._require_epoch()
        if any(part.segments for part in parts):
            self._require_room()
        return self._part_sealer.seal(parts, writing)

    def _require_epoch(self) -> None:
        if not self._taken:
            raise Fenced(f"topic {self.topic!r}: take over an epoch before sealing", topic=self.topic, epoch=self.epoch)
        self._db.check_epoch()  # so that a fenced publisher writes nothing; the transaction checks again

    def _require_room(self) -> None:
        if not self._reserve.take():
            raise SpoolFull(
                f"the disk of {self.directory} is full; the little room left is only for the catalog, until batches "
                "can be removed or the disk has room again",
                file=str(self.directory),
            )

    # -- room ----------------------------------------------------------------------------------------------------------

    def used_bytes(self) -> int:
        """Bytes of all segments, plus the bytes by which the catalog's write-ahead log exceeds the reserve."""
        return self.batches.used_bytes() + max(0, self._db.log_bytes() - Reserve.BYTES)

    def make_room(self, *, reserve: bool) -> None:
        """After a SpoolFull: shrink the catalog's write-ahead log, so that the call may be repeated.

        Args:
            reserve: Also use the room that is set aside for a full disk. Nothing is sealed until it is set aside again.
        """
        if reserve:
            self._reserve.release()
        with contextlib.suppress(SpoolFull):
            self._db.make_room()

    def shorten(self) -> None:
        """Truncate the catalog's write-ahead log if it exceeds the reserve; if readers block it, retry in a second."""
        if self._db.log_bytes() <= Reserve.BYTES or time.monotonic() < self._shorten_at:
            return
        if not self._db.make_room():
            self._shorten_at = time.monotonic() + _SHORTEN_AGAIN

    def free_bytes(self) -> int:
        """Free bytes of the spool's file system that we may use."""
        return free_bytes(self.directory)

    # -- status --------------------------------------------------------------------------------------------------------

    def status(self) -> LogStatus:
        """Return how it stands; costs the same for any number of batches."""
        with self._db.read_again():
            return LogStatus(
                **vars(describe_log(self._db, self.batches, self.subscriptions, self.clock)),
                topic=self.topic,
                log=self.log_id,
                epoch=self.epoch,
                uptime=self.clock.uptime,
                catalog_bytes=self._db.file_bytes(),
                last_query=self.batches.newest_query(),
                leases=tuple(self.leases.all()),
                lease_count=self.leases.count(),
                holds=tuple(self.holds.all()),
                flows=self.cursors.places(),
                kept=self.hosts.kept(),
                required=tuple(sorted(self.required.names())),
            )
