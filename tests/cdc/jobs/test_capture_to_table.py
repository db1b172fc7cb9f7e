"""A table to another one: a capture, and a Spark job that writes its topic by key, each killed in the middle."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psycopg
import pytest

from tests.cdc.capturing import rows_of
from tests.cdc.jobs.shop import CAPTURE, changing, make_orders, shop
from tests.databases.postgres import SUPERUSER, Postgres
from tests.pipelines.running import Runner

ROWS = 5_000


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_copy_of_a_table_is_exact(tmp_path: Path, home: Path, decoded: Postgres, schema: str) -> None:
    """The capture runs without a JVM, and the job that reads its topic with one."""
    table = make_orders(decoded, schema, ROWS)
    copy = {
        "source": {"type": "jobpipe", "subscribe": "orders"},
        "transform": [{"projection": "id, amount, note, __op AS op, coalesce(__lsn, 0) AS lsn"}],
        "sink": {
            "type": "jdbc-upsert",
            "url": decoded.url,
            "user": SUPERUSER,
            "password": "env:CDC_TEST_PASSWORD",
            "table": f"{schema}.copied",
            "keys": ["id"],
            "columns": ["id", "amount", "note"],
            "order-by": "lsn",
            "delete-when": "op = 'd'",
            "create": True,
        },
    }
    options = {"format": "flat", "chunk-size": 100, "batch-rows": 200, "tables": "orders"}
    file = shop(tmp_path, decoded, schema, {"copy": copy}, **options)
    with Runner(tmp_path, home, file) as runner:
        runner.start()
        with changing(decoded, table):
            for number, victim in enumerate([CAPTURE, "copy", CAPTURE], 1):
                least = number * ROWS // 10  # the table shrinks to about the half
                runner.until(lambda least=least: count(decoded, schema) >= least, f"{least} rows", 120.0)
                attempt = runner.runners()[victim]
                attempt.send_signal(signal.SIGKILL)
                runner.until(lambda name=victim, pid=attempt.pid: pid_of(runner, name) not in (None, pid), "the next")
        expected = rows_of(decoded, table, "id")
        runner.until(lambda: rows_of(decoded, f"{schema}.copied", "id") == expected, "the rows of the table", 120.0)
        lines = runner.output.splitlines()
        for job, attempts in ((CAPTURE, 3), ("copy", 2)):
            assert any(f"job {job}: RUNNING" in line and f"attempt {attempts}" in line for line in lines), runner.output
        runner.signal(signal.SIGINT)
        assert runner.wait(90.0) == 130, runner.told


def count(server: Postgres, schema: str) -> int:
    with contextlib.suppress(psycopg.errors.UndefinedTable):
        return int(server.query(f"SELECT count(*) FROM {schema}.copied")[0][0])
    return 0


def pid_of(runner: Runner, job: str) -> int | None:
    found = runner.runners().get(job)
    return None if found is None else found.pid
