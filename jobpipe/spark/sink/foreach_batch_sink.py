"""``JobPipeSink``: the callable for ``foreachBatch`` that publishes micro-batches."""

from __future__ import annotations

import dataclasses
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from jobpipe.arrow.hash_partitioner import PartitionFunction
from jobpipe.config import ConfigProblem, config_error, load
from jobpipe.config.definitions.sink_arguments import read_arguments
from jobpipe.errors import ConfigError
from jobpipe.publishing import open_publishers
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.batch_target import WriteTarget
from jobpipe.publishing.first_publish_check import series_id
from jobpipe.publishing.topic_publisher import OpenBatch, Publisher
from jobpipe.spark.options.partitioner import Partitioner
from jobpipe.spark.schema.spark_arrow_schema import arrow_schema, as_rows_have_it, check_types
from jobpipe.spark.session.classic_session import require_classic, session_settings, this_session
from jobpipe.spark.session.collect_rows import collect_batches
from jobpipe.spark.session.python_interpreter import check_session
from jobpipe.spark.sink.query_context import calling_run
from jobpipe.spark.sink.row_checks import CheckedRows, check_rows
from jobpipe.spark.sink.segment_writers import (
    ACTIVE_SECONDS,
    TASK_INLINE_MAX,
    RowLayout,
    write_by_tasks,
    write_collected,
)
from jobpipe.spark.termination.close import written_topics
from jobpipe.spark.termination.jvm_death import end_with_jvm
from jobpipe.spark.termination.query_stop import QueryRun, query_stopped, stop_is_no_failure
from jobpipe.store.spool.segment_index import SegmentInfo

log = logging.getLogger(__name__)

COLLECT_MAX_BYTES = 8 * 1024 * 1024  # auto: the next batch goes through the driver if the last one was no larger
HASH_MAX_ROWS = 5_000  # hashed in the driver: Python takes some 2 us for each, Spark some 10 ms to plan it


