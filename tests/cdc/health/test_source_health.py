"""Captures of real databases that are stopped, that wait, or that died: what topics and databases say of it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobpipe.admin import Admin
from jobpipe.cdc import capture_health
from jobpipe.config import Config, load
from jobpipe.metrics.metric_samples import MetricSamples
from jobpipe.metrics.openmetrics_text import families
from jobpipe.metrics.topics_snapshots import TopicsSnapshots
from jobpipe.operations.messages.source_messages import SourceStatus
from tests.bus.kit import until
from tests.cdc.capturing import PATIENCE, Copy, Follower, options, running, settled
from tests.cdc.jobs.cdc_program import CdcProgram
from tests.cdc.jobs.shop import make_orders, shop
from tests.cdc.jobs.test_cdc_commands import READER, name_of
from tests.databases.postgres import Postgres, missing

pytestmark = [pytest.mark.zookeeper, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]
SMALL = {
    "jobpipe.spool.max_bytes": "1MB",
    "jobpipe.segment.max_bytes": "64KB",
    "jobpipe.retention.ack_grace": "0s",
}
MIB = 1 << 20


@pytest.fixture
def program(tmp_path: Path, home: Path) -> Iterator[CdcProgram]:
    with CdcProgram(tmp_path, home) as program:
        yield program


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures of this process tell how they stand several times a second."""
    monkeypatch.setattr(capture_health, "REPORT_SECONDS", 0.1)


