"""Exactly once at the publisher: whether a batch is sealed already, or may be written; what its writer must know.

The final word is the seal's, in the coordinator: :mod:`jobpipe.store.log.seal`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from jobpipe.config import Config
from jobpipe.errors import CheckpointTooOld, DuplicateCall, WaitTimeout
from jobpipe.net.address import Endpoint
from jobpipe.net.retry import Deadline
from jobpipe.operations.publisher_operations import Admitted, BeginRequest, LastSealed, PrepareReply, PrepareRequest
from jobpipe.publishing.coordinator_channel import CoordinatorChannel
from jobpipe.publishing.first_publish_check import FirstPublishCheck, is_appended, series_of
from jobpipe.publishing.publisher_messages import WaitLogger, spool_full
from jobpipe.store.catalog.position import Position

WAIT_SECONDS = 0.9  # of one question; news end it sooner, and a stopped query is given a second (EventLoopThread.run)
ADMISSION_SECONDS = 0.3  # room, the data process and host servers may be others after that


@dataclass(frozen=True)
class BatchKey:
    """Which batch a call publishes.

    Attributes:
        query_id: of Spark's query, or a plain publisher's name; batch ids count by it.
        batch_id: rises with each batch of the query.
        run_id: of the query's run: the same batch in another run is a replay, in the same one a user's mistake.
    """

    query_id: str
    batch_id: int
    run_id: str


@dataclass(frozen=True)
class _NextBatch:
    """Of the batch that comes next, so that a quick query asks once a batch, and not twice."""

    after: BatchKey  # that was sealed
    admitted: Admitted
    since: float

    def covers(self, key: BatchKey) -> bool:
        fresh = time.monotonic() - self.since < ADMISSION_SECONDS
        return fresh and key.query_id == self.after.query_id and key.batch_id > self.after.batch_id


class BatchAdmission:
    """What the coordinator has admitted of one publisher's batches.

    Attributes:
        channel: to the coordinator; set before the first call.
        write_id: of the batch in progress, given by the coordinator.
        hosts: ids of the host servers that may keep segments of it.
    """

    channel: CoordinatorChannel

    def __init__(self, topic: str, config: Config, first_publish: FirstPublishCheck, *, stopped: str) -> None:
        self._topic = topic
        self._config = config
        self._first_publish = first_publish
        self._stopped = stopped  # where a wait ends early
        self._next_batch: _NextBatch | None = None  # of the next batch, by the seal of the last one
        self.write_id = ""
        self.hosts: tuple[str, ...] = ()

    def keep(self, sealed: BatchKey, admitted: Admitted) -> None:
        """Keep what the seal of a batch has admitted: the next one of its query need not ask, if it comes soon."""
        self._next_batch = _NextBatch(sealed, admitted, time.monotonic())

    def prepare(self, writer: str) -> PrepareReply:
        """Do as :meth:`Publisher.prepare`."""
        reply = self.channel.call(PrepareRequest(writer))
        self._write(reply.admitted)
        return reply

    def begin_written(self, key: BatchKey, write_id: str) -> Position | None:
        """Do as :meth:`begin` for a batch that tasks have written under a write id: no room is waited for."""
        self.write_id = write_id  # first: if the topic must be opened again for it, its files are not swept
        reply = self.channel.call(BeginRequest(key.query_id, key.batch_id, key.run_id, written=True))
        self.channel.epoch = reply.epoch
        if reply.last is not None and key.batch_id <= reply.last.batch_id:
            return self._replayed(key, reply.last)
        self._first_publish.check(key.query_id, reply.newest)
        return None

    def begin(self, key: BatchKey) -> Position | None:
        """Do as :meth:`Publisher.begin`."""
        next_batch, self._next_batch = self._next_batch, None
        if next_batch is not None and next_batch.covers(key):
            admitted = next_batch.admitted
            if self.channel.still(admitted.instance, lambda: self._note_write_id(admitted)):
                self._write(admitted)
                return None
        deadline, waits = Deadline(self._config.acks_timeout), WaitLogger(self._topic)
        while True:
            wait = deadline.left(WAIT_SECONDS)
            reply = self.channel.call(BeginRequest(key.query_id, key.batch_id, key.run_id, wait))
            self.channel.epoch = reply.epoch  # raised when a batch must be written again
            last = reply.last
            if last is not None and key.batch_id <= last.batch_id:
                return self._replayed(key, last)
            self._first_publish.check(key.query_id, reply.newest)
            if reply.admitted is not None:
                self._write(reply.admitted)
                return None
            waits.log(reply.full or "")
            if not self.channel.active():
                raise WaitTimeout(f"topic {self._topic!r}: {self._stopped} while {reply.full}", topic=self._topic)
            if deadline.passed:
                raise spool_full(self._topic, self._config.acks_timeout, reply.full or "")

    def _note_write_id(self, admitted: Admitted) -> None:
        self.write_id = admitted.write_id

    def _write(self, admitted: Admitted) -> None:
        self._note_write_id(admitted)
        self.hosts = admitted.hosts
        if self.channel.coordinator is not None:
            # The data process may have been started again.
            self.channel.coordinator.data = Endpoint.parse(admitted.data)

    def _replayed(self, key: BatchKey, last: LastSealed) -> Position:
        if key.batch_id < last.batch_id and is_appended(key.query_id):
            series = series_of(key.query_id)
            raise CheckpointTooOld(
                f"topic {self._topic!r}: batch {key.batch_id} of series {series!r} is older than batch "
                f"{last.batch_id}, which is published already. Ids rise from batch to batch, written one by one",
                topic=self._topic,
                query_id=key.query_id,
                batch_id=key.batch_id,
                last_batch_id=last.batch_id,
            )
        if key.batch_id < last.batch_id:
            raise CheckpointTooOld(
                f"topic {self._topic!r}: Spark replays batch {key.batch_id} of query {key.query_id}, but batch "
                f"{last.batch_id} is sealed already: the checkpoint is an old copy. Use the newest checkpoint, or a "
                "new one (its rows are appended)",
                topic=self._topic,
                query_id=key.query_id,
                batch_id=key.batch_id,
                last_batch_id=last.batch_id,
            )
        if key.run_id == last.run_id:
            raise DuplicateCall(
                f"topic {self._topic!r}: batch {key.batch_id} of query {key.query_id} was published already in this run"
                ": call the sink once in each foreachBatch (union the DataFrames, or use two topics); outside a query, "
                "with a higher number each time",
                topic=self._topic,
                query_id=key.query_id,
                batch_id=key.batch_id,
            )
        return last.position
