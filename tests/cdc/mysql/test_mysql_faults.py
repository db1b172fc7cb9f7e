"""``kill -9`` of the capture, of its coordinator and of the server, among writers: the copy equals the table."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable

import pymysql
import pytest

from jobpipe.config import Config
from tests.bus.kit import PATIENCE, kill, until
from tests.cdc.capture_process import CaptureProcess, coordinators
from tests.cdc.capturing import Copy, Follower
from tests.cdc.mysql.conftest import server_of
from tests.cdc.mysql.mysql_capturing import rows_of
from tests.cdc.mysql.mysql_workload import KINDS, Workload, captured_form, create
from tests.databases.mysql_server import PASSWORD, SUPERUSER, MySqlServer

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("JOBPIPE_TEST_KILLS", "5"))
SAFE = {"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1"}
TABLES = ["whole", "pair"]
STREAMS = "SELECT 1 FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"


def started(
    server: MySqlServer, settings: dict[str, str], *tables: str, batch_rows: int = 200, chunk_size: int = 20
) -> CaptureProcess:
    """Return a process of a capture of tables of database d."""
    return CaptureProcess(
        *("mysql", settings, PASSWORD),
        name="faults",
        port=server.port,
        username=SUPERUSER,
        tables=[f"d.{table}" for table in tables],
        route={"d.(.*)": "$1"},
        chunk_size=chunk_size,
        batch_rows=batch_rows,
    )


def own_server(product: str) -> MySqlServer:
    from tests.databases import mariadb, mysql

    if (what := (mariadb if product == "mariadb" else mysql).missing()) is not None:
        pytest.skip(f"a test with a real {product} needs {what}")
    return server_of(product, **SAFE)


def streams(server: MySqlServer) -> bool:
    """Tell whether the server sends its log."""
    try:
        return bool(server.query(STREAMS))
    except pymysql.OperationalError as error:
        if error.args[0] != 3854:  # MySQL cannot show a statement that is in the list
            raise
        return False


@pytest.mark.parametrize("killed", ["capture", "coordinator", "database"])
@pytest.mark.parametrize("product", ["mariadb", "mysql"])
def test_killed_again_and_again(settings_of_test: dict[str, str], config: Config, product: str, killed: str) -> None:
    """At random moments, also while tables are read; so often as ``JOBPIPE_TEST_KILLS`` says."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with own_server(product) as server:
        server.query("CREATE DATABASE d CHARACTER SET utf8mb4")
        create(server, "d", TABLES, seed)
        workload = Workload(server, "d", TABLES, seed)
        copies = {table: Copy(*KINDS[table].names) for table in TABLES}
        followers: dict[str, Follower] = {}
        life: CaptureProcess | None = None
        try:
            for kills in range(KILLS):
                if kills == KILLS // 2 and life is not None:
                    life.kill()
                    life = None
                chunk_size = 20 if kills < KILLS // 2 else 500  # so that later kills are after the reading
                life = life or started(server, settings_of_test, *TABLES, chunk_size=chunk_size)
                for table in TABLES:
                    followers[table] = followers.get(table) or Follower(table, copies[table], config)
                assert life.alive()
                if killed == "database":  # else the next kill may come before it is connected again
                    until(lambda: streams(server), PATIENCE, "the stream")
                if chance.random() < 0.7:
                    seen = sum(sum(copy.seen.values()) for copy in copies.values())
                    followers["whole"].until(
                        lambda seen=seen: sum(sum(copy.seen.values()) for copy in copies.values()) > seen, "rows"
                    )
                time.sleep(chance.random() * 1.2)  # nothing is waited for: the moment is by chance
                if killed == "capture":
                    life.kill()
                    life = None
                elif killed == "coordinator":
                    for pid in coordinators():
                        kill(pid)
                else:
                    server.kill()
                    server.start_again()
            life = life or started(server, settings_of_test, *TABLES)
            workload.stop()
            for table in TABLES:
                rows = rows_of(server, "d", table, *KINDS[table].names)
                want = {key: captured_form(row) for key, row in rows.items()}
                followers[table].until(lambda want=want, table=table: copies[table].rows == want, f"table {table}", 120)
            assert life.alive()
        finally:
            _end(life, workload.stop, followers)
        print(workload.transactions, [copy.seen for copy in copies.values()])


def _end(life: CaptureProcess | None, stop: Callable[[], None], followers: dict[str, Follower]) -> None:
    if life is not None:
        life.kill()
    try:
        stop()
    finally:
        for follower in followers.values():
            follower.close()
        for pid in coordinators():
            kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("product", ["mariadb", "mysql"])
def test_killed_within_a_large_transaction(settings_of_test: dict[str, str], config: Config, product: str) -> None:
    """Of 300,000 rows, while the rows of another table are read; each row comes once."""
    chance = random.Random(7)
    with own_server(product) as server:
        server.query("CREATE DATABASE d CHARACTER SET utf8mb4")
        server.query("CREATE TABLE d.t (id int PRIMARY KEY, n int)")
        server.query("CREATE TABLE d.digits (n int PRIMARY KEY)")
        server.query("INSERT INTO d.digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)")
        copy, life = Copy("id"), started(server, settings_of_test, "t", batch_rows=5000)
        follower = Follower("t", copy, config)
        try:
            server.query("INSERT INTO d.t VALUES (-1, 0)")
            follower.until(lambda: copy.rows, "the first row")
            places = " + ".join(f"{10**place} * d{place}.n" for place in range(6))
            tables = ", ".join(f"d.digits d{place}" for place in range(6))
            server.query(f"INSERT INTO d.t SELECT {places}, 1 FROM {tables} WHERE d5.n < 3")
            cut = 0
            for _ in range(6):
                have = len(copy.rows)
                with contextlib.suppress(AssertionError):
                    follower.until(lambda have=have: len(copy.rows) >= min(have + 20_000, 300_001), "a part", 60)
                time.sleep(chance.random() * 0.2)  # nothing is waited for: the moment is by chance
                life.kill()
                cut += 1 < len(copy.rows) < 300_001
                life = started(server, settings_of_test, "t", batch_rows=5000)
            assert cut
            server.query("DELETE FROM d.t WHERE id = -1")
            follower.until(lambda: len(copy.rows) == 300_000, "all rows", 120)
            assert copy.rows == rows_of(server, "d", "t", "id")
            assert copy.seen == {"c": 300_001, "d": 1} or copy.seen["r"] == 1
        finally:
            _end(life, lambda: None, {"t": follower})
