"""The Spark-free publisher: opens a topic at the coordinator and seals batches."""

from __future__ import annotations

import base64
import logging
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from jobpipe.config import Config, check_acks
from jobpipe.discovery.node import TravellingCredentials
from jobpipe.errors import (
    CheckpointTooOld,
    ConfigError,
    DuplicateCall,
    JobpipeError,
    LinkClosed,
    LinkError,
    LocalProtocolError,
    SpoolError,
    SpoolFull,
    WaitTimeout,
)
from jobpipe.net.address import Endpoint
from jobpipe.net.capability import write_ticket
from jobpipe.publisher.attach import Coordinator
from jobpipe.publisher.channel import CLOSE_SECONDS, SLICE_SECONDS, Channel
from jobpipe.publisher.farewell import farewell
from jobpipe.publisher.newcomers import Newcomers
from jobpipe.publisher.notice import Notice
from jobpipe.publisher.target import WriteTarget
from jobpipe.store import INLINE_MAX, Position, SegmentInfo
from registry.errors import RegistryError
from registry.names import check_name

__all__ = ["Publisher", "SealedBatch"]

log = logging.getLogger(__name__)

ADMISSION_SECONDS = 0.3  # room, the data process and host servers may be others after that


@dataclass(frozen=True)
class SealedBatch:
    """The outcome of one batch: where it lies, and whether it was a replay that published nothing."""

    position: Position
    rows: int
    bytes: int
    replayed: bool


@dataclass(frozen=True)
class _Admission:
    """Of the batch that comes next, so that a quick query asks once a batch, and not twice."""

    query_id: str
    after: int  # the batch id that was sealed
    answer: dict[str, Any]
    since: float

    def covers(self, query_id: str, batch_id: int) -> bool:
        fresh = time.monotonic() - self.since < ADMISSION_SECONDS
        return fresh and query_id == self.query_id and batch_id > self.after


