"""Captures in the tests' process, and copies of tables that are made from what they publish."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

import jobpipe
import jobpipe.cdc
from jobpipe.cdc.capture_runner import CaptureRunner
from jobpipe.cdc.postgresql.postgres_capture import PostgresCapture
from jobpipe.cdc.postgresql.postgres_options import PostgresOptions
from jobpipe.config import Config
from jobpipe.config.types.secrets import Secret
from jobpipe.pipelines.file.spec import RouteSpec
from tests.databases.postgres import PASSWORD, SUPERUSER, Postgres

Running = TypeVar("Running", bound=CaptureRunner)
PATIENCE = 60.0
log = logging.getLogger(__name__)
failures: list[BaseException] = []
"""What captures of this test have ended with."""


def routes(given: dict[str, str]) -> tuple[RouteSpec, ...]:
    """Return routes: topics by regular expressions of tables."""
    return tuple(RouteSpec(**{"source-table": table, "sink-table": topic}) for table, topic in given.items())


def options(server: Postgres, schema: str, tables: Iterable[str], **given: Any) -> PostgresOptions:
    """Return the options of a capture of tables of a schema, as the superuser."""
    known: dict[str, Any] = {
        "name": f"c{schema}",
        "hostname": "127.0.0.1",
        "port": server.port,
        "database": "postgres",
        "username": SUPERUSER,
        "password": Secret("env:CDC_TEST_PASSWORD"),
        "tables": tuple(f"{schema}.{table}" for table in tables),
        "route": routes({rf"{schema}\.(.*)": "$1"}),
        "heartbeat": 0.5,
        **given,
    }
    os.environ["CDC_TEST_PASSWORD"] = PASSWORD
    return PostgresOptions(**known)


@contextmanager
def running(given: PostgresOptions, config: Config) -> Iterator[PostgresCapture]:
    """Run a capture of PostgreSQL; see :func:`running_capture`."""
    with running_capture(PostgresCapture(given, config)) as capture:
        yield capture


@contextmanager
def running_capture(capture: Running) -> Iterator[Running]:
    """Run a capture in a thread; it has begun to stream on entry. Its error is raised on leaving."""
    begun, ended = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            capture.run(begun.set)
        except BaseException as error:
            log.exception("the capture has ended")
            errors.append(error)
            failures.append(error)
        finally:
            ended.set()
            begun.set()

    failures.clear()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert begun.wait(PATIENCE)
        if errors:
            raise errors[0]
        yield capture
    finally:
        capture.stop()
        assert ended.wait(PATIENCE)
        capture.close()
        thread.join(PATIENCE)
    if errors:
        raise errors[0]


class Copy:
    """A table made from the rows of a topic, strictly: what cannot be of a table that is followed exactly raises.

    Attributes:
        rows: by key.
        seen: how many rows of each operation came.
        again: how many were read that were there.
    """

    def __init__(self, *key: str) -> None:
        self._key = key
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.seen: dict[str, int] = {}
        self._history: list[tuple[Any, ...]] = []
        self.again = 0
        self._removed: dict[tuple[Any, ...], dict[str, Any]] = {}

    def apply(self, change: dict[str, Any]) -> None:
        """Apply one row of an envelope; an error has the last ones of its key."""
        place = {name: value for name, value in change["source"].items() if name not in ("db", "schema", "table")}
        self._history.append((change["op"], *(self._key_of(row) for row in _rows(change)), place))
        try:
            self._apply(change)
        except (AssertionError, KeyError) as error:
            keys = {self._key_of(row) for row in _rows(change)}
            of_key = [each for each in self._history if each[0] == "t" or keys & set(each[1:-1])]
            raise AssertionError(f"{change['op']} of {keys}: {error!r}; {of_key[-12:]}") from error

    def _apply(self, change: dict[str, Any]) -> None:
        operation, before, after = change["op"], change["before"], change["after"]
        self.seen[operation] = self.seen.get(operation, 0) + 1
        if operation == "t":
            self.rows.clear()
        elif operation == "d":
            self._removed[self._key_of(before)] = self.rows.pop(self._key_of(before))
        else:
            key = self._key_of(after)
            there = key in self.rows
            if operation == "r" and there:  # read again
                assert self.rows[key] == after
                self.again += 1
                return
            assert there == (operation == "u"), f"{operation} of {key}, which is {'' if there else 'not '}there"
            old = self.rows.get(key) if operation == "u" else self._removed.get(self._key_of(before or after))
            for name in change["unchanged"] or ():
                assert after[name] is None
                assert old is not None
                after = {**after, name: old[name]}
            self.rows[key] = after

    def _key_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._key)


def _rows(change: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in (change["before"], change["after"]) if row is not None]


class Follower:
    """Reads a topic in a thread into a copy."""

    def __init__(self, topic: str, copy: Copy, config: Config, name: str = "copy") -> None:
        self.copy = copy
        self.error: BaseException | None = None
        self._subscription = jobpipe.subscribe(topic, name=name, starting="earliest", config=config)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for batch in self._subscription:
                with self._lock:
                    for row in batch.to_pylist():
                        self.copy.apply(row)
        except BaseException as error:
            self.error = error

    def until(self, found: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
        """Wait until something is true of the copy."""
        deadline = time.monotonic() + seconds
        while True:
            if self.error is not None or failures:
                raise self.error or failures[0]
            with self._lock:
                if found():
                    return
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
            time.sleep(0.01)

    def close(self) -> None:
        """End the subscription."""
        self._subscription.close()
        self._thread.join(PATIENCE)


def rows_of(server: Postgres, table: str, *key: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return a table's rows by key."""
    with server.connect() as connection:
        cursor = connection.execute(f"SELECT * FROM {table}")
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
    return {tuple(row[name] for name in key): row for row in rows}


