"""``writeStream.format("jobpipe")`` and ``write.format("jobpipe")``: the writers.

Spark runs a writer in processes that it starts and ends as it likes. One of the driver makes a new writer for each
micro-batch and pickles it into the tasks; another one of the driver commits. None of them has a session, and only the
tasks know query and batch. So the first process prepares a batch, the tasks write it and say whose it
is, and the second one seals it. The topic belongs to the coordinator of the driver's JVM, and is served as long as that
lives (:mod:`jobpipe.publishing.serving.shared_coordinator`). Seen in PySpark 4.0.5, 4.1.4, 4.2.1 and 4.3.0.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from jobpipe.arrow.list_offsets import with_offsets
from jobpipe.coordinator.topic_liveness import WatchedParent
from jobpipe.errors import Fenced, SpoolError, UnsupportedType
from jobpipe.own_application import jvm_above
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.batch_target import WriteTarget
from jobpipe.publishing.coordinator_launcher import parent_of, this_process
from jobpipe.publishing.first_publish_check import series_id
from jobpipe.publishing.open_publishers import place_of
from jobpipe.publishing.serving.shared_topics import TopicMark, open_shared
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.spark.options.write_options import WriterOptions
from jobpipe.spark.schema.spark_arrow_schema import arrow_schema, check_types
from jobpipe.spark.session.python_workers import gc_freeze
from jobpipe.spark.session.spark_versions import DataSourceArrowWriter, DataSourceStreamArrowWriter
from jobpipe.spark.session.user_errors import hide_traceback
from jobpipe.spark.sink.row_checks import check_rows
from jobpipe.spark.sink.segment_writers import TASK_INLINE_MAX, RowLayout
from jobpipe.store.spool.segment_index import SegmentInfo

log = logging.getLogger(__name__)

MAX_PUBLISHERS = 64  # of one process, each with a link and a thread
QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"

Numbered = Iterator[tuple[pa.RecordBatch, pa.Int32Array | int]]


@dataclass(frozen=True)
class WrittenSegments(WriterCommitMessage):
    """What a task has written.

    Attributes:
        write_id: of the batch.
        query_id, run_id: of the query; "" in a batch write.
        task: its number, by which segments are ordered.
        segments: in the order of rows.
    """

    write_id: str
    query_id: str
    run_id: str
    task: int
    segments: tuple[SegmentInfo, ...]


@dataclass(frozen=True)
class _Prepared:
    """What tasks need to write a batch.

    Attributes:
        target: where rows go.
        control: the coordinator's endpoint, where room is waited for.
        full: there was none when the batch was prepared.
        patience: seconds for which it is waited for.
    """

    target: WriteTarget
    control: str
    full: bool
    patience: float


class _Writer:
    """What writers of queries and of batches share.

    Args:
        options: of the writer.
        schema: of the rows.

    Raises:
        JobpipeError: as :class:`jobpipe.spark.sink.foreach_batch_sink.JobPipeSink`, and its call, raise: the topic is
            taken over here.
    """

    def __init__(self, options: WriterOptions, schema: StructType) -> None:
        self._options = options
        self._checked = check_rows(
            options.topic, schema, options.declared, options.partitioner, case_sensitive=options.case_sensitive
        )
        hashes = options.partitioner.kind == "hash" and options.parallelism > 1
        if hashes and not self._checked.hashes_here:
            columns = ", ".join(options.partitioner.columns)
            raise UnsupportedType(
                f"topic {options.topic!r}: partition_by={columns} has a type whose hash only Spark can compute; "
                "publish by JobPipeSink, which lets it, or give partitioner='module:function'",
                topic=options.topic,
                columns=columns,
            )
        self._hashed = self._checked.places if hashes else ()
        self._prepared: _Prepared | None = None
        publisher_of(options)

    def __getstate__(self) -> dict[str, Any]:
        """Prepare the batch for the tasks. Where a query's batch is committed, no writer is pickled."""
        if self._prepared is None:
            publisher = publisher_of(self._options)
            try:
                found = publisher.prepare(self._options.writer)
            except Fenced:  # closed since, as by a last batch; or taken over, of which opening it says more
                forget(publisher)
                publisher = publisher_of(self._options)
                try:
                    found = publisher.prepare(self._options.writer)
                except Fenced as error:
                    raise Fenced(
                        f"{error}. Writers of one application that write a topic at the same time must give the "
                        "same settings: with other ones the topic is opened again",
                        **error.fields,
                    ) from error
            target = dataclasses.replace(publisher.target(), inline_max=TASK_INLINE_MAX)
            _mark(self._options).note_writing(self._options.writer, target.write_id)
            patience = self._options.config.acks_timeout
            self._prepared = _Prepared(target, found.control, found.full is not None, patience)
        return dict(self.__dict__)

    def _write(self, batches: Iterable[pa.RecordBatch], query_id: str, run_id: str, batch_id: int) -> WrittenSegments:
        prepared, context = self._prepared, TaskContext.get()
        assert prepared is not None  # noqa: S101 - pickled, it came here
        assert context is not None  # noqa: S101 - only ever called in a task
        gc_freeze()
        if prepared.full:
            prepared.target.await_room(prepared.control, prepared.patience)
        task = context.partitionId()
        # The attempt *number* is used again by a retried stage; the attempt id never is.
        attempt = f"{task}-{context.taskAttemptId()}"
        divided = self._divided(map(with_offsets, batches), prepared.target.partitions, task, batch_id)
        segments = prepared.target.write(self._checked.arrow, divided, attempt)
        return WrittenSegments(prepared.target.write_id, query_id, run_id, task, tuple(segments))

    def _divided(self, batches: Iterable[pa.RecordBatch], partitions: int, task: int, batch_id: int) -> Numbered:
        """Yield record batches with the partitions of their rows, as the sink's partitioners choose them."""
        partitioner = self._options.partitioner
        rows = RowLayout(self._checked.arrow, partitioner, self._hashed)
        pairs = rows.divided(batches, partitions, self._options.topic, task)
        if partitioner.kind == "fixed":
            yield from ((batch, task % partitions) for batch, _ in pairs)
        elif partitioner.kind == "round-robin":
            # Tasks, and batches, of few rows would all begin with partition 0: each begins one further.
            following = task + batch_id
            for batch, _ in pairs:
                yield batch, pa.array((at % partitions for at in range(following, following + len(batch))), pa.int32())
                following += len(batch)
        else:
            yield from pairs

    def _seal(self, messages: Sequence[WriterCommitMessage | None], key: BatchKey) -> None:
        options = self._options
        written = sorted((each for each in messages if isinstance(each, WrittenSegments)), key=lambda each: each.task)
        if len(written) != len(messages) or len({each.write_id for each in written}) != 1:
            raise SpoolError(
                f"topic {options.topic!r}, batch {key.batch_id}: Spark commits what is not of one batch of this topic: "
                f"{len(written)} of {len(messages)} messages; nothing was published",
                topic=options.topic,
                batch_id=key.batch_id,
            )
        publisher = publisher_of(options)
        with publisher.batch(key, written_as=written[0].write_id) as batch:
            if batch.replayed_at is None:
                segments = [segment for each in written for segment in each.segments]
                batch.seal(publisher.target(), self._checked.arrow, self._checked.json, segments)
            else:
                offset = batch.replayed_at.n - 1
                log.info("topic %s: batch %d is sealed already, at offset %d", options.topic, key.batch_id, offset)
            _mark(options).forget_writing(options.writer)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes the micro-batches of a query, each exactly once."""

    @hide_traceback
    def write(self, iterator: Iterator[Any]) -> WrittenSegments:
        """Write a task's rows.

        Raises:
            SpoolFull, SpoolError, LinkError, RowTooLarge, SchemaMismatch, ConfigError: see :mod:`jobpipe.errors`.
        """
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - only ever called in a task
        query_id, batch_id, run_id = (context.getLocalProperty(name) or "" for name in (QUERY_ID, BATCH_ID, RUN_ID))
        return self._write(iterator, query_id, run_id, int(batch_id))

    @hide_traceback
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Seal the micro-batch; with ``acks=all``, wait until it is committed.

        Raises:
            CheckpointTooOld: Spark replays a batch older than the last one sealed.
            NewCheckpoint: the query is new to the topic, and ``on_new_checkpoint`` refuses it.
            SpoolFull, SpoolError, WaitTimeout, Fenced, LinkError: see :mod:`jobpipe.errors`.
        """
        if messages:  # a frame without partitions has no tasks
            first = messages[0]
            who = (first.query_id, first.run_id) if isinstance(first, WrittenSegments) else ("", "")
            self._seal(messages, BatchKey(who[0], batchId, who[1]))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Forget the batch. Files are left to the sweep: Spark also calls this if a commit fails that has happened."""
        _mark(self._options).forget_writing(self._options.writer)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Publishes the rows of one ``save()`` as one batch."""

    def __init__(self, options: WriterOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        own = uuid.uuid4().hex
        self._key = BatchKey(series_id(options.series or own, once=not options.series), options.batch_id or 0, own)

    @hide_traceback
    def write(self, iterator: Iterator[Any]) -> WrittenSegments:
        """Write a task's rows; raises as :meth:`StreamWriter.write`."""
        return self._write(iterator, "", "", self._key.batch_id)

    @hide_traceback
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Seal the batch; with ``acks=all``, wait until it is committed. Raises as :meth:`StreamWriter.commit`."""
        if messages:
            self._seal(messages, self._key)
        if self._options.final:
            publisher = publisher_of(self._options)
            publisher.close(final=True)
            forget(publisher)
            _mark(self._options).forget()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget the batch. Files are left to the sweep: Spark also calls this if a commit fails that has happened."""
        _mark(self._options).forget_writing(self._options.writer)


# -- this process's publishers -----------------------------------------------------------------------------------------

_lock = threading.Lock()
_publishers: dict[tuple[int, str, tuple[str, str, str]], tuple[dict[str, Any], Publisher]] = {}


def publisher_of(options: WriterOptions) -> Publisher:
    """Return this process's publisher of a topic, one of those that together are the driver's.

    Raises:
        TopicOwned, RegistryUnavailable, ConfigError: as :class:`jobpipe.publishing.topic_publisher.Publisher`.
    """
    key = (os.getpid(), options.topic, place_of(options.config))  # a fork must not share
    wanted = options.settings
    if options.declared is not None:
        check_types(options.declared, options.topic)
    with _lock:
        known, made = _publishers.pop(key, (None, None))
        if made is not None and known != wanted:
            made.detach()
            made = None
        if made is None:
            made = open_shared(_mark(options), **wanted)
            try:
                if options.declared is not None:
                    made.declare(arrow_schema(options.declared), options.declared.json())
            except BaseException:
                made.detach()
                raise
        _publishers[key] = wanted, made  # last: the first one has not been used for longest
        if len(_publishers) > MAX_PUBLISHERS:
            _publishers.pop(next(iter(_publishers)))[1].detach()
        return made


def _mark(options: WriterOptions) -> TopicMark:
    return TopicMark(_driver_of(os.getpid()), options.config, options.topic)


def forget(publisher: Publisher) -> None:
    """Let the next use of a topic open it again."""
    with _lock:
        for key in [key for key, (_, known) in _publishers.items() if known is publisher]:
            del _publishers[key]
    publisher.detach()


@functools.lru_cache(1)
def _driver_of(pid: int) -> WatchedParent:  # by the process that asks: a fork of it may have another one above
    """Return the process whose end ends the topics: the driver's JVM."""
    above = jvm_above()
    return this_process() if above is None else parent_of(above)


def _in_child() -> None:
    """A thread that a fork does not have may hold the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)
