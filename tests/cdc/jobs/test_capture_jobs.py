"""Captures as jobs of pipelines: run by ``jobpipe pipeline run``, killed in the middle, and exact."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jobpipe.errors import ConfigError
from jobpipe.jobs.foreground.dry_run import try_job
from tests.cdc.capturing import Copy, Follower, rows_of
from tests.cdc.jobs.shop import CAPTURE, changing, make_orders, shop
from tests.databases.postgres import Postgres
from tests.pipelines.conftest import loaded
from tests.pipelines.running import Runner

pytestmark = [pytest.mark.processes, pytest.mark.slow]
ROWS = 20_000


@pytest.fixture
def file(tmp_path: Path, decoded: Postgres, schema: str) -> Path:
    make_orders(decoded, schema, ROWS)
    return shop(tmp_path, decoded, schema, **{"chunk-size": 500})


@pytest.fixture
def runner(tmp_path: Path, home: Path, file: Path) -> Iterator[Runner]:
    with Runner(tmp_path, home, file) as runner:
        yield runner


@pytest.mark.timeout(300)
def test_a_capture_that_is_killed_again_and_again_is_exact(runner: Runner, decoded: Postgres, schema: str) -> None:
    """No JVM is started; after each kill another attempt goes on, and the rows are those of the table."""
    table, copy = f"{schema}.orders", Copy("id")
    runner.start()
    runner.until(lambda: CAPTURE in runner.runners(), "the attempt")
    follower = Follower(f"{runner.name}.orders", copy, runner.config)
    try:
        with changing(decoded, table):
            for number in range(3):
                least = (number + 1) * ROWS // 10
                follower.until(lambda least=least: sum(copy.seen.values()) >= least, f"{least} rows")
                attempt = runner.runners()[CAPTURE]
                names = [each.name() for each in [attempt, *attempt.children(recursive=True)]]
                assert not any("java" in name for name in names), names
                attempt.send_signal(signal.SIGKILL)
                runner.until(lambda pid=attempt.pid: _pid(runner) not in (None, pid), "the next attempt")
            follower.until(lambda: copy.seen.get("r", 0) >= ROWS // 2, "most rows of the table")
        expected = rows_of(decoded, table, "id")
        follower.until(lambda: copy.rows == expected, "the rows of the table", 120.0)
    finally:
        follower.close()
    assert "attempt 4" in runner.output
    runner.signal(signal.SIGTERM)
    assert runner.wait(60.0) == 143, runner.told
    assert runner.states(CAPTURE)[-1] == "STOPPED", runner.told
    assert "rows read" in runner.output


def _pid(runner: Runner) -> int | None:
    found = runner.runners().get(CAPTURE)
    return None if found is None or found.status() == psutil.STATUS_ZOMBIE else found.pid


@pytest.mark.timeout(120)
def test_a_capture_that_cannot_begin_fails_with_what_to_do(runner: Runner, decoded: Postgres, schema: str) -> None:
    decoded.query(f"DROP TABLE {schema}.orders")
    runner.file.write_text(runner.file.read_text().replace("max-attempts: null", "max-attempts: 1"))
    assert runner.run() == 1
    assert runner.states(CAPTURE)[-1] == "FAILED"
    (line,) = [line for line in runner.output.splitlines() if f"job {CAPTURE}: FAILED" in line]
    assert "ConfigError: PostgreSQL at" in line
    assert schema in line, "what is to be mended is said in the same line"


def test_nothing_of_a_capture_is_tried(file: Path) -> None:
    with pytest.raises(ConfigError, match="captures tables, and transforms no rows: try a job that reads its topics"):
        try_job(loaded(file), CAPTURE, {None: []})
