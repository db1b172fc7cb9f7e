"""A capture of MariaDB and MySQL as a job of a pipeline: by ``jobpipe cdc``, killed and started again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cdc.capturing import Copy, Follower
from tests.cdc.jobs.cdc_program import CdcProgram
from tests.cdc.mysql.mysql_capturing import rows_of
from tests.databases.mysql_server import PASSWORD, SUPERUSER, MySqlServer
from tests.docs.pages import block
from tests.pipelines.running import write_pipeline

pytestmark = [pytest.mark.processes, pytest.mark.slow]
os.environ["CDC_MYSQL_PASSWORD"] = PASSWORD
ROWS = 10_000
READER = {"source": {"type": "jobpipe", "subscribe": "orders"}, "sink": {"type": "noop"}}


@pytest.fixture
def program(tmp_path: Path, home: Path) -> Iterator[CdcProgram]:
    with CdcProgram(tmp_path, home) as program:
        yield program


def capture(server: MySqlServer, database: str, **options: object) -> dict[str, object]:
    """Return a job that captures the tables of a database, each to the topic of its name."""
    source = {
        "type": "mysql-cdc",
        "hostname": "127.0.0.1",
        "port": server.port,
        "username": SUPERUSER,
        "password": "env:CDC_MYSQL_PASSWORD",
        "tables": [rf"{database}\..*"],
        "heartbeat-interval": "500ms",
        **options,
    }
    return {"source": source, "route": [{"source-table": rf"{database}\.(.*)", "sink-table": "$1"}]}


def make_orders(server: MySqlServer, database: str, rows: int) -> None:
    server.query("CREATE TABLE orders (id bigint PRIMARY KEY, amount int NOT NULL, note text)", database)
    for first in range(1, rows + 1, 1000):
        values = ", ".join(f"({key}, {key % 7}, 'note {key}')" for key in range(first, min(first + 1000, rows + 1)))
        server.query(f"INSERT INTO orders VALUES {values}", database)


@pytest.mark.timeout(240)
def test_a_capture_is_exact(program: CdcProgram, tmp_path: Path, logged: MySqlServer, database: str) -> None:
    """Killed and stopped in the middle; what its server keeps is listed."""
    make_orders(logged, database, ROWS)
    jobs = {"changes": capture(logged, database, **{"chunk-size": 500}), "read": READER}
    file, copy = write_pipeline(tmp_path, jobs), Copy("id")
    name = yaml.safe_load(file.read_text())["pipeline"]["name"]
    program.start(str(file))
    follower = Follower(f"{name}.orders", copy, program.config, f"{name}.read")
    try:
        for number, how in enumerate([signal.SIGKILL, signal.SIGTERM, signal.SIGKILL], 1):
            program.until(lambda number=number: program.errors.count("has begun") == number, "its beginning")
            least = number * ROWS // 10
            follower.until(lambda least=least: sum(copy.seen.values()) >= least, f"{least} rows")
            logged.query(f"UPDATE orders SET amount = amount + 1 WHERE id % 5 = {number}", database)
            assert program.signal(how) == {signal.SIGKILL: -9}.get(how, 128 + how), program.errors
            logged.query(f"DELETE FROM orders WHERE id % 11 = {number}", database)
            program.start(str(file))
        expected = rows_of(logged, database, "orders", "id")
        follower.until(lambda: copy.rows == expected, "the rows of the table", 120.0)
        program.until(lambda: "following changes" in program.errors, "the line of one that follows changes")
        code, out, _ = program.call("list", str(file), "--json")
        (line,) = json.loads(out)
        assert (code, line["plugin"], line["capture"], line["active"]) == (0, "binlog", f"{name}.changes", None)
        assert line["retained_bytes"] > 0
        assert line["wal_status"].startswith("kept ")
    finally:
        follower.close()
    assert program.signal(signal.SIGTERM) == 143
    assert "Traceback" not in program.errors
    for command in (["drop", str(file), "--yes"], ["read-again", str(file), f"{database}.orders"]):
        code, _, told = program.call(*command)
        assert (code, "captures no PostgreSQL" in told) == (2, True), told


@pytest.mark.timeout(120)
def test_what_is_missing_is_told_at_once(
    program: CdcProgram, tmp_path: Path, logged: MySqlServer, database: str
) -> None:
    logged.query("CREATE TABLE good (id int PRIMARY KEY)", database)
    logged.query("CREATE TABLE bad (id int)", database)
    logged.query("CREATE TABLE old (id int PRIMARY KEY) ENGINE = MyISAM", database)
    program.start(str(write_pipeline(tmp_path, {"changes": capture(logged, database)})))
    assert program.wait() == 2, program.errors
    assert "2 things to mend" in program.errors
    assert f"table {database}.bad has no primary key: ALTER TABLE `{database}`.`bad` ADD PRIMARY" in program.errors
    assert f"ALTER TABLE `{database}`.`old` ENGINE = InnoDB;" in program.errors


@pytest.mark.timeout(120)
def test_the_file_of_the_page(program: CdcProgram, tmp_path: Path, logged: MySqlServer) -> None:
    """With the test's address, and without the job that needs Spark."""
    content = yaml.safe_load(block("docs/cdc-mysql.md", "file"))
    source = content["jobs"]["changes"]["source"]
    source |= {"hostname": "127.0.0.1", "port": logged.port, "username": SUPERUSER}
    source["password"] = "env:CDC_MYSQL_PASSWORD"
    file = tmp_path / "shop.yaml"
    file.write_text(yaml.safe_dump(content))
    logged.query("CREATE DATABASE shop")
    try:
        for table in ("orders", "customers"):
            logged.query(f"CREATE TABLE {table} (id int PRIMARY KEY)", "shop")
        program.start(str(file))
        program.until(lambda: "has begun" in program.errors, "its beginning")
        assert program.signal(signal.SIGINT) == 130
    finally:
        logged.query("DROP DATABASE shop")
