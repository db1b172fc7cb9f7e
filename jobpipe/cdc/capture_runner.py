"""A capture of tables, of any database: sessions one after the other, until it is stopped.

It keeps nothing of its own: where it is, it stores with each batch of a topic, in the transaction that publishes the
batch. So it may be killed anywhere.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from jobpipe.cdc.capture_health import SourceReports, source_report
from jobpipe.cdc.capture_options import CaptureOptions, IncompatibleChange, SchemaChange
from jobpipe.cdc.change_rows import ChangeRows
from jobpipe.cdc.session_tables import next_version
from jobpipe.cdc.topic_schema import IncompatibleColumns, TopicSchema
from jobpipe.cdc.topic_writer import TopicWriter
from jobpipe.config import Config, load
from jobpipe.errors import JobpipeError, LinkError, NotAuthorized, RegistryUnavailable, WaitTimeout
from jobpipe.operations.messages.source_messages import SourceReport
from jobpipe.publishing.plain_publisher import publisher
from jobpipe.subscribing.one_off_requests import published_schemas

log = logging.getLogger(__name__)

RETRIED = (LinkError, RegistryUnavailable, WaitTimeout)
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds between two sessions
STEADY_SECONDS = 60.0  # of a session, after which the next pause is the first again
LEAVE_SECONDS = 5.0  # that a batch may take once a stop was asked for


@dataclass(frozen=True)
class CaptureStatus:
    """How a capture stands.

    Attributes:
        position: all transactions before this place in the database's log are published; as the database writes it,
            empty before the first session.
        behind_bytes: how much of the log the database has beyond it.
        tables: rows that were read of each table, and how many there may be; of those that are still being read.
        rows: published since the process began.
        behind_seconds: since the newest transaction that is published was committed, by this host's clock; 0 while
            none waits, None while that is not known yet.
        retained_bytes: of its log that the database keeps for the capture; None: not known.
        safe_bytes: that the database may still write before it removes a part of that; None: without end, or not known.
    """

    position: str
    behind_bytes: int
    tables: dict[str, tuple[int, float]]
    rows: int
    behind_seconds: float | None = None
    retained_bytes: int | None = None
    safe_bytes: int | None = None


class Session(Protocol):
    """One stretch of a capture, on connections that live as long."""

    @property
    def position(self) -> str:
        """As :attr:`CaptureStatus.position`."""

    @property
    def behind_bytes(self) -> int:
        """As :attr:`CaptureStatus.behind_bytes`."""

    @property
    def behind_seconds(self) -> float | None:
        """As :attr:`CaptureStatus.behind_seconds`."""

    @property
    def retained_bytes(self) -> int | None:
        """As :attr:`CaptureStatus.retained_bytes`."""

    @property
    def safe_bytes(self) -> int | None:
        """As :attr:`CaptureStatus.safe_bytes`."""

    def progress(self) -> dict[str, tuple[int, float]]:
        """Return what :attr:`CaptureStatus.tables` is."""

    def wake(self) -> None:
        """End a wait of :meth:`run`. For any thread."""

    def run(self) -> None:
        """Capture until a stop is asked for, or there are new tables; publish what waits."""


class CaptureRunner(ABC):
    """Publishes the changes of some tables; a context manager.

    Args:
        options: what is captured.
        rows: makes rows of changes.
        config: of jobpipe; a file, or a loaded configuration.
    """

    def __init__(self, options: CaptureOptions, rows: ChangeRows, config: str | Path | Config | None = None) -> None:
        self._options = options
        self._rows = rows
        self._config = config
        self._writers: dict[str, TopicWriter] = {}
        self._first_versions: dict[str, str] = {}  # of topics
        self._published = 0  # by writers that were closed
        self._stop = threading.Event()
        self._session: Session | None = None
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _open_session(self, stack: contextlib.ExitStack) -> Session:
        """Check the database, join what was published before, and start the stream.

        Args:
            stack: closes what the session has opened.
        """

    @abstractmethod
    def _refuses(self, error: JobpipeError) -> bool:
        """Tell whether a server that runs has refused a connection."""

    @property
    @abstractmethod
    def _has_begun(self) -> bool:
        """Whether a session has begun."""

    def _measure(self) -> None:  # noqa: B027 - most sessions do it
        """Ask the database how its log stands, if the session does not; in a thread of its own, each second or so."""

    def _end_measuring(self) -> None:  # noqa: B027
        """Close what :meth:`_measure` has opened; in the same thread, after it."""

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Capture until :meth:`stop`. A cut link is made again; the first one must be made within ``connect_timeout``.

        Args:
            ready: called once, when the stream of changes has begun.

        Raises:
            LinkError: the database refuses connections, or there is none within ``connect_timeout``.
            ConfigError: the options, the database's settings, rights or tables do not fit; names everything.
            DataLoss: the database no longer has changes that were not published.
            SchemaMismatch: a value has no place in its column's type, or columns changed and may not.
            Fenced: another process has taken a topic over.
            SpoolError: see :mod:`jobpipe.errors`.
        """
        pause, started = FIRST_PAUSE, time.monotonic()
        begun = ready
        reports = SourceReports(self._options.name, self._report, lambda: dict(self._writers), self._end_measuring)
        try:
            while not self._stop.is_set():
                began, rows = time.monotonic(), self.status().rows
                try:
                    with contextlib.ExitStack() as stack, self._new_versions():
                        self._session = self._open_session(stack)
                        if begun is not None:
                            begun()
                            begun = None
                        self._session.run()
                except RETRIED as error:
                    self._session = None
                    if self._stop.is_set():
                        return
                    late = time.monotonic() - started > self._options.connect_timeout
                    if not self._has_begun and (late or self._refuses(error)):
                        raise
                    if time.monotonic() - began > STEADY_SECONDS or self.status().rows > rows:
                        pause = FIRST_PAUSE
                    log.warning("capture %s: %s; trying again in %g s", self._options.name, error, pause)
                    self._begin_again()
                    self._stop.wait(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            self._session = None
            reports.close()
            if self._timer is not None:
                self._timer.cancel()

    @contextlib.contextmanager
    def _new_versions(self) -> Iterator[None]:
        """Let a new version of a topic follow where the block ends since a column became another one."""
        try:
            yield
        except IncompatibleColumns as error:
            if self._options.incompatible_change is not IncompatibleChange.NEW_TOPIC:
                raise
            self._session = None
            topic = str(error.fields["topic"])
            newer = next_version(topic, self._first_versions[topic])
            self._writers[topic].end(newer)
            self._begin_again()
            log.warning(
                "capture %s: topic %s ends, as column %s has another type; its tables are read into topic %s, which "
                "follows it",
                *(self._options.name, topic, ", ".join(error.fields["columns"]), newer),
            )

    def stop(self) -> None:
        """Let :meth:`run` return, after the batch that is being published. For any thread, or a signal's handler."""
        if self._stop.is_set():
            return
        self._stop.set()
        session = self._session
        if session is not None:
            session.wake()
        self._timer = threading.Timer(LEAVE_SECONDS, self._drop_writers)  # it may wait for room
        self._timer.daemon = True
        self._timer.start()

    def status(self) -> CaptureStatus:
        """Return how it stands; of a capture that runs."""
        session = self._session
        rows = self._published + sum(writer.published for writer in list(self._writers.values()))
        if session is None:
            return CaptureStatus("", 0, {}, rows)
        return CaptureStatus(
            session.position,
            session.behind_bytes,
            session.progress(),
            rows,
            session.behind_seconds,
            session.retained_bytes,
            session.safe_bytes,
        )

    def _report(self) -> SourceReport | None:
        """Return what the topics learn of the database; None while there is no session."""
        if self._session is None:
            return None
        self._measure()
        now = self.status()
        if not now.position:
            return None
        return source_report(
            position=now.position,
            behind_bytes=now.behind_bytes,
            behind_seconds=now.behind_seconds,
            retained_bytes=now.retained_bytes,
            safe_bytes=now.safe_bytes,
            tables=now.tables,
        )

    def close(self) -> None:
        """Give all topics up. Idempotent."""
        self._drop_writers()

    def _writer(self, topic: str, first: str) -> TopicWriter:
        """Return the writer of a topic, opened once.

        Args:
            first: the first version of the topic, to which the options give tables.
        """
        if topic not in self._writers:
            options = self._options
            needed = options.required_subscribers
            self._first_versions[topic] = first
            opened = publisher(
                topic,
                name=options.name,
                parallelism=1,  # so that all changes of a topic have one order
                config=self._config,
                required_subscribers=needed.get(topic, ()) or needed.get(first, ()),
            )
            schema = TopicSchema(
                topic,
                options.schema_change,
                lambda: self._newest_schema(topic, opened.last_note),
                [
                    column
                    for schema, table, column in (each.split(".", 2) for each in options.text_columns)
                    if options.topic_of(schema, table) == first
                ],
            )
            self._writers[topic] = TopicWriter(opened, self._rows, schema, self._stop.is_set)
        return self._writers[topic]

    def _newest_schema(self, topic: str, note: bytes | None) -> pa.Schema | None:
        """Return the schema of the rows that are published last; None if there are none, or it may not be read."""
        if note is None:
            return None
        config = self._config if isinstance(self._config, Config) else load(self._config)
        try:
            arrow, _ = published_schemas(config, [topic])[topic]
        except NotAuthorized:
            if self._options.schema_change is SchemaChange.IGNORE:
                raise
            log.info("capture %s: topic %s may not be read by who publishes it", self._options.name, topic)
            return None
        return pa.ipc.read_schema(pa.py_buffer(arrow))

    def _begin_again(self) -> None:
        """Let topics stay open for another session, but those of which the last batch's end is not known."""
        for topic, writer in list(self._writers.items()):
            if not writer.usable:
                del self._writers[topic]
                self._published += writer.published
                writer.close()

    def _drop_writers(self) -> None:
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            self._published += writer.published
            writer.close()
