"""Fixtures of the tests of change data capture: a PostgreSQL whose log can be decoded, and nothing left running."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.bus.conftest import nothing_left  # noqa: F401 - a fixture
from tests.bus.kit import MARK
from tests.cdc.capturing import failures
from tests.databases.postgres import Postgres, missing


@pytest.fixture(scope="session")
def decoded() -> Iterator[Postgres]:
    """A PostgreSQL with ``wal_level=logical``; tests take schemas of their own."""
    if (what := missing()) is not None:
        pytest.skip(f"a test with a real PostgreSQL needs {what}")
    settings = {"max_replication_slots": "20", "max_wal_senders": "20", "deadlock_timeout": "20ms"}
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.delenv(MARK, raising=False)  # it outlives the module in which it is started
        server = stack.enter_context(Postgres(wal_level="logical", **settings))
        patch.undo()
        yield server


@pytest.fixture(autouse=True)
def _no_failures() -> None:
    """What captures of the test before have ended with says nothing of this one."""
    failures.clear()


@pytest.fixture
def schema(decoded: Postgres) -> Iterator[str]:
    """A schema of one's own; slots and publications with its name are gone at the end."""
    with decoded.schema() as name:
        yield name
        for (slot,) in decoded.query("SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE %s", f"%{name}%"):
            decoded.query(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s "
                "AND active_pid IS NOT NULL",
                slot,
            )
            decoded.query("SELECT pg_drop_replication_slot(%s)", slot)
        for (made,) in decoded.query("SELECT pubname FROM pg_publication WHERE pubname LIKE %s", f"%{name}%"):
            decoded.query(f'DROP PUBLICATION "{made}"')
