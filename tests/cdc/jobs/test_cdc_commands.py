"""``jobpipe cdc``: captures without Spark, killed and stopped; their slots listed and dropped."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cdc.capturing import Copy, Follower, rows_of
from tests.cdc.jobs.cdc_program import CdcProgram
from tests.cdc.jobs.shop import CAPTURE, capture, changing, make_orders, shop
from tests.databases.postgres import SUPERUSER, Postgres
from tests.docs.pages import block
from tests.pipelines.running import write_pipeline

pytestmark = [pytest.mark.processes, pytest.mark.slow]
ROWS = 20_000
READER = {"source": {"type": "jobpipe", "subscribe": "orders"}, "sink": {"type": "noop"}}


@pytest.fixture
def program(tmp_path: Path, home: Path) -> Iterator[CdcProgram]:
    with CdcProgram(tmp_path, home) as program:
        yield program


def name_of(file: Path) -> str:
    return str(yaml.safe_load(file.read_text())["pipeline"]["name"])


@pytest.mark.timeout(240)
def test_a_capture_without_spark_is_exact(program: CdcProgram, tmp_path: Path, decoded: Postgres, schema: str) -> None:
    """Killed and stopped in the middle; its file has a job that only Spark can load."""
    table = make_orders(decoded, schema, ROWS)
    file, copy = shop(tmp_path, decoded, schema, {"read": READER}, **{"chunk-size": 500}), Copy("id")
    topic, subscription = f"{name_of(file)}.orders", f"{name_of(file)}.read"
    program.start(str(file))
    follower = Follower(topic, copy, program.config, subscription)
    try:
        with changing(decoded, table):
            for number, how in enumerate([signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT], 1):
                program.until(lambda number=number: program.errors.count("has begun") == number, "its beginning")
                least = number * ROWS // 10
                follower.until(lambda least=least: sum(copy.seen.values()) >= least, f"{least} rows")
                assert program.signal(how) == {signal.SIGKILL: -9}.get(how, 128 + how), program.errors
                program.start(str(file))
        expected = rows_of(decoded, table, "id")
        follower.until(lambda: copy.rows == expected, "the rows of the table", 120.0)
        program.until(lambda: "following changes" in program.errors, "the line of one that follows changes")
    finally:
        follower.close()
    assert program.signal(signal.SIGTERM) == 143
    lines = program.errors.splitlines()
    reading = rf"capture {CAPTURE}: reading {schema}\.orders: [\d,]+ rows( of about [\d,]+)?(, \d+ \w+ left)?; "
    assert any(re.match(reading + r"[\d,]+ rows? published, [\d,]+/s", line) for line in lines), program.errors
    assert not any("Traceback" in line for line in lines), program.errors


@pytest.mark.timeout(120)
def test_the_captures_of_a_file_and_one_of_them(
    program: CdcProgram, tmp_path: Path, decoded: Postgres, schema: str
) -> None:
    for table in ("one", "two"):
        decoded.query(f"CREATE TABLE {schema}.{table} (id int PRIMARY KEY)")
        decoded.query(f"INSERT INTO {schema}.{table} VALUES (1)")
    jobs = {
        name: capture(decoded, schema, name, **{"slot-name": f"jobpipe_{schema}_{name}"}) for name in ("one", "two")
    }
    file = write_pipeline(tmp_path, jobs)
    program.start(str(file), "two")
    program.until(lambda: "capture two: has begun" in program.errors, "the named one")
    code, out, _ = program.call("list", str(file), "--json")
    listed = {each["capture"]: each for each in json.loads(out) if each["capture"] is not None}
    assert (code, sorted(listed)) == (0, [f"{name_of(file)}.one", f"{name_of(file)}.two"])
    one, two = listed.values()
    assert (one["plugin"], one["active"], one["retained_bytes"]) == (None, False, None)
    assert (two["slot"], two["plugin"], two["active"]) == (f"jobpipe_{schema}_two", "pgoutput", True)
    assert two["wal_status"] == "reserved"
    assert program.signal(signal.SIGINT) == 130
    assert "capture one:" not in program.errors
    program.start(str(file))
    program.until(lambda: "capture one: has begun" in program.errors, "the other one, too")
    program.until(lambda: program.errors.count("capture two: has begun") == 2, "both of them")
    assert program.signal(signal.SIGTERM) == 143


@pytest.mark.timeout(120)
def test_one_that_fails_stops_the_others(program: CdcProgram, tmp_path: Path, decoded: Postgres, schema: str) -> None:
    decoded.query(f"CREATE TABLE {schema}.one (id int PRIMARY KEY)")
    jobs = {
        "one": capture(decoded, schema, "one", **{"slot-name": f"jobpipe_{schema}_one"}),
        "two": capture(decoded, schema, "missing", **{"slot-name": f"jobpipe_{schema}_two"}),
    }
    program.start(str(write_pipeline(tmp_path, jobs)))
    assert program.wait() == 2, program.errors
    assert "jobpipe: capture two failed: PostgreSQL at" in program.errors
    assert "capture one failed" not in program.errors


@pytest.mark.timeout(120)
def test_a_slot_is_dropped_when_its_capture_no_longer_runs(
    program: CdcProgram, tmp_path: Path, decoded: Postgres, schema: str
) -> None:
    table = make_orders(decoded, schema, 10)
    file = shop(tmp_path, decoded, schema)
    slot = f"jobpipe_{schema}"
    program.start(str(file))
    program.until(lambda: "has begun" in program.errors, "its beginning")
    code, _, told = program.call("drop", str(file), "--yes")
    assert (code, "is in use" in told, slots(decoded, slot)) == (2, True, [slot]), told
    assert program.signal(signal.SIGTERM) == 143
    code, _, told = program.call("drop", str(file), answer="")
    assert (code, slots(decoded, slot)) == (2, [slot])
    assert f"lost to capture {name_of(file)}.{CAPTURE}" in told
    assert "give --yes" in told
    code, out, told = program.call("drop", str(file), CAPTURE, "--yes")
    assert code == 0, told
    assert f"replication slot {slot} and publication {slot}" in out
    assert slots(decoded, slot) == decoded.query("SELECT 1 FROM pg_publication WHERE pubname = %s", slot) == []
    code, _, told = program.call("drop", str(file), "--yes")
    assert (code, "has no replication slot" in told) == (2, True)
    decoded.query(f"INSERT INTO {table} VALUES (11, 1, '')")
    program.start(str(file))
    assert program.wait() == 1, program.errors
    assert f"replication slot {slot} is gone" in program.errors


@pytest.mark.timeout(120)
def test_a_slot_of_a_capture_that_the_file_no_longer_has(
    program: CdcProgram, tmp_path: Path, decoded: Postgres, schema: str
) -> None:
    file = shop(tmp_path, decoded, schema)
    former = f"jobpipe_{schema}_former"
    decoded.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", former)
    _, out, _ = program.call("list", str(file))
    (line,) = [line for line in out.splitlines() if former in line]
    assert line.split()[2:4] == ["pgoutput", "no"]
    assert line.endswith("-")
    code, out, told = program.call("drop", str(file), "--slot", former, "--yes")
    assert (code, slots(decoded, former)) == (0, []), told
    assert f"dropped of database 127.0.0.1:{decoded.port}/postgres: replication slot {former}" in out


def slots(server: Postgres, name: str) -> list[str]:
    return [found for (found,) in server.query("SELECT slot_name FROM pg_replication_slots WHERE slot_name = %s", name)]


@pytest.mark.timeout(120)
def test_a_part_is_read_again(program: CdcProgram, tmp_path: Path, decoded: Postgres, schema: str) -> None:
    """While the capture runs; what it cannot read is refused at once."""
    table = make_orders(decoded, schema, 10)
    file, copy = shop(tmp_path, decoded, schema, {"read": READER}), Copy("id")
    program.start(str(file))
    follower = Follower(f"{name_of(file)}.orders", copy, program.config, f"{name_of(file)}.read")
    try:
        follower.until(lambda: len(copy.rows) == 10, "the rows of the table")
        assert program.call("read-again", str(file), table, "--after", "3", "--through", "7")[0] == 0
        follower.until(lambda: copy.again == 4, "the rows once more")
        code, _, errors = program.call("read-again", str(file), table, "--after", "3", "--after", "4")
        assert (code, "a key has a value for each of id" in errors) == (2, True)
        code, _, errors = program.call("read-again", str(file), f"{schema}.other")
        assert (code, "captures no table" in errors) == (2, True)
    finally:
        follower.close()
    assert program.signal(signal.SIGTERM) == 143


@pytest.mark.timeout(120)
def test_the_commands_of_the_page(program: CdcProgram, tmp_path: Path, decoded: Postgres) -> None:
    """docs/cdc.md: its file, with the address of this database, and its commands, in their order."""
    decoded.query("CREATE DATABASE shop")
    try:
        with decoded.connect(database="shop") as shop:
            shop.execute("CREATE TABLE orders (id int PRIMARY KEY)")
            shop.execute("CREATE TABLE customers (id int PRIMARY KEY)")
            shop.execute("INSERT INTO orders SELECT generate_series(1, 3000)")
        tree = yaml.safe_load(block("docs/cdc.md", "file"))
        source = tree["jobs"]["changes"]["source"]
        source |= {"hostname": "127.0.0.1", "port": decoded.port, "username": SUPERUSER}
        source["password"] = "env:CDC_TEST_PASSWORD"
        file = tmp_path / "shop.yaml"
        file.write_text(yaml.safe_dump(tree))
        lines = [re.sub(" *#.*", "", line) for line in block("docs/cdc.md", "commands").splitlines()]
        commands = [line.removeprefix("jobpipe cdc ").replace("shop.yaml", str(file)).split() for line in lines]
        (start, *options), *others, (end, *dropped) = commands
        assert (start, end) == ("run", "drop")
        program.start(*options)
        copy = Copy("id")
        follower = Follower("public.orders", copy, program.config, "shop.totals")
        follower.until(lambda: len(copy.rows) == 3000, "the rows of the table")
        for command in others:
            assert program.call(*command)[0] == 0, command
        follower.until(lambda: copy.again == 1000, "the rows once more")
        follower.close()
        assert program.signal(signal.SIGTERM) == 143
        assert program.call("drop", *dropped, "--yes")[0] == 0
    finally:
        decoded.query("DROP DATABASE shop WITH (FORCE)")
