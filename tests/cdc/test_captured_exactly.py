"""The copy of a table equals the table, row by row, whatever happens while it is read and followed."""

from __future__ import annotations

import contextlib
import random
import signal
import time

import psycopg
import pytest

from jobpipe.config import Config
from tests.bus.kit import PATIENCE, kill, until
from tests.cdc.capture_process import CaptureProcess, coordinators
from tests.cdc.capturing import Copy, Follower, options, rows_of, running
from tests.cdc.workload import COLUMNS, Workload
from tests.databases.postgres import PASSWORD, SUPERUSER, Postgres

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = 30
STREAMS = "SELECT slot_name FROM pg_replication_slots WHERE active"


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_read_and_followed_while_writers_write(decoded: Postgres, schema: str, config: Config, identity: str) -> None:
    """Chunks of 50 rows among three writers, and three captures one after the other."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    table = f"{schema}.t"
    decoded.query(f"CREATE TABLE {table} ({COLUMNS})")
    decoded.query(f"ALTER TABLE {table} REPLICA IDENTITY {identity}")
    decoded.query(f"INSERT INTO {table} (id, n, long) SELECT i, i, repeat('x', 5000) FROM generate_series(1, 2000) i")
    workload, chance = Workload(decoded, table, seed), random.Random(seed)
    copy, follower = Copy("id"), None
    try:
        for life in range(3):
            with running(options(decoded, schema, ["t"], chunk_size=50), config) as capture:
                if follower is None:
                    follower = Follower("t", copy, config)
                rows = sum(copy.seen.values())
                follower.until(lambda rows=rows: sum(copy.seen.values()) > rows + 1500, "rows")
                for _ in range(3):
                    low, high = sorted(chance.sample(range(2000), 2))
                    capture.read_again(table, [str(low)], chance.choice([[str(high)], None]))
                if life == 2:
                    follower.until(lambda: not capture.status().tables, "the end of reading")
                    before = copy.again
                    follower.until(lambda before=before: copy.again > before, "rows that were read again")
                    workload.stop()
                    want = rows_of(decoded, table, "id")
                    follower.until(lambda want=want: copy.rows == want, "the table")
    finally:
        workload.stop()
        if follower is not None:
            follower.close()
    print(workload.transactions, copy.seen)
    assert copy.again > 0
    assert min(copy.seen.get(each, 0) for each in "rcud") > 0


def started(server: Postgres, schema: str, settings: dict[str, str]) -> CaptureProcess:
    """Return a process of a capture of a schema's table t."""
    return CaptureProcess(
        *("postgres", settings, PASSWORD),
        name=f"c{schema}",
        port=server.port,
        database="postgres",
        username=SUPERUSER,
        tables=[f"{schema}.t"],
        route={f"{schema}.(.*)": "$1"},
        chunk_size=40,
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("killed", ["capture", "coordinator", "database"])
def test_killed_again_and_again(settings_of_test: dict[str, str], config: Config, killed: str) -> None:
    """``kill -9`` thirty times at random moments, also while the table is read, which begins again now and then."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance, schema = random.Random(seed), f"s{seed}"
    with Postgres(wal_level="logical", deadlock_timeout="20ms") as server:
        server.query(f"CREATE SCHEMA {schema}")
        server.query(f"CREATE TABLE {schema}.t ({COLUMNS})")
        server.query(f"INSERT INTO {schema}.t (id, n) SELECT i, i FROM generate_series(1, 2000) i")
        workload = Workload(server, f"{schema}.t", seed)
        copy, kills = Copy("id"), 0
        life: CaptureProcess | None = None
        follower: Follower | None = None
        try:
            while kills < KILLS:
                if life is None:
                    life = started(server, schema, settings_of_test)
                if follower is None:
                    follower = Follower("t", copy, config)
                assert life.alive()
                if killed == "database":  # else the next kill may come before it is connected again
                    until(lambda: server.query(STREAMS), PATIENCE, "the stream")
                time.sleep(chance.random() * 1.2)  # nothing is waited for: the moment is by chance
                if chance.random() < 0.2:
                    with contextlib.suppress(psycopg.Error):
                        server.query(f"TRUNCATE {schema}.t")
                kills += 1
                if killed == "capture":
                    life.kill()
                    life = None
                elif killed == "coordinator":
                    for pid in coordinators():
                        kill(pid)
                else:
                    server.kill()
                    server.start_again()
            life = life or started(server, schema, settings_of_test)
            workload.stop()
            want = rows_of(server, f"{schema}.t", "id")
            follower.until(lambda: copy.rows == want, "the table", 120)
            assert life.alive()
        finally:
            if life is not None:
                life.kill()
            workload.stop()
            if follower is not None:
                follower.close()
            for pid in coordinators():
                kill(pid, signal.SIGTERM)
        print(workload.transactions, copy.seen)
