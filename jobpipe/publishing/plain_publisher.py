"""``jobpipe.publisher``: publish from a service, a script or a notebook, without Spark."""

from __future__ import annotations

import dataclasses
import logging
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from jobpipe.arrow.hash_partitioner import (
    PartitionFunction,
    checked_numbers,
    described_hash,
    hash_numbers,
    require_hashable,
)
from jobpipe.arrow.list_offsets import table_with_offsets
from jobpipe.arrow.schema_validation import readable, readable_schema, require_columns
from jobpipe.config import Config, ConfigProblem, config_error, config_from_dict, load_given
from jobpipe.config.definitions.sink_arguments import read_arguments
from jobpipe.errors import CheckpointTooOld, ConfigError, LinkClosed, SchemaMismatch
from jobpipe.operations.messages.source_messages import SourceReport
from jobpipe.operations.publisher_operations import MAX_NOTE, LastSealed
from jobpipe.publishing import open_publishers
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.first_publish_check import series_id
from jobpipe.publishing.topic_publisher import Publisher, SealedBatch
from jobpipe.store.catalog.batches import ONCE
from jobpipe.store.spool.segment import check_schema

log = logging.getLogger(__name__)

MAX_BATCH_ID = (1 << 63) - 1
Rows = pa.RecordBatch | pa.Table | Sequence[Mapping[str, Any]]


