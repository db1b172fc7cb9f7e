"""The examples do what they say: their Spark logic on small data, and the whole of them over a real bus."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import Row, SparkSession

from jobpipe.config import Config
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.spark.session.job_session import recommended_conf
from tests.examples.programs import EXAMPLES, load

JOBS = sorted(EXAMPLES.glob("flights/*.py")) + sorted(EXAMPLES.glob("ten_thousand/*.py"))


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    found = SparkContext._active_spark_context is not None  # that of other modules of this process, which need it on
    session = (
        SparkSession.builder.master("local[1]")
        .config(map={**recommended_conf(checkpoints_local=True)})
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    yield session
    if not found:
        session.stop()


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_each_program_explains_itself(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    with pytest.raises(SystemExit) as ended:
        load(path).main()
    assert ended.value.code == 0
    assert "--work" in capsys.readouterr().out


def test_prepare_deals_out_every_row_once(tmp_path: Path) -> None:
    source = tmp_path / "flights.csv.zip"
    rows = [f"2013,{number}\n" for number in range(10)]
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("flights.csv", "year,number\n" + "".join(rows))
    prepare = load(EXAMPLES / "flights" / "prepare.py")
    for files in (3, 4):  # the second call replaces the files of the first
        assert prepare.split(source, tmp_path / "input", files) == 10
        parts = [file.read_text().splitlines(keepends=True) for file in sorted((tmp_path / "input").iterdir())]
        assert len(parts) == files
        assert {part[0] for part in parts} == {"year,number\n"}
        assert sorted(row for part in parts for row in part[1:]) == rows


def test_prepare_puts_broken_lines_in_besides(tmp_path: Path) -> None:
    source = tmp_path / "flights.csv.zip"
    rows = [f"2013,1,{number}\n" for number in range(10)]
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("flights.csv", "year,month,number\n" + "".join(rows))
    prepare = load(EXAMPLES / "flights" / "prepare.py")
    assert prepare.split(source, tmp_path / "input", 3, 7) == 10
    parts = [file.read_text().splitlines(keepends=True)[1:] for file in sorted((tmp_path / "input").iterdir())]
    found = [row for part in parts for row in part]
    assert sorted(row for row in found if row in rows) == rows
    broken = [row for row in found if row not in rows]
    assert len(broken) == 7
    for row in broken:
        year, *others = row.split(",")
        assert len(others) != 2 or not year.isdigit()


@pytest.mark.spark
def test_delays_sums_up_per_carrier_and_day(spark: SparkSession) -> None:
    delays = load(EXAMPLES / "flights" / "delays.py")
    columns = "year int, month int, day int, carrier string, dep_time int, dep_delay int, tailnum string"
    flights = spark.createDataFrame(
        [
            (2013, 1, 2, "AA", 517, 2, "N1"),
            (2013, 1, 2, "AA", 533, 16, "N2"),
            (2013, 1, 2, "AA", None, None, None),
            (2013, 1, 3, "AA", None, None, "N3"),
            (2013, 1, 2, "B6", 600, -5, "N4"),
        ],
        columns,
    )
    found = {(row["carrier"], row["day"]): row[2:] for row in delays.daily_delays(delays.clean(flights)).collect()}
    assert found == {
        ("AA", date(2013, 1, 2)): (3, 2, 1, 18, 16, 9.0),
        ("AA", date(2013, 1, 3)): (1, 0, 0, None, None, None),
        ("B6", date(2013, 1, 2)): (1, 1, 0, -5, -5, -5.0),
    }


@pytest.mark.spark
def test_report_keeps_what_was_published_last(spark: SparkSession, tmp_path: Path) -> None:
    report = load(EXAMPLES / "flights" / "report.py")
    day = date(2013, 1, 2)

    def published(*rows: tuple[str, int, int, int]) -> object:
        data = [Row(carrier=c, day=day, flights=n, _jobpipe=Row(offset=offset, row=row)) for c, n, offset, row in rows]
        schema = "carrier string, day date, flights long, _jobpipe struct<offset: long, row: long>"
        return spark.createDataFrame(data, schema)

    def table() -> dict[str, int]:
        rows = spark.read.parquet(keeper.path(keeper.versions()[-1])).collect()
        assert len({row["carrier"] for row in rows}) == len(rows)
        return {row["carrier"]: row["flights"] for row in rows}

    keeper = report.Table(tmp_path / "table")
    # One micro-batch with several batches of the topic, not in order; and offsets that differ in their digits.
    keeper.update(published(("AA", 3, 10, 0), ("AA", 2, 9, 7), ("AA", 1, 2, 9), ("B6", 4, 2, 1)), 0)
    assert table() == {"AA": 3, "B6": 4}
    keeper.update(published(("B6", 5, 11, 1), ("B6", 6, 11, 2)), 1)
    assert table() == {"AA": 3, "B6": 6}
    # Spark repeats a batch after a crash; before that it had got as far as writing the version.
    keeper.update(published(("B6", 5, 11, 1), ("B6", 6, 11, 2)), 1)
    assert table() == {"AA": 3, "B6": 6}
    keeper.update(published(("AA", 9, 12, 0)), 2)
    assert table() == {"AA": 9, "B6": 6}
    assert keeper.versions() == [1, 2]

    sink = report.Report(tmp_path)
    sink(published(("B6", 4, 2, 1), ("AA", 3, 10, 0)), 0)
    sink(published(("AA", 5, 11, 0)), 1)
    assert (tmp_path / "report.csv").read_text() == (
        '"carrier","day","flights"\n"AA",2013-01-02,5\n"B6",2013-01-02,4\n'
    )


@pytest.mark.spark
def test_audit_adds_up_all_carriers(spark: SparkSession, tmp_path: Path) -> None:
    audit = load(EXAMPLES / "flights" / "audit.py")
    flights = spark.createDataFrame(
        [("AA", 100, 517), ("AA", 200, None), ("B6", 50, None)], "carrier string, distance int, dep_time int"
    )
    expected = {"rows": 3, "distance": 350, "without_dep_time": 2, "carriers": 2}
    assert audit.findings(audit.totals(flights)) == expected
    audit.Audit(tmp_path)(audit.totals(flights), 0)
    assert json.loads((tmp_path / "audit.json").read_text()) == expected


SEALED = {"0": {"rows": 0, "sum": None}, "1": {"rows": 2, "sum": 1}, "2": {"rows": 2, "sum": 5}}


def rows_got(numbers: list[int], partitions: list[int], offsets: list[int]) -> pa.Table:
    return pa.table(
        {
            "number": pa.array(numbers, pa.int32()),
            "text": [f"row {number}" for number in numbers],
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
        }
    )


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        (rows_got([0, 1, 2, 3], [0, 1, 0, 1], [0, 0, 1, 1]), set()),
        (rows_got([0, 1, 2], [0, 1, 0], [0, 0, 1]), {"rows", "sum of numbers", "different numbers", "right texts"}),
        (rows_got([0, 1, 2, 2], [0, 1, 0, 1], [0, 0, 1, 1]), {"sum of numbers", "different numbers"}),
        (rows_got([2, 1, 0, 3], [0, 1, 0, 1], [1, 0, 0, 1]), {"partitions in order"}),
        (rows_got([0, 1, 2, 3], [0, 1, 0, 1], [0, 0, 0, 0]), {"batches"}),
    ],
    ids=["all there", "missing", "doubled", "out of order", "merged"],
)
def test_ten_thousand_notices_what_is_wrong(rows: pa.Table, wrong: set[str]) -> None:
    facts = load(EXAMPLES / "ten_thousand" / "run.py").facts(rows, SEALED)
    assert {fact for fact, (expected, got) in facts.items() if expected != got} == wrong


@pytest.mark.spark
@pytest.mark.zookeeper
@pytest.mark.timeout(300)
def test_ten_thousand_over_a_real_bus(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "ten_thousand" / "run.py"), "--work", str(tmp_path), "--seconds", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.zookeeper
def test_follow_reads_a_topic_to_its_end(config: Config, settings_of_test: dict[str, str]) -> None:
    publisher = Publisher("flights", config=config, required_subscribers=("notebook",))  # served until it has come
    for batch_id, carriers in enumerate((["AA", "B6"], ["AA"])):
        table = pa.table({"carrier": carriers, "dep_delay": pa.array([batch_id] * len(carriers), pa.int32())})
        publisher.seal("query", batch_id, [table])
    publisher.close(final=True)

    names = {f"JOBPIPE__{key.removeprefix('jobpipe.').replace('.', '__').upper()}": key for key in settings_of_test}
    environ = {**os.environ, **{name: settings_of_test[key] for name, key in names.items()}}
    command = [sys.executable, str(EXAMPLES / "follow.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    totals = [line.split() for line in done.stdout.splitlines() if "worst" in line]
    assert [(words[0], words[1], words[5]) for words in totals] == [("AA", "2", "1"), ("B6", "1", "0")]


@pytest.mark.slow
@pytest.mark.zookeeper
def test_flow_alerts_tells_of_each_alert_once(settings_of_test: dict[str, str]) -> None:
    names = {f"JOBPIPE__{key.removeprefix('jobpipe.').replace('.', '__').upper()}": key for key in settings_of_test}
    environ = {**os.environ, **{name: settings_of_test[key] for name, key in names.items()}}
    environ["JOBPIPE__COORDINATOR__LINGER"] = "1s"
    command = [sys.executable, str(EXAMPLES / "flow_alerts.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^alert for order (\d+) after \d+\.\d ms$", done.stdout, re.MULTILINE)
    assert [int(order) for order in found] == [10 * batch + 6 for batch in range(20)]