@pytest.fixture
def bounded() -> Iterator[Postgres]:
    """A PostgreSQL that keeps little of its log for slots."""
    if (what := missing()) is not None:
        pytest.skip(f"a test with a real PostgreSQL needs {what}")
    limits = {"max_slot_wal_keep_size": "48MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}
    with Postgres(wal_level="logical", **limits) as server:
        yield server


def source_of(topic: str, config: Config) -> SourceStatus | None:
    with Admin(config) as admin:
        return admin.status(topic, 5.0).source


def metric(name: str, topic: str, config: Config) -> float | None:
    """What is scraped, of one topic."""
    with Admin(config) as admin:
        snapshots = TopicsSnapshots(admin)
        found = families(MetricSamples(snapshots.newest(0.0)))
        snapshots.close()
    for family in found:
        for sample in family.samples:
            if sample.name == name and sample.labels["topic"] == topic:
                return float(sample.value)
    return None


def until_source(topic: str, config: Config, found: Callable[[SourceStatus], Any], what: str) -> SourceStatus:
    """Wait until the status of a topic has a source of which something is true."""
    seen: list[SourceStatus] = []

    def look() -> bool:
        source = source_of(topic, config)
        if source is None or not found(source):
            return False
        seen.append(source)
        return True

    until(look, PATIENCE, what)
    return seen[-1]


def write_log(server: Postgres, mib: int, database: str = "postgres") -> None:
    """Let a database write so much log, all of it outside of what is captured."""
    with server.connect(database=database) as connection:
        for _ in range(mib):
            connection.execute("SELECT pg_logical_emit_message(false, 'noise', repeat('x', 1048576))")
        connection.execute("CHECKPOINT")


def log_on_disk(server: Postgres) -> int:
    ((size,),) = server.query("SELECT sum(size)::bigint FROM pg_ls_waldir()")
    return int(size)


def test_lag_grows_while_the_capture_is_stopped(
    program: CdcProgram, tmp_path: Path, decoded: Postgres, schema: str
) -> None:
    """By SIGSTOP: its coordinator is another process, and says since when it has heard nothing."""
    table = make_orders(decoded, schema, 50)
    file = shop(tmp_path, decoded, schema, {"read": READER})
    topic = f"{name_of(file)}.orders"
    program.start(str(file))
    program.until(lambda: "has begun" in program.errors, "its beginning")
    well = until_source(topic, program.config, lambda each: each.behind_seconds == 0, "a capture that keeps up")
    assert well.retained_bytes is not None
    assert well.age < 30
    described = describe(program, topic)
    assert described["source lag"].startswith("0.0 s, ")
    assert described["source"].startswith("0/") or "/" in described["source"]
    with program.suspended():
        decoded.query(f"INSERT INTO {table} VALUES (1000, 1, 'late')")
        since = time.monotonic()
        until(lambda: (metric("jobpipe_source_lag_seconds", topic, program.config) or 0) > 4, PATIENCE, "the lag")
        assert time.monotonic() - since < 30
        late = source_of(topic, program.config)
        assert late is not None
        assert late.lag_seconds is not None
        assert late.lag_seconds >= 4
        assert float(describe(program, topic)["source"].rpartition("as of ")[2].split()[0]) >= 4
    until(lambda: (metric("jobpipe_source_lag_seconds", topic, program.config) or 9) < 3, PATIENCE, "its end")
    until_source(topic, program.config, lambda each: each.behind_seconds == 0 and each.age < 3, "the lag's end")
    assert metric("jobpipe_source_retained_bytes", topic, program.config) is not None
    assert program.signal(signal.SIGTERM) == 143


def describe(program: CdcProgram, topic: str) -> dict[str, str]:
    """What ``jobpipe topics describe`` says, by the facts' names."""
    done = program.jobpipe("topics", "describe", topic)
    assert done.returncode == 0, done.stderr
    facts, *_ = done.stdout.split("\n\n")
    return {line[:14].strip(): line[14:].strip() for line in facts.splitlines()}


@pytest.mark.usefixtures("quick")
def test_lag_grows_while_the_topic_has_no_room(
    decoded: Postgres, schema: str, settings_of_test: dict[str, str]
) -> None:
    """The capture waits for its subscription: seconds, bytes and what the slot keeps grow; then all are small."""
    query, table = decoded.query, f"{schema}.t"
    query(f"CREATE TABLE {table} (id int PRIMARY KEY, long text)")
    config = load(overrides={**settings_of_test, **SMALL}, environ={})
    given = options(decoded, schema, ["t"], required_subscribers={"t": ("copy",)}, batch_rows=20)
    with running(given, config) as capture:
        until_source("t", config, lambda each: each.behind_seconds == 0, "a capture that keeps up")
        for first in range(0, 400, 20):
            query(
                f"INSERT INTO {table} SELECT i, (SELECT string_agg(md5(i::text || j), '') FROM "
                f"generate_series(1, 400) j) FROM generate_series({first}, {first + 19}) i"
            )
        late = until_source("t", config, lambda each: (each.behind_seconds or 0) > 2, "the lag")
        write_log(decoded, 4)
        more = until_source("t", config, lambda each: each.behind_bytes > 4 * MIB, "more log")
        assert more.behind_seconds is not None
        assert late.behind_seconds is not None
        assert more.behind_seconds >= late.behind_seconds
        assert more.age < 5, "it is told while the capture waits"
        assert more.retained_bytes is not None
        assert more.retained_bytes >= 4 * MIB
        with Admin(config) as admin:
            assert "the spool is full" in str(admin.status("t", 5.0).waiting)
        follower = Follower("t", Copy("id"), config)
        try:
            follower.until(lambda: len(follower.copy.rows) == 400, "all rows")
        finally:
            follower.close()
        until_source("t", config, lambda each: each.behind_seconds == 0 and each.behind_bytes < MIB, "the lag's end")
        until(lambda: settled(capture), PATIENCE, "the end")


@pytest.mark.usefixtures("quick")
def test_the_slot_of_an_idle_database_moves_on(decoded: Postgres, schema: str, config: Config) -> None:
    """Another database of the cluster is busy: nothing is captured, and what is kept of its log stays bounded."""
    idle = f"idle_{schema}"
    decoded.query(f"CREATE DATABASE {idle}")
    try:
        with decoded.connect(database=idle) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
            connection.execute(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
        given = options(decoded, schema, ["t"], database=idle, heartbeat=0.1)
        places = (
            "SELECT restart_lsn - '0/0', confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
        )
        with running(given, config) as capture:
            until_source("t", config, lambda each: each.behind_seconds == 0, "a capture that keeps up")
            for _ in range(3):
                ((restart, confirmed),) = decoded.query(places, given.slot)
                write_log(decoded, 24)
                write_log(decoded, 1)  # the checkpoint before it is what the slot may go on to

                def moved(restart: int = restart, confirmed: int = confirmed) -> bool:
                    ((now, known),) = decoded.query(places, given.slot)
                    return bool(now >= restart + 24 * MIB and known >= confirmed + 24 * MIB)

                until(moved, PATIENCE, "the slot's move")
                few = until_source("t", config, lambda each: (each.retained_bytes or 1 << 40) < 16 * MIB, "few bytes")
                assert (few.behind_seconds or 0) < 30
            assert capture.status().rows == 0
    finally:
        decoded.query("SELECT pg_drop_replication_slot(%s)", f"jobpipe_c{schema}")
        decoded.query(f"DROP DATABASE {idle} WITH (FORCE)")


def test_a_dead_capture_with_a_limit(program: CdcProgram, tmp_path: Path, bounded: Postgres) -> None:
    """The log on the disk is bounded; the slot is lost, which is listed, and the next start says so and fails."""
    with bounded.schema() as schema:
        make_orders(bounded, schema, 50)
        file = shop(tmp_path, bounded, schema, {"read": READER})
        topic = f"{name_of(file)}.orders"
        program.start(str(file))
        program.until(lambda: "has begun" in program.errors, "its beginning")
        well = until_source(topic, program.config, lambda each: each.safe_bytes is not None, "what is safe")
        assert well.safe_bytes is not None
        assert 0 < well.safe_bytes <= 96 * MIB
        assert metric("jobpipe_source_safe_bytes", topic, program.config) is not None
        assert program.signal(signal.SIGKILL) == -9
        write_log(bounded, 16)
        write_log(bounded, 1)
        early = slot_line(program, file)
        assert early["wal_status"] in ("reserved", "extended"), early
        assert early["active"] is False
        assert 16 * MIB < early["retained_bytes"] < 48 * MIB
        for _ in range(4):
            write_log(bounded, 48)
        until(lambda: slot_line(program, file)["wal_status"] == "lost", PATIENCE, "the loss of the slot")
        assert log_on_disk(bounded) <= 112 * MIB, "of 209 MiB that were written"
        program.start(str(file))
        assert program.wait() == 1, program.errors
        assert "PostgreSQL has removed changes from" in program.errors
        assert "kept more than max_slot_wal_keep_size" in program.errors
        bounded.query("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def test_a_dead_capture_without_a_limit(program: CdcProgram, tmp_path: Path, decoded: Postgres, schema: str) -> None:
    """Its start warned of it; what the slot keeps grows, and is listed; the next start goes on."""
    table = make_orders(decoded, schema, 50)
    file, copy = shop(tmp_path, decoded, schema, {"read": READER}), Copy("id")
    program.start(str(file))
    program.until(lambda: "has begun" in program.errors, "its beginning")
    assert "max_slot_wal_keep_size" in program.errors
    follower = Follower(f"{name_of(file)}.orders", copy, program.config, f"{name_of(file)}.read")
    try:
        follower.until(lambda: len(copy.rows) == 50, "the table")
        assert program.signal(signal.SIGKILL) == -9
        kept = [slot_line(program, file)["retained_bytes"]]
        for number in range(2):
            decoded.query(f"INSERT INTO {table} VALUES ({100 + number}, 1, 'late')")
            write_log(decoded, 24)
            kept.append(slot_line(program, file)["retained_bytes"])
        assert kept[0] + 24 * MIB <= kept[1] <= kept[2] - 24 * MIB
        assert slot_line(program, file)["wal_status"] in ("reserved", "extended")
        program.start(str(file))
        follower.until(lambda: len(copy.rows) == 52, "the late rows")
    finally:
        follower.close()
    assert program.signal(signal.SIGTERM) == 143


def slot_line(program: CdcProgram, file: Path) -> dict[str, Any]:
    """What ``jobpipe cdc list`` says of the capture's slot."""
    code, out, told = program.call("list", str(file), "--json")
    assert code == 0, told
    (line,) = [each for each in json.loads(out) if each["capture"] is not None]
    return dict(line)
