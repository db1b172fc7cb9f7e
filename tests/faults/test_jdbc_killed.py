"""A Spark application that writes into PostgreSQL, killed at random moments: each micro-batch is there, once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.jdbc_program import UpsertOrder, expected
from tests.faults.rig import chance, gone
from tests.faults.spark_rig import ROOT, SPARK_PATIENCE, SparkProgram
from tests.harness.program import MARK, marked
from tests.postgres import PASSWORD, SUPERUSER, Postgres
from tests.spark.kit import until

pytestmark = [pytest.mark.spark]

VICTIMS = ("python", "java", "all")
KILLS = int(os.environ.get("JOBPIPE_KILLS", str(len(VICTIMS))))
KILLED_WITHIN = 1.0  # seconds after a micro-batch of that life; one takes a part of it


@pytest.fixture
def schema(postgres: Postgres) -> Iterator[str]:
    """A schema with the table, and a trigger that keeps what was done to it."""
    with postgres.schema() as name:
        with postgres.connect() as connection:
            connection.execute(f"SET search_path = {name}")
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, value bigint, text text)")
            connection.execute("CREATE TABLE done (value bigint)")
            connection.execute(
                "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN "  # noqa: S608 - a name of the test's
                f"INSERT INTO {name}.done VALUES (CASE TG_OP WHEN $$DELETE$$ THEN -old.value ELSE new.value END); "
                "RETURN NULL; END'"
            )
            connection.execute(
                "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note()"
            )
        yield name


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed(postgres: Postgres, schema: str, tmp_path: Path) -> None:
    """kill -9 of Python, of Java, or of all; the next life begins while the rest of the last one may still work."""
    random, mark = chance(), f"jdbc-{schema}"
    secret = tmp_path / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    order = UpsertOrder(postgres.url, SUPERUSER, str(secret), f"{schema}.t", str(tmp_path))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, MARK: mark, "PYTHONPATH": path}
    program = SparkProgram("tests.faults.jdbc_program", lambda: order, tmp_path / "log", environ)

    def last() -> int:
        """Return the id of the last micro-batch; -1 is none."""
        if postgres.query("SELECT to_regclass(%s)", f"{schema}.jobpipe_ledger") == [(None,)]:
            return -1
        return next((row[0] for row in postgres.query(f"SELECT batch FROM {schema}.jobpipe_ledger") if row[0]), -1)  # noqa: S608

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
            family = program.family()
            program.end_is_expected()
            for process in family:
                if victim == "all" or process.name().startswith(victim):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(signal.SIGKILL)
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
    assert postgres.query(f"SELECT batch, fence FROM {schema}.jobpipe_ledger") == [(batches - 1, KILLS + 1)]  # noqa: S608
    found = postgres.query(f"SELECT id, value, text FROM {schema}.t ORDER BY id")  # noqa: S608
    assert found == [(key, value, f"row {value}") for key, value in sorted(table.items())]
    assert [value for (value,) in postgres.query(f"SELECT value FROM {schema}.done ORDER BY 1")] == done  # noqa: S608
    assert postgres.sessions() == []
