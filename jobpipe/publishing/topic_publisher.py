"""The Spark-free publisher: opens a topic at the coordinator and seals batches."""

from __future__ import annotations

import dataclasses
import logging
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from jobpipe.arrow.schema_validation import check_size
from jobpipe.config import Config, check_acks
from jobpipe.discovery.node_overrides import NodeCredentials
from jobpipe.errors import (
    ConfigError,
    JobpipeError,
    LinkClosed,
    LinkError,
    LocalProtocolError,
    SpoolError,
    SpoolFull,
    WaitTimeout,
)
from jobpipe.net.links.fork_guard import ForkGuard
from jobpipe.net.retry import Deadline
from jobpipe.net.servers.write_tokens import write_ticket
from jobpipe.operations.messages.message_fields import R, RequestFor
from jobpipe.operations.messages.source_messages import SourceReport
from jobpipe.operations.publisher_operations import (
    BeginRequest,
    DeclareRequest,
    DrainedRequest,
    LastSealed,
    OpenRequest,
    PrepareReply,
    Schema,
    SealRequest,
    SourceRequest,
)
from jobpipe.operations.status_operations import StatusRequest
from jobpipe.own_application import own_application
from jobpipe.publishing.acknowledgements import wait_acked
from jobpipe.publishing.batch_admission import WAIT_SECONDS, BatchAdmission, BatchKey
from jobpipe.publishing.batch_target import WriteTarget
from jobpipe.publishing.coordinator_channel import CLOSE_SECONDS, CoordinatorChannel
from jobpipe.publishing.coordinator_launcher import CoordinatorProcess
from jobpipe.publishing.first_publish_check import FirstPublishCheck, author
from jobpipe.publishing.publisher_messages import closing_warning
from jobpipe.store.catalog.position import Position
from jobpipe.store.spool.segment_index import INLINE_MAX, SegmentInfo
from jobpipe_registry.names import check_name
from jobpipe_registry.registry_errors import RegistryError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SealedBatch:
    """The outcome of one batch: the position after it, and whether it was a replay that published nothing."""

    position: Position
    rows: int
    bytes: int
    replayed: bool


class OpenBatch:
    """A batch that is being published: see :meth:`Publisher.batch`.

    Attributes:
        replayed_at: the position after it, if it was sealed before; it must not be written then.
        sealed: its outcome, once it is sealed.
    """

    def __init__(self, publisher: Publisher, key: BatchKey, replayed_at: Position | None) -> None:
        self._publisher = publisher
        self._key = key
        self.replayed_at = replayed_at
        self.sealed: SealedBatch | None = None

    def seal(
        self,
        target: WriteTarget,
        schema: pa.Schema,
        spark_schema: str | None,
        segments: list[SegmentInfo],
        *,
        note: bytes | None = None,
    ) -> SealedBatch:
        """Seal it, as :meth:`Publisher.commit`."""
        self.sealed = self._publisher.commit(self._key, target, schema, spark_schema, segments, note=note)
        return self.sealed