class PlainPublisher:
    """A topic's publisher in this process, without Spark; made by :func:`publisher`.

    Each :meth:`write` publishes one batch, which subscribers see as a whole or not at all. Threads may share it: they
    write one after the other. Use it as a context manager, or call :meth:`close`.
    """

    def __init__(
        self,
        topic: str,
        *,
        config: Config,
        schema: pa.Schema | None,
        name: str | None,
        partition_by: tuple[str, ...],
        partitioner: PartitionFunction | None,
        required_subscribers: Sequence[str],
        min_subscribers: int,
    ) -> None:
        self.topic = topic
        self.name = name
        self.schema = schema
        self._last_schemas: tuple[pa.Schema | None, pa.Schema] = None, pa.schema([])  # of rows, and as published
        self.place = open_publishers.place_of(config)
        self._partition_by = partition_by
        self._partitioner = partitioner
        self._appending = series_id(str(uuid.uuid4()), once=True)  # batches without an id: none of them is a replay
        self._appended = 0
        self._lock = threading.Lock()  # of writing: a publisher has one caller at a time
        self._closing = threading.Event()
        self._last: LastSealed | None = None
        self._publisher = Publisher(
            topic,
            config=config,
            name=name,
            parallelism=config.parallelism or 1,
            partitioner=self._called,
            required_subscribers=required_subscribers,
            min_subscribers=min_subscribers,
            plain=True,
        )
        open_publishers.remember(self)
        try:
            if schema is not None:
                self._publisher.declare(readable_schema(topic, schema))
            self._last = None if name is None else self._publisher.last_sealed(name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PlainPublisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def last_batch_id(self) -> int | None:
        """The highest batch id that was published under this name, by earlier processes too; None for none."""
        return None if self._last is None else self._last.batch_id

    @property
    def last_note(self) -> bytes | None:
        """The note that was published with the batch ``last_batch_id``; None if it had none, or there is none."""
        return None if self._last is None else self._last.note

    def write(self, rows: Rows, batch_id: int | None = None, *, note: bytes | None = None) -> SealedBatch:
        """Publish one batch; return when it is durable (and, with ``acks="all"``, committed by the required).

        With a ``batch_id`` the batch is published exactly once: an id that is not above all ids published before under
        this name is a replay, and publishes nothing. So after an error, or a crash, write the same batch again. Without
        one it is published at least once: after an error it may have been published, and writing it again doubles it.

        Args:
            rows: a ``pyarrow.RecordBatch`` or ``Table``; for a publisher with a schema also a list of dicts.
            batch_id: rises with each batch, with or without gaps. Needs the publisher's ``name``.
            note: up to 4096 bytes that are kept with the batch, in the same transaction, until the next one under this
                name: where your source goes on. :attr:`last_note` gives it back, also to the next process. A batch
                without rows keeps its note too, and subscribers see nothing of it. Needs ``batch_id``.

        Returns:
            Where the batch lies. Of a replay: the position after the batch with the highest id, ``replayed`` is true.

        Raises:
            ConfigError: ``batch_id`` without a name, or not a whole number from 0; a ``note`` without ``batch_id``, too
                long, or with ``acks=all``; ``partition_by`` names a column that does not exist; the partitioner's
                function is wrong.
            SchemaMismatch: the rows do not fit the schema, or have values that no subscriber could read; names columns.
            UnsupportedType: a column's type, or its name, cannot pass.
            RowTooLarge: a row is larger than a record batch may be.
            ForkedProcess: this is a fork of the process that opened it.
            SpoolFull, SpoolError, WaitTimeout, Fenced, LinkError: see :mod:`jobpipe.errors`.
        """
        self._publisher.owner.require()
        self._require_batch_id(batch_id)
        self._require_note(note, batch_id)
        table = self._table(rows)
        with self._lock, self._publisher.while_active(lambda: not self._closing.is_set()):
            if self._closing.is_set():
                raise LinkClosed(f"topic {self.topic!r}: this publisher is closed", topic=self.topic)
            if batch_id is None or self.name is None:
                self._appended += 1
                return self._seal(self._appending, self._appended, table)
            return self._seal_numbered(self.name, batch_id, table, note)

    def status(self) -> dict[str, Any]:
        """Return the coordinator's status of the topic, as ``jobpipe topics describe --json`` shows it."""
        return self._publisher.status()

    def tell_source(self, report: SourceReport, seconds: float) -> None:
        """Say in the topic's status how the source of its rows stands; for any thread, also while one writes.

        Raises:
            JobpipeError: it could not be said within so many seconds; nothing else depends on it.
        """
        self._publisher.tell_source(report, seconds)

    def drain(self, timeout: float | None = None) -> None:
        """Wait until every subscription has acknowledged everything.

        Raises:
            WaitTimeout: ``timeout`` seconds passed; names the subscriptions that lag.
        """
        self._publisher.drain(timeout)

    def close(self, final: bool = False) -> None:
        """Give the topic up; with ``final`` an end mark tells subscribers that nothing follows. Idempotent.

        A :meth:`write` of another thread that waits for subscribers, or for room, ends with WaitTimeout. What is
        published is served until all have read it, as long as one of them advances within ``coordinator.linger``. In a
        fork of the process that opened it nothing is closed.

        Raises:
            ForkedProcess: ``final`` was asked in a fork.
        """
        if not self._publisher.owner.is_here:
            self._publisher.close(final)
            return
        self._closing.set()
        open_publishers.forget(self)
        with self._lock:
            self._publisher.close(final)

    def give_way(self) -> None:
        """Make room for a publisher that replaces this one."""
        self.close()

    # -- one batch -----------------------------------------------------------------------------------------------------

    def _require_batch_id(self, batch_id: int | None) -> None:
        if batch_id is None:
            return
        if self.name is None:
            raise ConfigError(
                f"topic {self.topic!r}: batch_id={batch_id!r} needs a publisher with a name, which the ids "
                f"belong to, such as jobpipe.publisher({self.topic!r}, name='importer')",
                topic=self.topic,
                key="name",
            )
        if isinstance(batch_id, bool) or not isinstance(batch_id, int) or not 0 <= batch_id <= MAX_BATCH_ID:
            raise ConfigError(
                f"topic {self.topic!r}: batch_id={batch_id!r}, expected a whole number from 0 to {MAX_BATCH_ID}",
                topic=self.topic,
                key="batch_id",
            )

    def _require_note(self, note: bytes | None, batch_id: int | None) -> None:
        if note is None:
            return
        if batch_id is None:
            why = "needs a batch_id: a batch without one may be published twice, and its note would tell of one"
        elif not isinstance(note, bytes) or len(note) > MAX_NOTE:
            what = f"{len(note)} bytes" if isinstance(note, bytes) else type(note).__name__
            why = f"is {what}, expected at most {MAX_NOTE} bytes"
        elif self._publisher.config.acks == "all":
            why = (
                "needs acks=local. With acks=all the topic goes on after the loss of its spool, and the note would be "
                "lost with the spool"
            )
        else:
            return
        raise ConfigError(f"topic {self.topic!r}: the note of batch {batch_id} {why}", topic=self.topic, key="note")

    def _seal_numbered(self, name: str, batch_id: int, table: pa.Table, note: bytes | None) -> SealedBatch:
        """Seal a batch; whatever comes of it, ``_last`` is then what the coordinator knows of this name."""
        try:
            sealed = self._seal(name, batch_id, table, note)
        except CheckpointTooOld:
            last = self._publisher.last_sealed(name)
            if last is None:
                raise
            self._last = last
            log.info(
                "topic %s: batch %d of %s is older than batch %d: a replay", self.topic, batch_id, name, last.batch_id
            )
            return SealedBatch(last.position, 0, 0, replayed=True)
        if sealed.replayed:  # with the note of the first time
            self._last = self._publisher.last_sealed(name)
        else:
            self._last = LastSealed(batch_id, sealed.position, "", note)
        return sealed

    def _seal(self, query_id: str, batch_id: int, table: pa.Table, note: bytes | None = None) -> SealedBatch:
        # Each call is a run of its own: the same id once more is a replay, not a mistake.
        key = BatchKey(query_id, batch_id, uuid.uuid4().hex)
        return self._publisher.seal_rows(key, table.schema, self._numbered(table), size=table.nbytes, note=note)

    def _table(self, rows: Rows) -> pa.Table:
        if isinstance(rows, pa.RecordBatch):
            table = pa.Table.from_batches([rows])
        elif isinstance(rows, pa.Table):
            table = rows
        elif self.schema is not None and isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
            table = self._from_dicts(rows, self.schema)
        else:
            raise ConfigError(
                f"topic {self.topic!r}: write() takes a pyarrow.RecordBatch or Table, or, with "
                f"jobpipe.publisher(..., schema=...), a list of dicts; got {type(rows).__name__}",
                topic=self.topic,
            )
        table = table_with_offsets(table)
        table = table.replace_schema_metadata(None) if self.schema is None else self._fitting(table)
        given, published = self._last_schemas
        if given is None or not given.equals(table.schema, check_metadata=True):
            require_columns(self.topic, table.schema)
            published = readable_schema(self.topic, table.schema)
            require_hashable(self.topic, published, self._partition_by)
            self._last_schemas = table.schema, published
        return readable(self.topic, table, published)

    def _from_dicts(self, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
        unknown = sorted({str(key) for row in rows for key in row if key not in schema.names})
        if unknown:
            raise self._mismatch(f"the rows have {', '.join(unknown)}, which the schema does not")
        try:
            return pa.Table.from_pylist(list(rows), schema=schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self._mismatch(str(error)) from error

    def _fitting(self, table: pa.Table) -> pa.Table:
        assert self.schema is not None  # noqa: S101 - asked of publishers with one
        names, known = table.schema.names, self.schema.names
        if sorted(names) != sorted(known):
            raise self._mismatch(f"the schema has the columns {', '.join(known)}, the rows have {', '.join(names)}")
        try:
            return table.select(known).cast(self.schema)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise self._mismatch(str(error)) from error

    def _mismatch(self, why: str) -> SchemaMismatch:
        return SchemaMismatch(f"topic {self.topic!r}: the rows do not fit the schema: {why}", topic=self.topic)

    # -- partitions ----------------------------------------------------------------------------------------------------

    @property
    def _called(self) -> str:
        """What the spool keeps of how rows are divided, as of a sink."""
        if self._partition_by:
            return described_hash(self._partition_by)
        if self._partitioner is None:
            return "fixed"
        named: Any = self._partitioner if hasattr(self._partitioner, "__qualname__") else type(self._partitioner)
        return f"function {named.__module__}.{named.__qualname__}"

    def _numbered(self, table: pa.Table) -> Iterator[tuple[pa.RecordBatch, pa.Int32Array | int]]:
        """Yield record batches with the partitions of their rows."""
        partitions = self._publisher.parallelism
        if partitions == 1:
            yield from ((batch, 0) for batch in table.to_batches())
        elif self._partition_by or self._partitioner is not None:
            for batch in table.to_batches():
                yield batch, self._numbers(batch, partitions)
        else:  # as many rows to each, in the order in which they are
            for number in range(partitions):
                start, end = (table.num_rows * at // partitions for at in (number, number + 1))
                yield from ((batch, number) for batch in table.slice(start, end - start).to_batches())

    def _numbers(self, batch: pa.RecordBatch, partitions: int) -> pa.Int32Array:
        if self._partitioner is None:
            return hash_numbers(batch, self._partition_by, partitions)
        return checked_numbers(self._partitioner, batch, partitions, where=f"topic {self.topic!r}", called=self._called)


def _configured(config: str | Path | Config | None, given: dict[str, Any], overrides: dict[str, Any]) -> Config:
    if not isinstance(config, Config):
        return load_given(config, {**given, **overrides}, caller=publisher)
    config = load_given(config, overrides, caller=publisher)
    parsed = config_from_dict({f"jobpipe.{key}": str(value) for key, value in given.items()})
    return dataclasses.replace(config, **{key: getattr(parsed, key) for key in given})


def publisher(
    topic: str,
    *,
    schema: pa.Schema | None = None,
    name: str | None = None,
    parallelism: int | None = None,
    partition_by: Sequence[str] | str | None = None,
    partitioner: PartitionFunction | None = None,
    acks: str | None = None,
    required_subscribers: str | Sequence[str] | None = None,
    min_subscribers: int | None = None,
    replace: bool = False,
    config: str | Path | Config | None = None,
    **overrides: Any,
) -> PlainPublisher:
    """Publish to ``topic`` without Spark: ``with jobpipe.publisher("orders") as orders: orders.write(batch)``.

    The topic is taken over, and what was published before is served, from here on.

    Args:
        schema: told to subscribers before the first batch, and required of every batch. Without one each batch brings
            its own.
        name: under which batch ids count; give the same one each time the program starts. Also who publishes, for
            listings and errors; by default topic and host.
        parallelism: number of the topic's partitions; by default ``jobpipe.parallelism``, or else 1.
        partition_by: columns whose hash chooses the partition, the same one that a ``JobPipeSink`` chooses.
        partitioner: a function of a ``pyarrow.RecordBatch`` and the parallelism that returns a partition from 0 for
            each row. Without one, and without ``partition_by``, each partition gets an equal run of the batch's rows.
        acks: ``stored`` (a write returns when the batch is durable in the spool) or ``all`` (when every required
            subscription has committed it).
        required_subscribers: subscriptions that exist from the log's start and that ``acks="all"`` waits for.
        min_subscribers: how many subscriptions ``acks="all"`` waits for; until they exist, batches are
            removed only by ``on_full=drop_oldest``.
        replace: close this process's own publisher of the topic first, if there is one: for a cell that is run again.
        config: a file, or a loaded configuration; otherwise found as always.
        overrides: single settings, as for :class:`jobpipe.JobPipeSink`.

    Raises:
        ConfigError: a value does not fit.
        UnsupportedType: ``schema`` holds a type that cannot pass.
        TopicOwned: another live publisher has the topic; the message names it.
        RegistryUnavailable: the registry does not answer.
    """
    values, problems = read_arguments(
        {
            "topic": topic,
            "name": name,
            "partition_by": partition_by,
            "required_subscribers": required_subscribers,
            "min_subscribers": min_subscribers,
        }
    )
    given = {key: value for key, value in {"acks": acks, "parallelism": parallelism}.items() if value is not None}
    try:
        loaded = _configured(config, given, overrides)
    except ConfigError as error:
        problems += [ConfigProblem(**problem) for problem in error.fields["problems"]]
    columns = tuple(values.get("partition_by") or ())
    if partitioner is not None and (columns or not callable(partitioner)):
        expected = "a function, without partition_by"
        problems.append(ConfigProblem("option", "partitioner", repr(partitioner)[:80], expected))
    if (values.get("name") or "").startswith(ONCE):  # ids that are forgotten after days, and those of appenders
        problems.append(ConfigProblem("option", "name", repr(name)[:80], f"a name that does not begin with {ONCE!r}"))
    given_schema: object = schema
    if not isinstance(given_schema, (pa.Schema, type(None))):
        problems.append(ConfigProblem("option", "schema", repr(schema)[:80], "a pyarrow.Schema"))
    if problems:
        raise config_error(problems, of=f"jobpipe.publisher({topic!r})", what="wrong argument")
    if schema is not None:
        schema = schema.remove_metadata()
        require_columns(topic, schema)
        check_schema(schema)  # rows are made of it, and of dictionaries they cannot be
        require_hashable(topic, readable_schema(topic, schema), columns)
    if replace:
        open_publishers.replace(topic, loaded)
    return PlainPublisher(
        topic,
        config=loaded,
        schema=schema,
        name=name,
        partition_by=columns,
        partitioner=partitioner,
        required_subscribers=values.get("required_subscribers") or (),
        min_subscribers=values.get("min_subscribers") or 0,
    )
