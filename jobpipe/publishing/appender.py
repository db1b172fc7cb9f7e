"""Publishes next to a topic's publisher, through the coordinator that serves the topic: for a redrive, or a replay.

It opens no topic, and needs no publisher: one that comes or goes meanwhile is followed by the registry.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TypeAlias

import pyarrow as pa

from jobpipe.arrow.schema_validation import readable_pieces
from jobpipe.config import Config
from jobpipe.discovery.dial import dial_blocking
from jobpipe.discovery.topic_lookup import TopicLocator
from jobpipe.errors import CheckpointTooOld, Fenced, RowTooLarge, SchemaMismatch, SpoolFull
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.retry import RETRYABLE, Attempts, Deadline
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.operations.messages.message_fields import R, RequestFor
from jobpipe.operations.publisher_operations import (
    MAX_APPENDED,
    NO_ROOM,
    BeginReply,
    BeginRequest,
    RedrivenRow,
    Schema,
    SealRequest,
    marked_rows,
)
from jobpipe.operations.reader_operations import SchemaReply, SchemaRequest
from jobpipe.publishing.publisher_messages import WaitLogger, spool_full
from jobpipe.store.catalog.redrive_marks import SourceRow
from jobpipe.store.spool.partition_writer import PartitionedWriter
from jobpipe.store.spool.segment import SegmentFile
from jobpipe.store.spool.segment_index import SegmentInfo
from jobpipe.store.spool.spool_files import SegmentSink, new_write_id
from jobpipe.wire.wire_messages import Hello

log = logging.getLogger(__name__)

CALL_SECONDS = 60.0  # a seal waits for the disk
WAIT_SECONDS = 5.0  # of one question for room
PAUSE_SECONDS = 0.2  # where the answer comes at once
TRIES = 10  # to write a batch whose topic changes meanwhile


@dataclass(frozen=True)
class BatchShape:
    """What a batch must look like: so many partitions, and the topic's newest schema."""

    partitions: int
    arrow: bytes
    spark: str | None


@dataclass(frozen=True)
class NewRows:
    """A batch to be published.

    Attributes:
        schema: of all record batches; subscribers see it as the topic's.
        rows: record batches, each with the partitions of its rows.
        marks: which rows of the topic they are, each once; none, or as many as there are rows.
    """

    schema: pa.Schema
    rows: Iterable[tuple[pa.RecordBatch, pa.Int32Array | int]]
    marks: tuple[SourceRow, ...] = ()


Make: TypeAlias = Callable[[BatchShape], NewRows | None]
"""Returns what is to be published, None for nothing. It is called again if the topic changes meanwhile."""