class Publisher:
    """One topic's publisher, without Spark.

    The constructor takes the topic over, so batches sealed earlier are served even while the source has no new rows.
    Not thread safe: one caller at a time.

    Args:
        application: Spark's name of the one that publishes, if it is known.
        opener: names a publisher that several processes are together; hexadecimal. By default this one is alone.
        others: returns write ids of batches in progress, of the other processes.
        attaching: finds the coordinator; by default that of this process.
        wanted: tells whether the topic is still to be published, before it is opened again for a dead coordinator.

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
        plain: bool = False,
        opener: str = "",
        others: Callable[[], tuple[str, ...]] = tuple,
        attaching: Callable[[Config], CoordinatorProcess] | None = None,
        wanted: Callable[[], bool] = lambda: True,
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
        self._application = own_application(application)
        self._others = others
        self._id = opener or uuid.uuid4().hex
        self._closed = False
        self._warned_of_placement = False
        self._stop_reason = "this publisher was closed" if plain else "the query was stopped"
        self._admission = BatchAdmission(
            topic, config, FirstPublishCheck(topic, on_new_checkpoint), stopped=self._stop_reason
        )
        self._channel = CoordinatorChannel(
            topic, self.name, config, self._open_request, stopped=self._stop_reason, attaching=attaching, wanted=wanted
        )
        self._admission.channel = self._channel

    def _open_request(self) -> OpenRequest:
        return OpenRequest(
            name=self.name,
            parallelism=self.parallelism,
            required=self._required,
            min_subscribers=self._min_subscribers,
            application=self._application.name,
            by=self._application,
            writing=self._admission.write_id,
            opener=self._id,
            others=self._others(),
            config=self.config,
        )

    @property
    def settings(self) -> OpenRequest:
        """What the topic is opened with, apart from what is in progress."""
        return dataclasses.replace(self._open_request(), writing="", others=())

    @property
    def owner(self) -> ForkGuard:
        """The process that opened this publisher; forks of it must not use or close the publisher."""
        return self._channel.owner

    @property
    def log_id(self) -> str:
        """The id of the topic's log."""
        return self._channel.log_id

    @property
    def epoch(self) -> int:
        """The epoch that this publisher seals in."""
        return self._channel.epoch

    @property
    def coordinator(self) -> CoordinatorProcess:
        """The process that serves the topic now."""
        if self._channel.coordinator is None:
            raise LinkClosed(f"topic {self.topic!r}: not open", topic=self.topic)
        return self._channel.coordinator

    @contextmanager
    def while_active(self, active: Callable[[], bool]) -> Iterator[None]:
        """Make waits inside the block raise WaitTimeout once ``active()`` is false; it is checked every 0.1 s."""
        with self._channel.while_active(active):
            yield

    # -- one batch -----------------------------------------------------------------------------------------------------

    def begin(self, key: BatchKey) -> Position | None:
        """Look at what is sealed, and wait for room in the spool.

        Returns:
            None for a new batch; for a replay of the last one the position after it.

        Raises:
            CheckpointTooOld: the batch is older than the last one sealed for this query.
            DuplicateCall: this run has sealed the batch already.
            NewCheckpoint: the query is new to the topic, and ``on_new_checkpoint`` refuses it.
            SpoolFull: no room within ``acks.timeout``. The message says what keeps the spool full: a subscription, a
                hold or a lease.
            WaitTimeout: the query was stopped meanwhile.
        """
        return self._admission.begin(key)

    def prepare(self, writer: str) -> PrepareReply:
        """Begin a batch whose query and id only its tasks know; they write to :meth:`target`.

        Args:
            writer: tells what writes this topic at the same time apart; hexadecimal, up to 64 digits. The earlier batch
                of the same writer is given up.

        Raises:
            Fenced: another publisher has the topic.
        """
        return self._admission.prepare(writer)

    def last_sealed(self, query_id: str) -> LastSealed | None:
        """Return the last batch that is sealed for a query; None if there is none."""
        # We ask for admission only to get ``last``. Batch id -1 is below that of any sealed batch, so it is not
        # admitted. If the query has no sealed batch, -1 may be admitted as a new one; nothing is written for it.
        return self._channel.call(BeginRequest(query_id, batch_id=-1)).last

    def target(self, partitions: int | None = None) -> WriteTarget:
        """Return the destination of the batch that :meth:`begin` admitted."""
        return WriteTarget(
            topic=self.topic,
            directory=str(self.config.spool_dir / self.topic),
            instance=self.coordinator.instance,
            data=str(self.coordinator.data),
            tls=NodeCredentials.of(self.config),
            plaintext=self.config.allow_plaintext,
            write_id=self._admission.write_id,
            partitions=partitions or self.parallelism,
            segment_max_bytes=self.config.segment_max_bytes,
            compression=self.config.segment_compression,
            fsync=self.config.fsync,
            inline_max=INLINE_MAX,
            log=self.log_id,
            hosts=self._admission.hosts,
            host_folder=self.config.hostserver_dir,
            host_folder_pinned="hostserver_dir" in self.config.pinned,
            ticket=write_ticket(self.coordinator.secret, self.topic, self._admission.write_id),
            log_token=self._channel.log_token,
        )

    def commit(
        self,
        key: BatchKey,
        target: WriteTarget,
        schema: pa.Schema,
        spark_schema: str | None,
        segments: list[SegmentInfo],
        *,
        note: bytes | None = None,
    ) -> SealedBatch:
        """Seal the batch: its one commit point. Safe to repeat.

        Args:
            note: is kept with the query in the same transaction, until its next batch; see :meth:`last_sealed`.

        Raises:
            SpoolFull: it has more segments than one request carries, or alone exceeds the cap, or the disk is full;
                nothing was sealed.
            UnsupportedType: its schema exceeds the size limit; nothing was sealed.
        """
        request = SealRequest(
            query_id=key.query_id,
            batch_id=key.batch_id,
            run_id=key.run_id,
            write_id=target.write_id,
            schema=Schema(schema.serialize().to_pybytes(), spark_schema),
            partitions=target.partitions,
            partitioner=self._partitioner,
            segments=tuple(segments),
            note=note,
        )
        try:
            reply = self._channel.call(request)
        except LocalProtocolError as error:
            if "limit" not in error.fields:
                raise
            check_size(self.topic, schema, spark_schema)
            raise SpoolFull(
                f"topic {self.topic!r}, batch {key.batch_id} of {author(key.query_id)}: it has "
                f"{len(segments)} segments, and the list of them takes {error.fields['size']} bytes where one seal "
                f"carries {error.fields['limit']}; nothing was sealed. Use fewer partitions (now {target.partitions}) "
                f"or fewer tasks, larger segments (jobpipe.segment.max_bytes, now {target.segment_max_bytes}), or "
                "smaller batches",
                topic=self.topic,
                segments=len(segments),
                partitions=target.partitions,
            ) from error
        self._warn_of_placement(segments)
        if reply.admitted is not None:
            self._admission.keep(key, reply.admitted)
        return SealedBatch(
            reply.position,
            sum(info.rows for info in segments),
            sum(info.length for info in segments),
            replayed=False,
        )

    def _warn_of_placement(self, segments: list[SegmentInfo]) -> None:
        """Warn once if segments are stored with the coordinator although placement is ``host``."""
        if self.config.spool_placement != "host" or self._warned_of_placement:
            return
        elsewhere = sum(1 for info in segments if info.file is not None and info.host is None)
        if elsewhere:
            self._warned_of_placement = True
            log.warning(
                "topic %s: spool.placement is host, but %d segments are stored with the coordinator, because no host "
                "server on the hosts of their tasks took them (registered: %s). Each task looks for the server of its "
                "host in jobpipe.hostserver.dir",
                *(self.topic, elsewhere, ", ".join(self._admission.hosts) or "none"),
            )

    def declare(self, schema: pa.Schema, spark_schema: str | None = None) -> None:
        """Tell subscribers the schema before the first batch.

        Raises:
            UnsupportedType: it exceeds the size limit.
        """
        check_size(self.topic, schema, spark_schema)
        self._channel.call(DeclareRequest(spark_schema, schema.serialize().to_pybytes()))

    @contextmanager
    def batch(self, key: BatchKey, *, written_as: str | None = None) -> Iterator[OpenBatch]:
        """Publish one batch inside the block, which writes to ``target()`` and calls ``seal()``, unless it is a replay.

        It begins by a wait for room. With ``acks=all`` it ends by a wait until the required subscriptions have
        committed the batch; for a replay, that wait comes first. A host server that kept some of a replayed batch may
        be absent, and a coordinator that has just started does not yet count it as lost. If it is declared lost during
        the wait, the batch may have to be written again after all.

        Args:
            written_as: the write id under which tasks have written the batch already: no room is waited for.

        Raises:
            CheckpointTooOld: the batch is older than the last one sealed for this query.
            DuplicateCall: this run has sealed the batch already.
            NewCheckpoint: the query is new to the topic, and ``on_new_checkpoint`` refuses it.
            SpoolFull: as :meth:`begin`.
            SpoolError: a host server that keeps some of the batch is lost.
            WaitTimeout: ``acks.timeout`` passed, naming the subscriptions that lack the batch; or the query was
                stopped.
        """

        def begin() -> Position | None:
            return self.begin(key) if written_as is None else self._admission.begin_written(key, written_as)

        batch = OpenBatch(self, key, begin())
        if batch.replayed_at is not None:
            try:
                self._wait_acked(batch.replayed_at)
            except SpoolError as error:
                if "hosts" not in error.fields or begin() is not None:
                    raise
                batch.replayed_at = None
        yield batch
        if batch.sealed is not None:
            self._wait_acked(batch.sealed.position)

    def _wait_acked(self, position: Position) -> None:
        """With ``acks=all`` wait until the required subscriptions have committed the batch before ``position``."""
        if self.config.acks == "all":
            wait_acked(self._channel, self.config.acks_timeout, position, stopped=self._stop_reason)

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
            CheckpointTooOld, DuplicateCall, NewCheckpoint, SpoolFull, SpoolError, WaitTimeout: see :meth:`batch` and
                :meth:`commit`.
        """
        schema = schema if schema is not None else tables[0].schema
        pairs = ((batch, number) for number, table in enumerate(tables) for batch in table.cast(schema).to_batches())
        key = BatchKey(query_id, batch_id, run_id or self._own_run)
        return self.seal_rows(key, schema, pairs, partitions=len(tables))

    def seal_rows(
        self,
        key: BatchKey,
        schema: pa.Schema,
        rows: Iterable[tuple[pa.RecordBatch, pa.Int32Array | int]],
        *,
        partitions: int | None = None,
        size: int | None = None,
        note: bytes | None = None,
    ) -> SealedBatch:
        """Publish one batch like :meth:`seal`; ``rows`` are the pairs that :meth:`WriteTarget.write` takes.

        Args:
            size: bytes of the rows, if known. A small batch makes no segment file: the seal request carries its bytes,
                and the catalog stores them.
            note: as for :meth:`commit`.
        """
        with self.batch(key) as batch:
            if batch.replayed_at is not None:
                return SealedBatch(batch.replayed_at, 0, 0, replayed=True)
            target = self.target(partitions)
            segments = target.write(schema, rows, "0", small=size is not None and size <= target.inline_max)
            return batch.seal(target, schema, None, segments, note=note)

    @property
    def _own_run(self) -> str:
        return f"core-{id(self)}-{self.epoch}"

    def ask(self, request: RequestFor[R]) -> R:
        """Ask the coordinator as the topic's publisher; the request may be sent more than once."""
        return self._channel.call(request)

    def tell_source(self, report: SourceReport, seconds: float) -> None:
        """Tell the coordinator how the source of the rows stands; for any thread, also while a batch is published.

        Raises:
            JobpipeError: the coordinator does not answer within so many seconds, or refuses.
        """
        self._channel.tell(SourceRequest(report), seconds)

    # -- end -----------------------------------------------------------------------------------------------------------

    def drain(self, timeout: float | None = None) -> None:
        """Wait until every subscription has acknowledged everything.

        Raises:
            WaitTimeout: ``timeout`` seconds passed; names the subscriptions that lag.
        """
        deadline = Deadline(timeout)
        while lagging := dict(self._channel.call(DrainedRequest(wait=WAIT_SECONDS)).lagging):
            if timeout is not None and deadline.passed:
                names = ", ".join(f"{name} ({count} batches behind)" for name, count in sorted(lagging.items()))
                raise WaitTimeout(
                    f"topic {self.topic!r}: not drained within {timeout:g} s: {names}",
                    topic=self.topic,
                    lagging=lagging,
                )

    def status(self) -> dict[str, Any]:
        """Return the coordinator's view of the topic; ``served`` says how many of its bytes each process has served."""
        return self._channel.call(StatusRequest(served=True)).to_json()

    def close(self, final: bool = False) -> None:
        """Give the topic up; with ``final`` an end mark tells subscribers that nothing follows. Idempotent.

        After a KeyboardInterrupt the coordinator may not have been told: call ``close`` again. In a fork of the process
        that opened this publisher, nothing is closed.

        Raises:
            ForkedProcess: ``final`` was given in a forked process.
            LinkError, WaitTimeout: with ``final``: the coordinator could not be told. The publisher is closed, and the
                end mark may be missing: open the topic again and close it with ``final``.
            JobpipeError: the coordinator refused, such as Fenced; the publisher is closed.
        """
        if final:
            self.owner.require()
        if self._closed or not self.owner.is_here:
            return
        deadline = Deadline(CLOSE_SECONDS)
        try:
            with self.while_active(lambda: not deadline.passed):
                reply = self._channel.leave(final=final)
            if (warning := closing_warning(self.topic, reply, self.config)) is not None:
                log.warning("%s", warning)
        except (LinkError, WaitTimeout) as error:
            if final:
                self._end()
                raise
            log.warning("topic %s: closed without telling its coordinator: %s", self.topic, error)
        except JobpipeError:
            self._end()
            raise
        self._end()

    def detach(self) -> None:
        """End the link, and leave the topic published: other processes of the same publisher go on. Idempotent."""
        if self.owner.is_here:
            self._end()

    def _end(self) -> None:
        self._closed = True
        self._channel.close()
