"""A commit of unknown outcome, and what another coordinator does at each step of opening the catalog again."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobpipe.errors import Fenced, SpoolError
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.catalog_reader import CatalogReader
from tests.store import crash
from tests.store.build import FIRST, TOPIC, open_log, read, seal
from tests.store.children import Child
from tests.store.no_fsync import without_fsync

pytestmark = pytest.mark.usefixtures("fork_server")

MOST_STEPS = 100


class Steps:
    """Counts the file operations and SQL statements of :meth:`TopicLog.reopen`, and acts right before some of them."""

    def __init__(self, patched: pytest.MonkeyPatch, acts: dict[int, Callable[[], None]]) -> None:
        self.names = ["none"]
        self._acts = acts
        for name in ("open", "pread", "pwrite", "fsync", "close", "stat"):
            patched.setattr(os, name, self._around(f"os.{name}", getattr(os, name)))
        patched.setattr(Database, "close", self._around("close", Database.close))
        connect = Database._connect.__func__  # type: ignore[attr-defined]

        def connecting(cls: type[Database], path: Path) -> Database:
            self.step("connect")
            database: Database = connect(cls, path)
            database._connection.set_trace_callback(self.step)
            return database

        patched.setattr(Database, "_connect", classmethod(connecting))

    def _around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.step(name)
            return real(*args, **kwargs)

        return call

    def step(self, name: str) -> None:
        self.names.append(name)
        self._acts.pop(len(self.names) - 1, lambda: None)()


@pytest.fixture(scope="module")
def successor(fork_server: None) -> Iterator[Child]:
    """A process that takes logs over."""
    child = Child(crash.succeed)
    yield child
    child.pipe.send(None)
    child.process.join(5.0)
    child.process.kill()  # a test that failed may have left it in the middle
    child.finish()


def broken(home: Path, outcome: str) -> TopicLog:
    """Return a log with two batches, whose seal of a third one ended with an error that leaves its outcome open."""
    log = open_log(home, fsync=True)
    for batch_id in range(2):
        seal(log, batch_id, [[5, 5], [5]], inline=batch_id % 2 == 1)

    def fail() -> None:
        with pytest.raises(SpoolError) as caught:
            seal(log, 2, [[5, 5], [5]])
        assert caught.value.fields["reopen"], caught.value

    if outcome == "fsync failed":
        without_fsync(fail)
    else:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Database, "_commit", committed_all_the_same)
            fail()
    return log


def committed_all_the_same(database: Database) -> None:
    database._connection.execute("COMMIT")
    error = sqlite3.OperationalError("injected")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC  # type: ignore[misc]
    raise error


def check(home: Path, batches: int, moment: str) -> None:
    """All batches are there, once, and whole; so is the catalog itself."""
    connection = sqlite3.connect(home / TOPIC / "catalog.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], moment
    connection.close()
    reader = CatalogReader.open(home / TOPIC, TOPIC)
    assert reader.batches.head().n == batches, moment
    for partition, rows in enumerate((10, 5)):
        whole = [(n, FIRST + n * 1_000_000 + row) for n in range(batches) for row in range(rows)]
        assert read(reader, reader.batches.tail(), reader.batches.head(), partition) == whole, moment
    reader.close()


@pytest.mark.parametrize("slowly", [False, True], ids=["in one step", "from one step to the next"])
@pytest.mark.parametrize("outcome", ["fsync failed", "committed"])
@pytest.mark.parametrize("placement", ["driver", "shared"])
def test_a_successor_at_each_step_keeps_what_it_sealed(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch, successor: Child, placement: str, outcome: str, slowly: bool
) -> None:
    """R1: the bytes of a log that was taken over meanwhile are not written back over the successor's."""
    monkeypatch.setattr("jobpipe.store.catalog.catalog_file._BUSY_SECONDS", 0.0)
    fenced_at, waited_at, said = [], [], [""]

    def begin() -> None:
        successor.pipe.send((home, slowly))
        said.append(successor.receive())

    def go_on() -> None:
        if said[-1] == "begun":
            successor.pipe.send(True)
            said.append(successor.receive())

    for at in range(1, MOST_STEPS):
        home, said = in_memory / str(at) / placement, [""]
        log = broken(home, outcome)
        reader = CatalogReader.open(home / TOPIC, TOPIC) if at % 2 else None
        acts = {at: begin, at + 1: go_on}
        with pytest.MonkeyPatch.context() as patched:
            steps = Steps(patched, acts)
            try:
                log.reopen()
            except Fenced:
                fenced_at.append(at)
                assert said[-1] == "sealed", steps.names
            except SpoolError as caught:
                if "locked" not in str(caught):
                    raise
        while acts:  # it did not come so far
            acts.pop(min(acts))()
        if said[-1] == "locked":
            waited_at.append(at)
            begin()
            go_on()
        moment = f"before step {at} of {steps.names}, the successor: {said}"
        assert said[-1] == "sealed", moment
        check(home, 6, moment)
        with pytest.raises(Fenced):
            log.reopen()
        with pytest.raises(Fenced):
            seal(log, 9)
        log._db.close()
        if reader is not None:
            assert reader.batches.head().n == 6, moment
            reader.close()
        if at >= len(steps.names):
            break
    assert 10 < at < MOST_STEPS - 1
    assert fenced_at
    assert waited_at  # inside of the transaction