class Publisher:
    """One topic's publisher, without Spark.

    The constructor takes the topic over, so that a quiet source does not hide a backlog. Not thread safe: one caller
    at a time.

    Raises:
        ConfigError: a setting does not fit.
        TopicOwned: another live publisher has the topic; the message names it.
        RegistryUnavailable: the registry does not answer.
    """

    def __init__(
        self,
        topic: str,
        *,
        config: Config,
        name: str | None = None,
        parallelism: int = 1,
        partitioner: str = "as they come",
        required_subscribers: str | Sequence[str] = (),
        min_subscribers: int = 0,
        application: str = "",
        on_new_checkpoint: str = "publish",
    ) -> None:
        try:
            check_name(topic)
        except Exception as error:
            raise ConfigError(f"topic {topic!r}: {error}", topic=topic) from error
        required = (required_subscribers,) if isinstance(required_subscribers, str) else tuple(required_subscribers)
        for subscriber in required:
            try:
                check_name(subscriber)
            except RegistryError as error:
                raise ConfigError(f"required_subscribers: {error}", name=subscriber) from error
        check_acks(config, required, min_subscribers)
        self.topic = topic
        self.config = config
        self.name = name or f"{topic}@{socket.gethostname()}"
        self.parallelism = parallelism
        self._partitioner = partitioner
        self._required = required
        self._min_subscribers = min_subscribers
        self._application = application
        self._newcomers = Newcomers(topic, on_new_checkpoint)
        self._id = uuid.uuid4().hex
        self._closed = False
        self._told_where = False
        self._hosts: tuple[str, ...] = ()  # that may keep segments of it
        self._admission: _Admission | None = None  # of the next batch, by the seal of the last one
        self._write_id = ""  # of the batch in progress, given by the coordinator
        self._channel = Channel(topic, self.name, config, self._order)

    def _order(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "parallelism": self.parallelism,
            "required": list(self._required),
            "min_subscribers": self._min_subscribers,
            "application": self._application,
            "writing": self._write_id,
            "opener": self._id,
            "config": self.config.to_dict(),
        }

    @property
    def log_id(self) -> str:
        """The topic's log."""
        return self._channel.log_id

    @property
    def epoch(self) -> int:
        """The epoch that this publisher seals in."""
        return self._channel.epoch

    @property
    def coordinator(self) -> Coordinator:
        """The process that serves the topic now."""
        if self._channel.coordinator is None:
            raise LinkClosed(f"topic {self.topic!r}: not open", topic=self.topic)
        return self._channel.coordinator

    @contextmanager
    def while_active(self, active: Callable[[], bool]) -> Iterator[None]:
        """Let every wait of the block end, by WaitTimeout, when ``active()`` turns false; it is asked each 0.1 s."""
        with self._channel.while_active(active):
            yield

    # -- one batch -----------------------------------------------------------------------------------------------------

    def begin(self, query_id: str, batch_id: int, run_id: str) -> Position | None:
        """Look at what is sealed, and wait for room in the spool.

        Returns:
            None for a new batch; for a replay of the last one the position behind it.

        Raises:
            CheckpointTooOld: ``batch_id`` is older than the last one sealed for this query.
            DuplicateCall: this run has sealed ``batch_id`` already.
            SpoolFull: no room within ``acks.timeout``; the message names the slow subscription.
            WaitTimeout: the query was stopped meanwhile.
        """
        admission, self._admission = self._admission, None
        if admission is not None and admission.covers(query_id, batch_id):
            answer = admission.answer
            if self._channel.still(answer["instance"], lambda: self._note_write_id(answer)):
                self._write(answer)
                return None
        deadline, notice = time.monotonic() + self.config.acks_timeout, Notice(self.topic)
        while True:
            result = self._channel.call(
                "begin", {"query_id": query_id, "batch_id": batch_id, "run_id": run_id, "wait": SLICE_SECONDS}
            ).result
            self._channel.epoch = int(result["epoch"])  # raised when a batch must be written anew
            last = result["last"]
            if last is not None and batch_id <= last["batch_id"]:
                return self._replayed(query_id, batch_id, run_id, last)
            self._newcomers.judge(query_id, result["newest"])
            if result["full"] is None:
                self._write(result["admitted"])
                return None
            notice.tell(result["full"])
            if not self._channel.active():
                raise WaitTimeout(
                    f"topic {self.topic!r}: the query was stopped while {result['full']}", topic=self.topic
                )
            if time.monotonic() > deadline:
                raise SpoolFull(
                    f"topic {self.topic!r}: no room within {self.config.acks_timeout:g} s: {result['full']}. Read "
                    "on, drop the subscription, or raise jobpipe.spool.max_bytes",
                    topic=self.topic,
                    reason=result["full"],
                )

    def last_batch(self, query_id: str) -> tuple[int, Position] | None:
        """Return the last batch that is sealed for a query, and the position after it; None if there is none."""
        # Of a batch with such an id, begin tells what is sealed; what it admits otherwise is not used.
        args = {"query_id": query_id, "batch_id": -1, "run_id": "", "wait": 0.0}
        last = self._channel.call("begin", args).result["last"]
        return None if last is None else (int(last["batch_id"]), Position.from_json(last["position"]))

    def _note_write_id(self, admitted: dict[str, Any]) -> None:
        self._write_id = str(admitted["write_id"])

    def _write(self, admitted: dict[str, Any]) -> None:
        self._note_write_id(admitted)
        self._hosts = tuple(str(host) for host in admitted["hosts"])
        self.coordinator.data = Endpoint.parse(admitted["data"])  # the data process may have been started again

    def _replayed(self, query_id: str, batch_id: int, run_id: str, last: dict[str, Any]) -> Position:
        if batch_id < last["batch_id"]:
            raise CheckpointTooOld(
                f"topic {self.topic!r}: Spark replays batch {batch_id} of query {query_id}, but batch "
                f"{last['batch_id']} is "
                "sealed already: the checkpoint is an old copy. Use the newest checkpoint, or a new one (its rows are "
                "appended)",
                topic=self.topic,
                query_id=query_id,
                batch_id=batch_id,
                last_batch_id=last["batch_id"],
            )
        if run_id == last["run_id"]:
            raise DuplicateCall(
                f"topic {self.topic!r}: batch {batch_id} of query {query_id} was published already in this run: "
                "call the sink once in each foreachBatch (union the DataFrames, or use two topics); outside a query, "
                "with a higher number each time",
                topic=self.topic,
                query_id=query_id,
                batch_id=batch_id,
            )
        return Position.from_json(last["position"])

    def target(self, partitions: int | None = None) -> WriteTarget:
        """Return where the batch that :meth:`begin` admitted goes."""
        return WriteTarget(
            topic=self.topic,
            directory=str(self.config.spool_dir / self.topic),
            instance=self.coordinator.instance,
            data=str(self.coordinator.data),
            tls=TravellingCredentials.of(self.config),
            plaintext=self.config.allow_plaintext,
            write_id=self._write_id,
            partitions=partitions or self.parallelism,
            segment_max_bytes=self.config.segment_max_bytes,
            compression=self.config.segment_compression,
            fsync=self.config.fsync,
            inline_max=INLINE_MAX,
            log=self.log_id,
            hosts=self._hosts,
            host_folder=self.config.hostserver_dir,
            host_folder_pinned="hostserver_dir" in self.config.pinned,
            ticket=write_ticket(self.coordinator.secret, self.topic, self._write_id),
            log_token=self._channel.log_token,
        )

    def commit(
        self,
        query_id: str,
        batch_id: int,
        run_id: str,
        target: WriteTarget,
        schema: pa.Schema,
        spark_schema: str | None,
        segments: list[SegmentInfo],
    ) -> SealedBatch:
        """Seal the batch: its one commit point. Safe to repeat.

        Raises:
            SpoolFull: it has more segments than one request carries; nothing was sent.
        """
        blob = b"".join(info.data for info in segments if info.data is not None)
        order = {
            "query_id": query_id,
            "batch_id": batch_id,
            "run_id": run_id,
            "write_id": target.write_id,
            "schema": {"arrow": base64.b64encode(schema.serialize().to_pybytes()).decode(), "spark": spark_schema},
            "partitions": target.partitions,
            "partitioner": self._partitioner,
            "segments": [
                {**info.to_json(), "inline": None if info.data is None else len(info.data)} for info in segments
            ],
        }
        try:
            reply = self._channel.call("seal", order, blob)
        except LocalProtocolError as error:
            if "limit" not in error.fields:
                raise
            raise SpoolFull(
                f"topic {self.topic!r}, batch {batch_id} of query {query_id}: it has {len(segments)} segments, and the "
                f"list of them takes {error.fields['size']} bytes where one seal carries {error.fields['limit']}; "
                f"nothing was sealed. Use fewer partitions (now {target.partitions}) or fewer tasks, larger segments "
                f"(jobpipe.segment.max_bytes, now {target.segment_max_bytes}), or smaller batches",
                topic=self.topic,
                segments=len(segments),
                partitions=target.partitions,
            ) from error
        self._tell_where(segments)
        if reply.result["admitted"] is not None:
            self._admission = _Admission(query_id, batch_id, reply.result["admitted"], time.monotonic())
        return SealedBatch(
            Position.from_json(reply.result["position"]),
            sum(info.rows for info in segments),
            sum(info.length for info in segments),
            replayed=False,
        )

    def _tell_where(self, segments: list[SegmentInfo]) -> None:
        """Log, once, that placement ``host`` has no effect: a user would look for it where it is not."""
        if self.config.spool_placement != "host" or self._told_where:
            return
        elsewhere = sum(1 for info in segments if info.file is not None and info.host is None)
        if elsewhere:
            self._told_where = True
            log.warning(
                "topic %s: spool.placement is host, and %d segments lie with the coordinator: where they were written "
                "no host server was found (registered: %s). Tasks look for it in jobpipe.hostserver.dir of their host",
                *(self.topic, elsewhere, ", ".join(self._hosts) or "none"),
            )

    def declare(self, schema: pa.Schema, spark_schema: str | None = None) -> None:
        """Tell subscribers the schema before the first batch."""
        self._channel.call("declare", {"spark": spark_schema}, schema.serialize().to_pybytes())

    def wait_acked(self, position: Position) -> None:
        """With ``acks=all`` wait until the required subscriptions have committed the batch before ``position``.

        Raises:
            WaitTimeout: ``acks.timeout`` passed, or the query was stopped; names the missing ones.
            SpoolError: a host server that keeps some of the batch is lost.
        """
        if self.config.acks != "all":
            return
        deadline, notice = time.monotonic() + self.config.acks_timeout, Notice(self.topic)
        while True:
            answer = self._channel.call("acked", {"n": position.n, "wait": SLICE_SECONDS}).result
            missing, gone = answer["missing"], answer["gone"]
            if not missing:
                return
            if gone:
                raise SpoolError(
                    f"topic {self.topic!r}, offset {position.n - 1}: host server {', '.join(gone)}, which keeps part "
                    f"of the batch, is lost, and {', '.join(missing)} did not commit it. Start the query again: Spark "
                    "repeats the batch, and it is written anew",
                    topic=self.topic,
                    offset=position.n - 1,
                    hosts=gone,
                    missing=missing,
                )
            notice.tell(f"acks=all, offset {position.n} is not yet acknowledged by {', '.join(missing)}")
            if not self._channel.active() or time.monotonic() > deadline:
                why = (
                    "the query was stopped"
                    if not self._channel.active()
                    else f"acks.timeout={self.config.acks_timeout:g} s passed"
                )
                raise WaitTimeout(
                    f"topic {self.topic!r}, offset {position.n}: {why}; not acknowledged by {', '.join(missing)}",
                    topic=self.topic,
                    offset=position.n,
                    missing=missing,
                )

    def admit(self, query_id: str, batch_id: int, run_id: str) -> Position | None:
        """Return None when the batch is to be written, and for a replay, once it is acknowledged, the offset behind it.

        A host server may be lost while a replay waits: a coordinator that was just started does not know for how long
        it has been away already. Then the batch is to be written after all.

        Raises:
            CheckpointTooOld, DuplicateCall, SpoolFull, SpoolError, WaitTimeout: as :meth:`begin`, :meth:`wait_acked`.
        """
        again = self.begin(query_id, batch_id, run_id)
        if again is None:
            return None
        try:
            self.wait_acked(again)
        except SpoolError as error:
            if "hosts" not in error.fields or self.begin(query_id, batch_id, run_id) is not None:
                raise
            return None
        return again

    def seal(
        self,
        query_id: str,
        batch_id: int,
        tables: Sequence[pa.Table],
        *,
        run_id: str = "",
        schema: pa.Schema | None = None,
    ) -> SealedBatch:
        """Publish one batch: ``tables[k]`` are the rows of partition ``k``.

        A batch that was sealed before, by an earlier run, is not published again.

        Raises:
            CheckpointTooOld, DuplicateCall, SpoolFull, SpoolError, WaitTimeout: as the steps say.
        """
        schema = schema if schema is not None else tables[0].schema
        pairs = ((batch, number) for number, table in enumerate(tables) for batch in table.cast(schema).to_batches())
        return self.seal_rows(query_id, batch_id, run_id or self._own_run, schema, pairs, partitions=len(tables))

    def seal_rows(
        self,
        query_id: str,
        batch_id: int,
        run_id: str,
        schema: pa.Schema,
        rows: Iterable[tuple[pa.RecordBatch, pa.Int32Array | int]],
        *,
        partitions: int | None = None,
        size: int | None = None,
    ) -> SealedBatch:
        """Publish one batch, as :meth:`seal`; ``rows`` are pairs as :meth:`WriteTarget.write` takes them.

        Args:
            size: their bytes, if known: a small batch asks neither the disk nor a host server.
        """
        again = self.admit(query_id, batch_id, run_id)
        if again is not None:
            return SealedBatch(again, 0, 0, replayed=True)
        target = self.target(partitions)
        segments = target.write(schema, rows, "0", small=size is not None and size <= target.inline_max)
        sealed = self.commit(query_id, batch_id, run_id, target, schema, None, segments)
        self.wait_acked(sealed.position)
        return sealed

    @property
    def _own_run(self) -> str:
        return f"core-{id(self)}-{self.epoch}"

    # -- end -----------------------------------------------------------------------------------------------------------

    def drain(self, timeout: float | None = None) -> None:
        """Wait until every subscription has acknowledged everything.

        Raises:
            WaitTimeout: ``timeout`` seconds passed; names the subscriptions that lag.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while lagging := self._channel.call("drained", {"wait": 1.0}).result["lagging"]:
            if deadline is not None and time.monotonic() > deadline:
                names = ", ".join(f"{name} ({count} batches behind)" for name, count in sorted(lagging.items()))
                raise WaitTimeout(
                    f"topic {self.topic!r}: not drained within {timeout:g} s: {names}",
                    topic=self.topic,
                    lagging=lagging,
                )

    def status(self) -> dict[str, Any]:
        """Return the coordinator's view of the topic; ``served`` says how many of its bytes each process has served."""
        return self._channel.call("status", {"served": True}).result

    def close(self, final: bool = False) -> None:
        """Give the topic up; with ``final`` an end mark tells subscribers that nothing follows. Idempotent.

        Interrupted (KeyboardInterrupt), it may not have reached the coordinator: then call it again.
        """
        if self._closed:
            return
        deadline = time.monotonic() + CLOSE_SECONDS
        try:
            with self.while_active(lambda: time.monotonic() < deadline):
                answer = self._channel.call("close", {"final": final})
            if (said := farewell(self.topic, answer.result, self.config)) is not None:
                log.warning("%s", said)
        except (LinkError, WaitTimeout) as error:
            if final:
                self._end()
                raise
            log.warning("topic %s: closed without a word to its coordinator: %s", self.topic, error)
        except JobpipeError:
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        self._closed = True
        self._channel.close()