class Appender:
    """A way into one topic; a context manager. Blocking, for one caller at a time.

    Args:
        config: where the registry is, and the certificate, which needs the right to publish.
        topic: what is published.
        query_id: whose numbers its batches have; begins with ``APPENDERS``, perhaps after ``ONCE``.
    """

    def __init__(self, config: Config, topic: str, query_id: str) -> None:
        self.topic = topic
        self._config = config
        self._query_id = query_id
        self._locator = TopicLocator(config)
        self._link: BlockingLink | None = None
        self._schemas: list[bytes] = []
        self._hello = Hello(topic=topic, role="appender", instance=uuid.uuid4().hex)

    def __enter__(self) -> Appender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the link. Idempotent."""
        self._hang_up()
        self._locator.close()

    def last_batch(self) -> int | None:
        """Return the number of the last batch that was published with this query id; None if there is none."""
        last = self._call(BeginRequest(self._query_id, batch_id=-1)).last
        return None if last is None else last.batch_id

    def redriven(self, rows: Sequence[SourceRow]) -> set[SourceRow]:
        """Return those of some rows of the topic that were published in it again."""
        return marked_rows(self._call, rows)

    def schemas(self) -> list[bytes]:
        """Return all schemas that the topic has, or had, as Arrow has them."""
        while (found := self._call(SchemaRequest(id=len(self._schemas) + 1)).schema) is not None:
            self._schemas.append(found[0])  # none is ever changed or removed
        return self._schemas

    def shape(self) -> BatchShape:
        """Return what a batch would look like now, without beginning one: of how many partitions is not known.

        Raises:
            SchemaMismatch: the topic has no schema yet.
        """
        schema = self._schema()
        return BatchShape(1, schema.arrow, schema.spark)

    def append(self, batch_id: int, make: Make) -> bool:
        """Publish a batch; return False if it, or a later one, was published with this query id before.

        Returns when it is durable. After an error it may be called again with the same number: it publishes once.

        Raises:
            AlreadyRedriven: a row that is to be marked was published again already.
            RowTooLarge: all of it together has more bytes than one batch of an appender may have.
            SpoolFull: there is no room within ``acks.timeout``.
            ConfigError: the topic's publisher has ``acks=all``.
            TopicNotFound: no coordinator serves the topic within ``discovery.timeout``.
            NotAuthorized: the certificate does not give the right to publish.
            SchemaMismatch: the topic has no schema, or it changes again and again.
        """
        for attempt in range(1, TRIES + 1):
            try:
                return self._append(batch_id, make)
            except CheckpointTooOld:
                return False
            except SchemaMismatch as error:
                if "reason" not in error.fields or attempt == TRIES:
                    raise
                log.info("%s", error)
            except SpoolFull as error:
                if error.fields.get("reason") != NO_ROOM or attempt == TRIES:
                    raise
                log.info("%s", error)
        raise AssertionError("unreachable")

    def _schema(self) -> SchemaReply:
        schema = self._call(SchemaRequest(wait=WAIT_SECONDS))  # its publisher may be about to tell it
        if schema.schema is None:
            raise SchemaMismatch(
                f"topic {self.topic!r} has no schema yet: nothing was published to it, and its publisher was made "
                "without one",
                topic=self.topic,
            )
        return schema

    def _append(self, batch_id: int, make: Make) -> bool:
        begun = self._begin(batch_id)
        if begun.appending is None:
            return False
        schema, shape = self._schema(), begun.appending
        made = make(BatchShape(shape.partitions, schema.arrow, schema.spark))
        segments = () if made is None else self._segments(made, shape.partitions)
        if made is None or not segments:
            return True
        request = SealRequest(
            query_id=self._query_id,
            batch_id=batch_id,
            run_id="",
            write_id=new_write_id(),
            schema=Schema(schema.arrow, schema.spark),
            partitions=shape.partitions,
            partitioner=shape.partitioner,
            segments=segments,
            redriven=tuple(map(RedrivenRow.of, made.marks)),
        )
        self._call(request)
        return True

    def _segments(self, made: NewRows, partitions: int) -> tuple[SegmentInfo, ...]:
        """Return the segments with their bytes: an appender writes no files.

        Raises:
            RowTooLarge: they do not fit into a request.
        """
        file = SegmentFile("", self._refuse, inline_max=MAX_APPENDED)
        writer = PartitionedWriter(
            made.schema, file, partitions=partitions, compression=self._config.segment_compression, memory=MAX_APPENDED
        )
        try:
            for batch, partition in readable_pieces(self.topic, made.rows):
                writer.write(batch, partition)
            return tuple(writer.finish(fsync=False))
        except BaseException:
            writer.abort()
            raise

    def _refuse(self) -> SegmentSink:
        raise RowTooLarge(
            f"topic {self.topic!r}: rows that are published next to its publisher come in batches of at most "
            f"{MAX_APPENDED} bytes, and this one has more; nothing of it was published",
            topic=self.topic,
            limit=MAX_APPENDED,
        )

    def _begin(self, batch_id: int) -> BeginReply:
        deadline, waits = Deadline(self._config.acks_timeout), WaitLogger(self.topic)
        while True:
            reply = self._call(BeginRequest(self._query_id, batch_id, wait=deadline.left(WAIT_SECONDS)))
            if reply.last is not None or reply.appending is not None:
                return reply
            waits.log(reply.full or "")
            if deadline.passed:
                raise spool_full(self.topic, self._config.acks_timeout, reply.full or "")
            time.sleep(deadline.left(PAUSE_SECONDS))

    # -- link ----------------------------------------------------------------------------------------------------------

    def _call(self, request: RequestFor[R]) -> R:
        """Ask the coordinator, over as many links as it takes: each request may be repeated."""
        deadline = Deadline(self._config.discovery_timeout)
        while True:
            link = self._link if self._link is not None else self._connect(deadline)
            try:
                return ask_blocking(link, request, timeout=CALL_SECONDS)
            except (*RETRYABLE, Fenced) as error:  # it ended, or another publisher has taken the topic over
                self._hang_up()
                if deadline.passed:
                    raise
                log.info("topic %s: %s; asking again", self.topic, error)
                time.sleep(PAUSE_SECONDS)

    def _connect(self, deadline: Deadline) -> BlockingLink:
        session = self._config.registry_session_timeout
        attempts = Attempts(0.0, session=session, cap=0.2, deadline=deadline, protocol_tries=None)
        while True:
            location = self._locator.wait(self.topic, deadline.left())
            try:
                self._link = dial_blocking(self._config, location.control, self._hello)
                self._hello = replace(self._hello, epoch=self._link.welcome.epoch, log=self._link.welcome.log)
                return self._link
            except Attempts.ERRORS as error:  # a registration is a hint: its publisher may be gone
                pause = attempts.failed(error, location)
                self._locator.doubt(location)
                time.sleep(pause)

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(*RETRYABLE):
                link.close()
