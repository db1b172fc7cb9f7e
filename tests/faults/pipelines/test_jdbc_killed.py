"""A Spark application that writes into a database, killed at random moments: each micro-batch is there, once."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pymysql
import pytest

from tests.databases import mysql_server
from tests.databases.mariadb import MariaDb
from tests.databases.postgres import PASSWORD, SUPERUSER, Postgres
from tests.faults.pipelines.jdbc_program import UpsertOrder, expected
from tests.faults.rig import chance, gone
from tests.faults.spark.spark_rig import ROOT, SPARK_PATIENCE, SparkProgram
from tests.harness.program import MARK, marked
from tests.spark.kit import until

pytestmark = [pytest.mark.spark]

VICTIMS = ("python", "java", "all")
KILLS = int(os.environ.get("JOBPIPE_KILLS", str(len(VICTIMS))))
KILLED_WITHIN = 1.0  # seconds after a micro-batch of that life; one takes a part of it


@dataclass(frozen=True)
class Store:
    """A database with table ``t``, whose triggers keep in table ``done`` what was done to it.

    Attributes:
        table: as the sink's option has it.
        ask: runs a statement, in the schema of the table, and returns its rows.
        at_rest: whether no connection of the application's is left.
    """

    url: str
    user: str | None
    table: str
    ask: Callable[[str], list[tuple[Any, ...]]]
    at_rest: Callable[[], bool]


TABLES = ("CREATE TABLE t (id int PRIMARY KEY, value bigint, text varchar(100))", "CREATE TABLE done (value bigint)")
NOTES = {"INSERT": "new.value", "UPDATE": "new.value", "DELETE": "-old.value"}


@pytest.fixture
def postgresql(postgres: Postgres) -> Iterator[Store]:
    """In a schema of PostgreSQL."""
    with postgres.schema() as schema:

        def ask(statement: str) -> list[tuple[Any, ...]]:
            with postgres.connect() as connection:
                connection.execute(f"SET search_path = {schema}")
                cursor = connection.execute(statement)
                return cursor.fetchall() if cursor.description else []

        for statement in TABLES:
            ask(statement)
        for what, value in NOTES.items():
            ask(
                f"CREATE FUNCTION note_{what}() RETURNS trigger LANGUAGE plpgsql AS "  # noqa: S608 - names of the test's
                f"'BEGIN INSERT INTO {schema}.done VALUES ({value}); RETURN NULL; END'"
            )
            ask(f"CREATE TRIGGER note_{what} AFTER {what} ON t FOR EACH ROW EXECUTE FUNCTION note_{what}()")
        yield Store(postgres.url, SUPERUSER, f"{schema}.t", ask, lambda: not postgres.sessions())


@pytest.fixture
def maria(mariadb: MariaDb) -> Iterator[Store]:
    """In a database of MariaDB."""
    with mariadb.database() as name:

        def ask(statement: str) -> list[tuple[Any, ...]]:
            return mariadb.query(statement, name)

        for statement in TABLES:
            ask(statement)
        for what, value in NOTES.items():
            ask(f"CREATE TRIGGER note_{what} AFTER {what} ON t FOR EACH ROW INSERT INTO done VALUES ({value})")  # noqa: S608 - names of the test's
        yield Store(mariadb.url(name), mysql_server.SUPERUSER, "t", ask, lambda: not mariadb.sessions())


@pytest.fixture
def sqlite(tmp_path: Path) -> Store:
    """In a file of SQLite."""
    file = tmp_path / "shop.db"

    def ask(statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(file, timeout=60)) as connection, connection:
            return connection.execute(statement).fetchall()

    for statement in TABLES:
        ask(statement)
    for what, value in NOTES.items():
        ask(f"CREATE TRIGGER note_{what} AFTER {what} ON t BEGIN INSERT INTO done VALUES ({value}); END")  # noqa: S608
    return Store(f"sqlite:{file}", None, "t", ask, lambda: True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("database", ["postgresql", "maria", "sqlite"])
def test_killed(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """kill -9 of Python, of Java, or of all; the next life begins while the rest of the last one may still work."""
    store: Store = request.getfixturevalue(database)
    random, mark = chance(), f"jdbc-{uuid.uuid4().hex[:12]}"
    secret = None
    if store.user is not None:
        secret = tmp_path / "password"
        secret.write_text(PASSWORD if database == "postgresql" else mysql_server.PASSWORD)
        secret.chmod(0o600)
    order = UpsertOrder(store.url, store.user, str(secret) if secret else None, store.table, str(tmp_path))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, MARK: mark, "PYTHONPATH": path}
    program = SparkProgram("tests.faults.pipelines.jdbc_program", lambda: order, tmp_path / "log", environ)

    def last() -> int:
        """Return the id of the last micro-batch; -1 is none."""
        try:
            found = store.ask("SELECT batch FROM jobpipe_ledger")
        except (psycopg.errors.UndefinedTable, pymysql.ProgrammingError, sqlite3.OperationalError):
            return -1  # no attempt has opened
        return next((row[0] for row in found if row[0] is not None), -1)

    def started() -> None:
        before = last()
        program.start()
        until(lambda: program.failure or last() > before, "a micro-batch of a new life", SPARK_PATIENCE)
        assert program.failure is None, program.failure

    try:
        left: list[str] = []
        for _ in range(KILLS):
            left = left or random.sample(VICTIMS, len(VICTIMS))
            started()
            time.sleep(random.uniform(0.0, KILLED_WITHIN))
            victim = left.pop()
            program.kill_some(victim)
            print(f"killed {victim} after batch {last()}")
            program.process.wait(SPARK_PATIENCE)
        started()
        assert program.terminate(SPARK_PATIENCE) == 128 + signal.SIGTERM, program.log_end()
        gone(marked(mark))
    finally:
        for process in marked(mark):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        gone(marked(mark))
    batches = 1 + max(
        int(entry.name) for entry in (tmp_path / "checkpoint" / "commits").iterdir() if entry.name.isdigit()
    )
    table, done = expected(batches)
    assert batches > KILLS
    assert store.ask("SELECT batch, fence FROM jobpipe_ledger") == [(batches - 1, KILLS + 1)]
    found = store.ask("SELECT id, value, text FROM t ORDER BY id")
    assert found == [(key, value, f"row {value}") for key, value in sorted(table.items())]
    assert [value for (value,) in store.ask("SELECT value FROM done ORDER BY value")] == done
    until(store.at_rest, "the end of all sessions")