class JobPipeSink:
    """Publishes every micro-batch of a query to a topic, exactly once.

    Use one sink for one query: ``df.writeStream.foreachBatch(JobPipeSink("orders"))``. The constructor takes the topic
    over and begins to serve what is sealed already. A batch that Spark replays is not published again: it is
    recognised by its batch id and the query id, which is in the checkpoint. Outside a streaming query each call appends
    a batch; give each call a higher batch id.

    Args:
        topic: name of the topic, ``[A-Za-z0-9][A-Za-z0-9._-]{0,127}``.
        name: the publisher's name in listings and errors; by default ``topic@host``.
        parallelism: number of the topic's partitions; by default ``jobpipe.parallelism``, else Spark's default
            parallelism.
        partition_by: columns whose hash chooses the partition, ``pmod(hash(columns), parallelism)``, where ``hash`` is
            Spark's own: Murmur3 with seed 42, the same in every run and version. Order holds within a partition.
        partitioner: ``hash`` (the default with ``partition_by``), ``fixed`` (the default without ``partition_by``:
            the DataFrame's partitions, modulo the parallelism), ``round-robin`` (each task deals its rows out in turn),
            or a function ``f(batch: pyarrow.RecordBatch, partitions: int)`` that returns one number of 0..partitions-1
            for each row, as an array or a sequence. A call, in the driver or in a task, gets up to
            ``spark.sql.execution.arrow.maxRecordsPerBatch`` rows (10,000 unless set). To keep the order of a key,
            compute each number from its row alone.
        schema: a StructType or DDL string; announced to subscribers before the first batch; every batch must have it.
        acks: ``stored`` (the call returns when the batch is durable in the spool) or ``all`` (when every required
            subscription has committed it).
        required_subscribers: subscriptions that do not expire: their unread rows are kept however long they are away.
            ``acks="all"`` waits for them. Missing ones are created, at the oldest kept batch.
        min_subscribers: how many subscriptions ``acks="all"`` waits for; until that many exist, batches are
            removed only by ``on_full=drop_oldest``.
        write_path: ``auto``, ``collect`` (through the driver) or ``tasks`` (from the executors).
        on_new_checkpoint: ``publish`` or ``refuse``: what happens when a query is new to a topic that another query
            has published to. The new query may be the same job with a deleted checkpoint, which would publish its
            source again.
        replace: if this process already publishes to the topic, first stop the query that has published to it, and
            close its publisher. For running a notebook cell again.
        config: a configuration file, instead of the one found by the usual search.
        overrides: any key of the configuration, with underscores (``retention_time="1h"``) or dotted.

    Raises:
        ConfigError: a setting does not fit, no port is free, no network interface is in ``jobpipe.sinkserver.subnet``.
        UnsupportedType: ``schema`` has a type that cannot be published.
        TopicOwned: another live publisher has the topic; the message names it.
        RegistryUnavailable: the registry does not answer.
    """

    def __init__(
        self,
        topic: str,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        partition_by: Sequence[str] | str | None = None,
        partitioner: str | PartitionFunction | None = None,
        schema: StructType | str | None = None,
        acks: str | None = None,
        required_subscribers: str | Sequence[str] | None = None,
        min_subscribers: int | None = None,
        write_path: str | None = None,
        on_new_checkpoint: str = "publish",
        replace: bool = False,
        config: str | Path | None = None,
        **overrides: Any,
    ) -> None:
        spark = this_session("JobPipeSink")
        values, problems = read_arguments(
            {
                "topic": topic,
                "name": name,
                "partition_by": partition_by,
                "partitioner": partitioner,
                "required_subscribers": required_subscribers,
                "min_subscribers": min_subscribers,
                "on_new_checkpoint": on_new_checkpoint,
                "replace": replace,
            }
        )
        given = {"acks": acks, "write_path": write_path, "parallelism": parallelism, **overrides}
        try:
            self._config = load(
                config,
                overrides={key: value for key, value in given.items() if value is not None},
                spark=session_settings(spark) if spark else {},
                caller=JobPipeSink,
            )
        except ConfigError as error:
            problems += [ConfigProblem(**problem) for problem in error.fields["problems"]]
        if problems:
            raise config_error(problems, of=f"JobPipeSink({topic!r})", what="wrong argument")
        self.topic = topic
        self._partitioner = Partitioner.choose(topic, partitioner, values["partition_by"])
        self._parallelism = self._config.parallelism or (spark.sparkContext.defaultParallelism if spark else 1)
        self._declared = None if schema is None else _parse(schema)
        if self._declared is not None:
            check_types(self._declared, topic)
        self._checked: CheckedRows | None = None
        self._own_query = series_id(str(uuid.uuid4()), once=True)
        self._run: QueryRun | None = None  # the run that last published through this sink
        self._lock = threading.Lock()  # held while a batch is published
        self.place = open_publishers.place_of(self._config)
        if values["replace"]:
            open_publishers.replace(topic, self._config)
            for shared in written_topics():
                if (shared.topic, shared.place) == (topic, self.place):
                    shared.give_way()
        self._last_bytes: int | None = None
        self._last_rows = 0
        self._counts = {
            "batches": 0,
            "rows": 0,
            "bytes": 0,
            "replayed": 0,
            "collect": 0,
            "tasks": 0,
            "too_large_to_collect": 0,
        }
        self._publisher = Publisher(
            topic,
            config=self._config,
            name=name,
            parallelism=self._parallelism,
            partitioner=str(self._partitioner),
            required_subscribers=values["required_subscribers"] or (),
            min_subscribers=values["min_subscribers"] or 0,
            application=(spark.sparkContext.appName or "") if spark else "",
            on_new_checkpoint=values["on_new_checkpoint"],
        )
        open_publishers.remember(self)
        if spark is not None:
            end_with_jvm(spark)
            check_session(spark.sparkContext)
        if self._declared is not None:
            self._publisher.declare(arrow_schema(self._declared), self._declared.json())

    def __reduce__(self) -> tuple[Any, ...]:
        raise ConfigError(
            "a JobPipeSink cannot be pickled: it lives in the driver. Over Spark Connect, whose server runs "
            "foreachBatch, publish by df.writeStream.format('jobpipe')",
            topic=self.topic,
        )

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Publish one micro-batch; returns when it is sealed; with ``acks="all"``, when it is committed.

        Raises:
            UnsupportedType: a column's type cannot be published.
            ConfigError: ``partition_by`` names a column that does not exist; the partitioner's function is wrong; or
                the call comes from a thread that a callback may have started, so that its query is not known.
            SchemaMismatch: the rows do not fit the declared schema.
            CheckpointTooOld: Spark replays a batch older than the last one sealed.
            NewCheckpoint: the query is new to the topic, and ``on_new_checkpoint`` refuses it.
            DuplicateCall: the sink was called a second time in one micro-batch.
            SpoolFull, SpoolError, WaitTimeout, Fenced, LinkError, RowTooLarge: see :mod:`jobpipe.errors`.
            QueryStopped: the query was stopped. Do not catch it: Spark treats it as the end of the query.
        """
        require_classic(df.sparkSession, "JobPipeSink")
        run = calling_run(df, self._run, self.topic, batch_id)
        if run is not None:
            self._run = run

        def active() -> bool:
            return run is None or run.active()

        with (
            stop_is_no_failure(active, f"topic {self.topic!r}", batch_id),
            self._one_at_a_time(active, batch_id),
            self._publisher.while_active(active),
        ):
            query, run_id = (self._own_query, self._own_query) if run is None else (run.query_id, run.id)
            self._publish_once(df, BatchKey(query, batch_id, run_id), active)

    @contextmanager
    def _one_at_a_time(self, active: Callable[[], bool], batch_id: int) -> Iterator[None]:
        """Let one thread publish while the others wait: a publisher writes one batch at a time."""
        while not self._lock.acquire(timeout=ACTIVE_SECONDS):
            if not active():
                raise query_stopped(f"topic {self.topic!r}", batch_id)
        try:
            yield
        finally:
            self._lock.release()

    def _publish_once(self, df: DataFrame, key: BatchKey, active: Callable[[], bool]) -> None:
        checked = self._check(df)
        with self._publisher.batch(key) as batch:
            if batch.replayed_at is None:
                self._publish(df, checked, key, batch, active)
                return
            self._counts["replayed"] += 1
            offset = batch.replayed_at.n - 1
            log.info("topic %s: batch %d is sealed already, at offset %d", self.topic, key.batch_id, offset)

    def publish(self, df: DataFrame, batch_id: int, *, series: str, once: bool = False) -> None:
        """Publish one batch outside a streaming query.

        If it is the series' newest batch so far, and an earlier sink sealed it (before a restart), it is skipped.

        Args:
            batch_id: rises with each batch of the series.
            series: names the sequence that the batch ids belong to.
            once: the series ends with a run, so the topic may forget it a week after the last batch.

        Raises:
            DuplicateCall: this sink has published the batch already.
            CheckpointTooOld: the batch is older than the last one sealed of the series.
            JobpipeError: what else calling the sink raises.
        """
        require_classic(df.sparkSession, "JobPipeSink")
        with self._one_at_a_time(lambda: True, batch_id):
            self._publish_once(df, BatchKey(series_id(series, once=once), batch_id, self._own_query), lambda: True)

    def drain(self, timeout: float | None = None) -> None:
        """Wait until every subscription has acknowledged everything.

        Raises:
            WaitTimeout: ``timeout`` seconds passed; names the subscriptions that lag.
        """
        self._publisher.drain(timeout)

    def close(self, final: bool = False) -> None:
        """Give the topic up; ``final`` seals an end mark first. Serving then goes on as ``coordinator.linger`` says."""
        open_publishers.forget(self)
        self._publisher.close(final)

    def give_way(self) -> None:
        """Stop the query that last published through this sink, if any, and close the sink: a new one may come."""
        if self._run is not None:
            self._run.stop()
        self.close()

    def status(self) -> dict[str, Any]:
        """Return the coordinator's status of the topic, and under ``sink`` what this sink has done."""
        return {**self._publisher.status(), "sink": dict(self._counts)}

    # -- one batch -----------------------------------------------------------------------------------------------------

    def _check(self, df: DataFrame) -> CheckedRows:
        schema = df.schema
        if self._checked is None or schema != self._checked.found:
            self._checked = self._newly_checked(schema, df)
        return self._checked

    def _newly_checked(self, schema: StructType, df: DataFrame) -> CheckedRows:
        case_sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
        return check_rows(self.topic, schema, self._declared, self._partitioner, case_sensitive=case_sensitive)

    def _publish(
        self, df: DataFrame, checked: CheckedRows, key: BatchKey, batch: OpenBatch, active: Callable[[], bool]
    ) -> None:
        target = self._publisher.target()
        path = self._choose_write_path()
        if path == "collect":
            try:
                segments = self._write_from_driver(df, checked, key, target, active)
            except (PySparkException, Py4JError) as error:
                if "maxResultSize" not in str(error):
                    raise
                log.info("topic %s: batch %d is too large for the driver, written by tasks", self.topic, key.batch_id)
                self._counts["too_large_to_collect"] += 1
                path = "tasks"
        if path == "tasks":
            small = dataclasses.replace(target, inline_max=TASK_INLINE_MAX)
            rows = RowLayout(checked.arrow, self._partitioner)
            segments = write_by_tasks(self._numbered(df, checked, key), small, rows)
        sealed = batch.seal(target, checked.arrow, checked.json, segments)
        self._last_bytes, self._last_rows = sealed.bytes, sealed.rows
        self._counts[path] += 1
        self._counts["batches"] += 1
        self._counts["rows"] += sealed.rows
        self._counts["bytes"] += sealed.bytes

    def _write_from_driver(
        self, df: DataFrame, checked: CheckedRows, key: BatchKey, target: WriteTarget, active: Callable[[], bool]
    ) -> list[SegmentInfo]:
        """Write from the driver, and hash there if there are few rows; Spark hashes if not."""
        if checked.hashes_here and self._parallelism > 1 and self._last_rows <= HASH_MAX_ROWS:
            batches = collect_batches(df)
            if sum(batch.num_rows for batch in batches) <= HASH_MAX_ROWS:
                rows = RowLayout(checked.arrow, self._partitioner, checked.places)
                return write_collected(batches, target, rows, active)
            del batches  # before they come again
        batches = collect_batches(self._numbered(df, checked, key))
        return write_collected(batches, target, RowLayout(checked.arrow, self._partitioner), active)

    def _numbered(self, df: DataFrame, checked: CheckedRows, key: BatchKey) -> DataFrame:
        return self._partitioner.number_rows(df, self._parallelism, key.batch_id, checked.places)

    def _choose_write_path(self) -> str:
        if self._config.write_path != "auto":
            return self._config.write_path
        if self._last_bytes is None:
            return "tasks"  # nothing is known of the size yet
        return "collect" if self._last_bytes <= COLLECT_MAX_BYTES else "tasks"


def _parse(schema: StructType | str) -> StructType:
    parsed = as_rows_have_it(StructType.fromDDL(schema) if isinstance(schema, str) else schema)
    if not isinstance(parsed, StructType):
        raise ConfigError(f"schema={schema!r}: expected columns, as in 'id bigint, name string'", key="schema")
    return parsed
