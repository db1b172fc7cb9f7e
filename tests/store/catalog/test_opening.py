"""A disk that fails while a catalog is opened: an error of ours, and no file is left open."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from jobpipe.errors import SpoolError
from jobpipe.store.catalog import catalog_file as module
from tests.store.build import open_log


def test_the_look_at_a_catalog_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T7: found by the explorer of failing calls; it came out as an OSError."""
    open_log(tmp_path).close()

    def fail(self: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "is_symlink", fail)
    with pytest.raises(SpoolError, match="Input/output error"):
        open_log(tmp_path)


def test_the_first_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T7: the connection stayed open as long as the error was kept."""
    open_log(tmp_path).close()
    closed: list[sqlite3.Connection] = []

    class Failing(sqlite3.Connection):
        def execute(self, *what: Any) -> Any:
            raise sqlite3.OperationalError("disk I/O error")

        def close(self) -> None:
            closed.append(self)
            super().close()

    connect = sqlite3.connect
    monkeypatch.setattr(module.sqlite3, "connect", lambda *args, **how: connect(*args, **how, factory=Failing))
    with pytest.raises(SpoolError, match="disk I/O error"):
        open_log(tmp_path)
    assert len(closed) == 1
