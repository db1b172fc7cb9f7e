"""A capture of PostgreSQL: tables are read once, and all changes follow, each once, into topics.

It keeps nothing of its own: where it is, it stores with each batch of a topic (:mod:`.postgres_note`), in the
transaction that publishes the batch. Only then the slot may let a part of the log go. So it may
be killed anywhere. :mod:`.capture_session` has the rules.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from jobpipe.cdc.change_rows import ChangeRows
from jobpipe.cdc.postgresql.capture_session import CaptureSession
from jobpipe.cdc.postgresql.postgres_options import PostgresOptions
from jobpipe.cdc.postgresql.reading_again import request
from jobpipe.cdc.postgresql.session_start import SessionParts
from jobpipe.cdc.topic_writer import TopicWriter
from jobpipe.config import Config
from jobpipe.errors import JobpipeError, LinkError, RegistryUnavailable, WaitTimeout
from jobpipe.publishing.plain_publisher import publisher

log = logging.getLogger(__name__)

RETRIED = (LinkError, RegistryUnavailable, WaitTimeout)
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds between two sessions
STEADY_SECONDS = 60.0  # of a session, after which the next pause is the first again
LEAVE_SECONDS = 5.0  # that a batch may take once a stop was asked for


@dataclass(frozen=True)
class CaptureStatus:
    """How a capture stands.

    Attributes:
        lsn: all transactions before this place in the database's log are published.
        behind_bytes: how much of the log the database has beyond it.
        tables: rows that were read of each table, and how many there may be; of those that are still being read.
        rows: published since the process began.
    """

    lsn: int
    behind_bytes: int
    tables: dict[str, tuple[int, float]]
    rows: int


class PostgresCapture:
    """Publishes the changes of some tables; a context manager.

    Args:
        options: what is captured.
        config: of jobpipe; a file, or a loaded configuration.
    """

    def __init__(self, options: PostgresOptions, config: str | Path | Config | None = None) -> None:
        self.options = options
        self._config = config
        self._database = options.database_api()
        self._known: set[int] = set()  # tables
        self._left_out: set[int] = set()
        self._writers: dict[str, TopicWriter] = {}
        self._published = 0  # by writers that were closed
        self._stop = threading.Event()
        self._session: CaptureSession | None = None
        self._timer: threading.Timer | None = None

    def __enter__(self) -> PostgresCapture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
        try:
            while not self._stop.is_set():
                began, rows = time.monotonic(), self.status().rows
                try:
                    with contextlib.ExitStack() as stack:
                        self._session = CaptureSession(self._parts(), stack)
                        if begun is not None:
                            begun()
                            begun = None
                        self._session.run()
                except RETRIED as error:
                    if self._stop.is_set():
                        return
                    late = time.monotonic() - started > self.options.connect_timeout
                    if not self._known and (late or _refuses(error)):
                        raise
                    if time.monotonic() - began > STEADY_SECONDS or self.status().rows > rows:
                        pause = FIRST_PAUSE
                    log.warning("capture %s: %s; trying again in %g s", self.options.name, error, pause)
                    self._drop_writers()  # what became of their last batch is not known
                    self._stop.wait(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            self._session = None
            if self._timer is not None:
                self._timer.cancel()

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

    def read_again(self, table: str, after: Sequence[str] | None = None, through: Sequence[str] | None = None) -> None:
        """Ask for a part of a table to be read again, by this capture in whatever process it runs.

        Its rows are published as those of a table that is read. Those that a transaction changes meanwhile come as its
        changes only. It is done once no table is being read for the first time.

        Args:
            table: as schema.table.
            after, through: the values of the key after which it begins, and with which it ends, as PostgreSQL's texts;
                None is the end of the table.

        Raises:
            ConfigError, LinkError, NotAuthorized: the request cannot be made.
        """
        bounds = (None if bound is None else tuple(map(str, bound)) for bound in (after, through))
        request(self.options, table, *bounds)

    def status(self) -> CaptureStatus:
        """Return how it stands; of a capture that runs."""
        session = self._session
        rows = self._published + sum(writer.published for writer in list(self._writers.values()))
        if session is None:
            return CaptureStatus(0, 0, {}, rows)
        return CaptureStatus(session.at, max(0, session.sent - session.at), session.progress(), rows)

    def close(self) -> None:
        """Give all topics up. Idempotent."""
        self._drop_writers()

    def _parts(self) -> SessionParts:
        return SessionParts(self.options, self._database, self._writer, self._stop.is_set, self._known, self._left_out)

    def _writer(self, topic: str) -> TopicWriter:
        if topic not in self._writers:
            options = self.options
            opened = publisher(
                topic,
                name=options.name,
                parallelism=1,  # so that all changes of a topic have one order
                config=self._config,
                required_subscribers=options.required_subscribers.get(topic, ()),
            )
            self._writers[topic] = TopicWriter(opened, ChangeRows(options.format, options.database), self._stop.is_set)
        return self._writers[topic]

    def _drop_writers(self) -> None:
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            self._published += writer.published
            writer.close()


def _refuses(error: JobpipeError) -> bool:
    """Tell whether a server that runs has refused a connection; libpq has no code for it."""
    text = str(error)
    return "certificate" in text or ("FATAL" in text and "the database system is" not in text)