def published(topic: str, count: int, config: Config) -> list[dict[str, Any]]:
    """Return the first rows of a topic."""
    rows: list[dict[str, Any]] = []
    with jobpipe.subscribe(topic, name=f"first-{time.monotonic_ns()}", starting="earliest", config=config) as batches:
        for batch in batches.batches(timeout=PATIENCE):
            rows += batch.to_pylist()
            if len(rows) >= count:
                return rows[:count]
    return rows


def settled(capture: CaptureRunner) -> bool:
    """Tell whether all tables are read, and all is published that the database has sent."""
    status = capture.status()
    return not status.tables and status.behind_bytes == 0


def in_thread(work: Callable[[], object]) -> threading.Event:
    """Do something in a thread; return what is set when it has ended."""
    ended = threading.Event()

    def run() -> None:
        try:
            work()
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True).start()
    return ended


@contextmanager
def page_program(
    program: str, function: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, password: str, **place: Any
) -> Iterator[None]:
    """Run the program of a page that captures a shop, as it stands there; it ends by ``stop``.

    Args:
        program: the block of the page.
        function: of :mod:`jobpipe.cdc`, by which it makes the capture.
        settings: of jobpipe.
        place: options in place of those of the page: where the test's own server is.
    """
    for key, value in settings.items():
        monkeypatch.setenv(f"JOBPIPE__{key.removeprefix('jobpipe.').replace('.', '__').upper()}", value)
    monkeypatch.setenv("SHOP_PASSWORD", password)
    made: list[CaptureRunner] = []
    real = getattr(jobpipe.cdc, function)

    def here(**given: Any) -> CaptureRunner:
        made.append(real(**{**given, "hostname": "127.0.0.1", **place}))
        return made[0]

    monkeypatch.setattr(jobpipe.cdc, function, here)
    code = compile(program, "the page's program", "exec")
    thread = threading.Thread(target=exec, args=(code, {}), daemon=True)
    thread.start()
    try:
        yield
    finally:
        made[0].stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()
