"""A pipeline with a capture of the tests' database, and a table that changes."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.databases.postgres import PASSWORD, SUPERUSER, Postgres
from tests.pipelines.running import write_pipeline

os.environ["CDC_TEST_PASSWORD"] = PASSWORD
CAPTURE = "changes"


def capture(server: Postgres, schema: str, tables: str = ".*", **options: object) -> dict[str, object]:
    """Return a job that captures tables of a schema, each to the topic of its name."""
    source = {
        "type": "postgres-cdc",
        "hostname": "127.0.0.1",
        "port": server.port,
        "database-name": "postgres",
        "username": SUPERUSER,
        "password": "env:CDC_TEST_PASSWORD",
        "tables": [f"{schema}\\.{tables}"],
        "slot-name": f"jobpipe_{schema}",
        "heartbeat-interval": "500ms",
        **options,
    }
    return {"source": source, "route": [{"source-table": f"{schema}\\.(.*)", "sink-table": "$1"}]}


def shop(folder: Path, server: Postgres, schema: str, jobs: Mapping[str, object] | None = None, **options: Any) -> Path:
    """Write the file of a pipeline with a capture, and other jobs."""
    return write_pipeline(folder, {CAPTURE: capture(server, schema, **options), **(jobs or {})})


def make_orders(server: Postgres, schema: str, rows: int) -> str:
    """Make table orders with rows; return its name."""
    table = f"{schema}.orders"
    server.query(f"CREATE TABLE {table} (id bigint PRIMARY KEY, amount int NOT NULL, note text)")
    server.query(f"INSERT INTO {table} SELECT n, n % 7, 'note ' || n FROM generate_series(1, {rows}) n")
    return table


@contextmanager
def changing(server: Postgres, table: str) -> Iterator[None]:
    """Change a table in the background until the end of the block; keys are taken out, and come again."""
    stop, errors = threading.Event(), list[BaseException]()
    most = f"SELECT max(id) FROM {table}"
    delete = f"DELETE FROM {table} WHERE id = %s"
    put = f"INSERT INTO {table} VALUES (%s, 1, 'new') ON CONFLICT (id) DO UPDATE SET amount = {table}.amount + 1"

    def change() -> None:
        chance = random.Random(7)
        try:
            with server.connect() as connection:
                (highest,) = connection.execute(most).fetchone() or (0,)
                while not stop.wait(0.002):
                    connection.execute(put, (chance.randrange(1, highest + 500),))
                    connection.execute(delete, (chance.randrange(1, highest + 500),))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30.0)
    assert not errors, errors
