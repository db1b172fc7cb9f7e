"""The catalog's SQLite file: tables, durability, fenced transactions. The only module that handles sqlite3 errors."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jobpipe.errors import Fenced, SpoolError, SpoolFull
from jobpipe.store.catalog.catalog_tables import check_format, prepare_catalog
from jobpipe.store.catalog.lock_holder import explain
from jobpipe.store.spool.spool_files import (
    Reserve,
    create_private,
    free_bytes,
    rewrite_file,
    size_of,
    spool_error,
    sync_directory,
)

log = logging.getLogger(__name__)

_BUSY_SECONDS = 10.0
_KEPT_QUERIES = 10_000  # of read_again()
_CHECKPOINT_SECONDS = 0.1
_LITTLE = 64 * 1024  # bytes; the write-ahead log's index grows by so much at most
# A COMMIT that fails with one of these has not written its commit record; any other failure leaves the outcome open.
_NOT_COMMITTED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE}

_Query = tuple[str, str, tuple[Any, ...]]  # how many rows are asked for, the query, its values


class Database:
    """One connection to a catalog, for one thread at a time.

    Every method raises SpoolError for what SQLite reports, with ``fields["file"]``.

    Attributes:
        path: The file.
        epoch: The one that changes are made under; the stored one, until a take-over sets it.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.epoch = 0
        self._connection = connection
        self._broken: str | None = None
        self._opened = 0  # how often the file was opened again
        self._kept: dict[_Query, list[sqlite3.Row]] = {}  # of read_again()
        self._kept_version: tuple[int, ...] = ()
        self._known: dict[_Query, list[sqlite3.Row]] | None = None  # the same, within it
        self._fsync = True
        self._shared = False
        self._file: tuple[int, int] | None = None  # device and inode, of a connection that writes

    @classmethod
    def create_or_open(cls, path: Path, topic: str, *, fsync: bool, shared: bool = False) -> Database:
        """Open the catalog to write; make it, with a new log id, if there is none.

        Args:
            path: the file.
            topic: whose catalog it is.
            fsync: make each commit durable before it returns.
            shared: the file lies where other hosts reach it too. A write-ahead log needs memory that only processes
                of one host share (https://sqlite.org/wal.html), so there it is a rollback journal, which is cut to
                nothing, not removed, by a commit: with ``synchronous=FULL`` that is synced too.

        Raises:
            SpoolError: it is damaged, of an unknown format, or another topic's.
        """
        create_private(path)
        database = cls._connect(path)
        try:
            database._prepare_to_write(fsync=fsync, shared=shared)
            with database._transaction():
                database._force_earlier_commits()
                prepare_catalog(database, topic)
                database.epoch = int(database.value("SELECT epoch FROM meta"))
            if fsync:
                sync_directory(path.parent)
        except BaseException:
            database.close()
            raise
        return database

    @classmethod
    def open_to_read(cls, path: Path, topic: str) -> Database:
        """Open an existing catalog for queries only.

        Not with ``mode=ro``: after a crash the first to open the file must be able to recover its write-ahead log.
        """
        if not path.is_file():
            raise SpoolError(f"{path} does not exist", file=str(path), topic=topic)
        database = cls._connect(path)
        try:
            with database._mapped():
                database._connection.execute("PRAGMA query_only = ON")
            check_format(database, topic)
        except BaseException:
            database.close()
            raise
        return database

    @classmethod
    def _connect(cls, path: Path) -> Database:
        try:
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw",  # never a new, empty file where the catalog was removed
                uri=True,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise SpoolError(f"catalog {path}: {explain(error, path)}", file=str(path)) from error
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA cache_size = -16384")
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise SpoolError(f"catalog {path}: {explain(error, path)}", file=str(path)) from error
            raise
        return cls(path, connection)

    def _prepare_to_write(self, *, fsync: bool, shared: bool) -> None:
        self._fsync, self._shared = fsync, shared
        self._file = self._identity()
        with self._mapped():
            self._connection.execute(f"PRAGMA journal_mode = {'TRUNCATE' if shared else 'WAL'}")
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
            self._connection.execute(f"PRAGMA journal_size_limit = {Reserve.BYTES}")
            self._connection.execute("PRAGMA wal_autocheckpoint = 500")  # 2 MiB, see files.Reserve

    def reopen(self, topic: str, log_id: str) -> None:
        """Open the file again after a commit of unknown outcome, by the same writer.

        Afterwards that commit is in the catalog, durably, or it never will be. Nothing is written unless the epoch is
        still ours, and all of it under the write lock: as soon as the commit has failed, another coordinator may take
        the log over and seal.

        Raises:
            Fenced: the catalog's epoch is not ours any more; no file was touched.
            SpoolError: the disk still fails, or the file is another one. It may be tried again.
        """
        self._check_identity()
        fresh = self._connect(self.path)
        try:
            fresh._prepare_to_write(fsync=self._fsync, shared=self._shared)
            check_format(fresh, topic)
            stored = fresh.value("SELECT log_id FROM meta")
            if stored != log_id:
                raise SpoolError(
                    f"catalog {self.path} is of log {stored}, ours is {log_id}", file=str(self.path), log=stored
                )
            fresh.epoch = self.epoch
            with fresh.write():
                fresh._force_earlier_commits()
                # The first frame of this commit overwrites what an unfinished one left after the last frame.
                fresh.execute("UPDATE meta SET uptime = uptime")
        except BaseException as error:
            fresh.close()
            self._broken = str(error)
            raise
        # Not before: the last connection to close brings the write-ahead log into the catalog and removes it, and the
        # next one to open makes the log's index from all frames in the file, those of the failed commit included.
        self.close()
        self._connection, self._file, self._broken = fresh._connection, fresh._file, None
        self._opened += 1

    def _force_earlier_commits(self) -> None:
        """Make durable what earlier commits, of this process or one before, may have left in the page cache.

        Inside a transaction, before its first change: after a failed fsync the kernel may take pages for clean that
        never reached the disk, and a second fsync alone succeeds without writing them.

        Write-ahead log: its bytes are written over themselves. While we hold the write lock no process appends to the
        log, starts it from the front or cuts it, and readers and checkpoints see the same bytes at every moment. Frames
        of a failed commit lie after the last frame of the index and do not count, unless the index was lost and made
        from the file by the first to open it: then that commit is in the catalog, and durable from here on.

        Rollback journal: when ``BEGIN IMMEDIATE`` returns, the journal is empty or gone. One of an unfinished commit
        has been rolled back by the next process that took a read lock, us or another, and the catalog forced. That was
        safe although the journal may never have reached the disk: SQLite changes the catalog only after the journal's
        fsync succeeded, so then there was nothing to roll back. Left to force is the cut of the journal, by a commit
        whose very last fsync failed: an old header on the disk must not meet records of the next transaction.

        To open and close these files drops no lock: SQLite's are on the catalog and on the ``-shm`` file.

        Raises:
            SpoolError: the disk still fails.
        """
        if self._fsync:
            rewrite_file(self._log_file())

    def _log_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}-{'journal' if self._shared else 'wal'}")

    def make_room(self) -> bool:
        """Bring the write-ahead log into the catalog and give its bytes back to the disk; False if readers are at it.

        SQLite starts the log from the front only when a commit finds no reader in it, which overlapping reads prevent
        for ever. Here writers wait, at most ``_CHECKPOINT_SECONDS``, until the reads of now are over; those that begin
        meanwhile find all in the catalog itself.
        """
        if self._shared:
            return True
        with self._mapped():
            self._connection.execute(f"PRAGMA busy_timeout = {int(_CHECKPOINT_SECONDS * 1000)}")
            try:
                row = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")
        return not row[0]

    def log_bytes(self) -> int:
        """Bytes of the write-ahead log's file, or of the rollback journal's."""
        return size_of(self._log_file())

    def file_bytes(self) -> int:
        """Bytes of the catalog's files."""
        return size_of(self.path) + self.log_bytes()

    def close(self) -> None:
        """Close the connection; idempotent, never raises."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def one(self, query: str, *values: Any) -> sqlite3.Row | None:
        """Return the first row, or None."""
        if self._known is not None and (known := self._known.get(("one", query, values))) is not None:
            return known[0] if known else None
        try:  # not by _mapped(), which costs half as much as such a query: they are the most frequent ones
            row: sqlite3.Row | None = self._connection.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise self._error(error) from error
        if self._known is not None:
            self._known["one", query, values] = [] if row is None else [row]
        return row

    def all(self, query: str, *values: Any) -> Sequence[sqlite3.Row]:
        """Return all rows; the query bounds them."""
        if self._known is not None and (known := self._known.get(("all", query, values))) is not None:
            return known
        with self._mapped():
            rows = self._connection.execute(query, values).fetchall()
        if self._known is not None:
            self._known["all", query, values] = rows
        return rows

    def value(self, query: str, *values: Any) -> Any:
        """Return the first column of the first row; None without a row."""
        row = self.one(query, *values)
        return None if row is None else row[0]

    def execute(self, query: str, *values: Any) -> int:
        """Run a change inside :meth:`write`; return the number of rows it touched."""
        with self._mapped():
            return self._connection.execute(query, values).rowcount

    def execute_many(self, query: str, rows: list[tuple[Any, ...]]) -> None:
        """Run a change for each of ``rows``, inside :meth:`write`."""
        with self._mapped():
            self._connection.executemany(query, rows)

    @property
    def changes(self) -> tuple[int, int]:
        """A mark of what this object has changed; it differs after each change of ours, and asks no disk."""
        return self._opened, self._connection.total_changes

    def version(self) -> tuple[int, ...]:
        """Return a mark of the catalog's state: it differs after each change, of another process too."""
        return *self.changes, int(self.value("PRAGMA data_version"))

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """Let the queries inside see one state of the catalog."""
        with self._mapped():
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._rollback()

    @contextlib.contextmanager
    def read_again(self) -> Iterator[None]:
        """As :meth:`read`, for the same queries at each call: their rows are kept while no process changes the catalog.

        What is asked often costs little then: above all, no thread waits for the interpreter after each query.
        """
        with self.read():
            version = self.version()  # the first query of the transaction, so it is that of all others
            if version != self._kept_version or len(self._kept) > _KEPT_QUERIES:
                self._kept, self._kept_version = {}, version
            self._known = self._kept
            try:
                yield
            finally:
                self._known = None

    def check_epoch(self) -> None:
        """Check that the catalog belongs to our epoch.

        Raises:
            Fenced: another publisher has taken the log over.
        """
        stored = self.value("SELECT epoch FROM meta")
        if stored != self.epoch:
            raise Fenced(
                f"catalog {self.path} belongs to epoch {stored}, ours is {self.epoch}",
                file=str(self.path),
                epoch=self.epoch,
                newest=stored,
            )

    @contextlib.contextmanager
    def write(self) -> Iterator[None]:
        """Commit the changes inside as one, durable when it returns; on any error none of them.

        Raises:
            Fenced: the catalog's epoch is not ours.
            SpoolFull: the disk is full; the log goes on when there is room.
            SpoolError: anything else. If the outcome of the commit is unknown (an fsync failed), all later writes
                are refused: only opening the catalog again tells what is in it.
        """
        with self._transaction():
            # This line is what fences a former publisher, whatever it does: every change to a log goes through here,
            # but for those of a take-over, and the check holds until the commit because the transaction has the lock.
            self.check_epoch()
            yield

    @contextlib.contextmanager
    def take_over(self) -> Iterator[None]:
        """As :meth:`write`, of whatever epoch."""
        with self._transaction():
            yield

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._broken is not None:
            raise SpoolError(
                f"catalog {self.path} must be opened again after: {self._broken}", file=str(self.path), reopen=True
            )
        self._check_identity()
        with self._mapped():
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._rollback()
            raise
        try:
            self._commit()
        except sqlite3.Error as error:
            self._rollback()
            if error.sqlite_errorcode not in _NOT_COMMITTED and error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                self._broken = str(error)
            raise self._error(error) from error

    def _check_identity(self) -> None:
        if self._file is not None and self._identity() != self._file:
            raise SpoolError(
                f"catalog {self.path} was removed or replaced while it was in use; nothing is sealed any more. Bring "
                "the spool back, or start the publisher again for a new log",
                file=str(self.path),
            )

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise spool_error("cannot look at", self.path, error) from error
        return found.st_dev, found.st_ino

    def _commit(self) -> None:
        self._connection.execute("COMMIT")

    def _rollback(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                self._broken = str(error)
                log.warning("catalog %s: roll back failed: %s", self.path, error)

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: sqlite3.Error) -> SpoolError:
        code = getattr(error, "sqlite_errorcode", None)
        kind = SpoolFull if code == sqlite3.SQLITE_FULL or self._is_full(code) else SpoolError
        said = f"catalog {self.path}: {explain(error, self.path)}"
        return kind(said, file=str(self.path), sqlite=code, reopen=self._broken is not None)

    def _is_full(self, code: int | None) -> bool:
        """Tell whether an I/O error is one of a full disk: SQLite says so of writes only, not of what it maps."""
        try:
            return code is not None and code & 0xFF == sqlite3.SQLITE_IOERR and free_bytes(self.path.parent) < _LITTLE
        except SpoolError:
            return False
