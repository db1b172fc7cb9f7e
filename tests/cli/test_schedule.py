"""``jobpipe schedules preview``."""

from __future__ import annotations

import json
import sys
import zoneinfo
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Run

FILE = """
pipeline: {name: shop, parameters: {at: "2"}}
jobs:
  publish: {source: {type: rate}, sink: {type: jobpipe, topic: orders}}
  daily:
    execution: {runtime-mode: BATCH}
    source: {type: jobpipe, subscribe: orders}
    sink: {type: parquet, path: "daily/${run.lower:%Y-%m-%d}", mode: overwrite}
    schedule: {crontab: "0 ${var.at} * * *", timezone: Europe/Berlin, delay: 10min}
"""
MONTHLY = """
  monthly:
    execution: {runtime-mode: BATCH}
    source: {type: jobpipe, subscribe: orders}
    sink: {type: parquet, path: "monthly/${run.lower:%Y-%m}", mode: overwrite}
    schedule: {every: month, start: "2026-01-15T00:00:00Z", end: "2026-03-01T00:00:00Z"}
"""
Pipe = Callable[[str], str]


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    def pipe(text: str) -> str:
        path = tmp_path / "pipeline.yaml"
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    return pipe


def test_through_a_change_of_the_clock(run: Run, pipe: Pipe) -> None:
    """A day of 25 hours; a time without a zone is one of the schedule's."""
    found = run("schedules", "preview", pipe(FILE), "daily", "--from", "2026-10-25T01:59:59", "--count", "3")
    assert found.exit_code == 0
    assert [line.split() for line in found.stdout.splitlines()] == [
        ["FROM", "TO", "LASTS", "RUN", "IS", "DUE", "FROM", "(UTC)", "TO", "(UTC)"],
        [
            *("2026-10-24T02:00:00+02:00", "2026-10-25T02:00:00+02:00", "24.0", "h", "2026-10-25T02:10:00+02:00"),
            *("2026-10-24T00:00:00Z", "2026-10-25T00:00:00Z"),
        ],
        [
            *("2026-10-25T02:00:00+02:00", "2026-10-26T02:00:00+01:00", "25.0", "h", "2026-10-26T02:10:00+01:00"),
            *("2026-10-25T00:00:00Z", "2026-10-26T01:00:00Z"),
        ],
        [
            *("2026-10-26T02:00:00+01:00", "2026-10-27T02:00:00+01:00", "24.0", "h", "2026-10-27T02:10:00+01:00"),
            *("2026-10-26T01:00:00Z", "2026-10-27T01:00:00Z"),
        ],
    ]


def test_as_json(run: Run, pipe: Pipe) -> None:
    """The only job with a schedule need not be named; parameters hold."""
    begin = "2026-11-20T03:30:00+00:00"
    found = run("schedules", "preview", pipe(FILE), "--set", "at=4", "--from", begin, "--count", "1", "--json")
    assert json.loads(found.stdout) == [
        {
            "lower": "2026-11-20T03:00:00Z",
            "local_lower": "2026-11-20T04:00:00+01:00",
            "upper": "2026-11-21T03:00:00Z",
            "local_upper": "2026-11-21T04:00:00+01:00",
            "due": "2026-11-21T03:10:00Z",
            "local_due": "2026-11-21T04:10:00+01:00",
            "seconds": 86400.0,
        }
    ]


def test_from_now_on(run: Run, pipe: Pipe) -> None:
    before = datetime.now(UTC)
    rows = json.loads(run("schedules", "preview", pipe(FILE), "--json").stdout)
    assert len(rows) == 10
    assert datetime.fromisoformat(rows[0]["lower"]) <= datetime.now(UTC)
    assert datetime.fromisoformat(rows[0]["upper"]) > before


def test_a_host_without_time_zone_files(run: Run, pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q12: `--from` without a zone is a time of the schedule's, here UTC."""
    monkeypatch.setitem(sys.modules, "tzdata", None)
    text, paths = FILE.replace("timezone: Europe/Berlin, ", ""), zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=[])
    zoneinfo.ZoneInfo.clear_cache()
    try:
        found = run("schedules", "preview", pipe(text), "daily", "--from", "2026-10-24T12:00", "--count", "1", "--json")
    finally:
        zoneinfo.reset_tzpath(to=paths)
    assert json.loads(found.stdout)[0]["local_upper"] == "2026-10-25T02:00:00+00:00"


def test_start_and_end(run: Run, pipe: Pipe) -> None:
    found = run("schedules", "preview", pipe(FILE + MONTHLY), "monthly", "--from", "2025-01-01T00:00Z", "--json")
    assert [(row["lower"][:10], row["upper"][:10]) for row in json.loads(found.stdout)] == [
        ("2026-01-15", "2026-02-01"),
        ("2026-02-01", "2026-03-01"),
    ]
    over = run("schedules", "preview", pipe(FILE + MONTHLY), "monthly", "--from", "2026-03-01T00:00Z")
    assert over.exit_code == 0
    assert over.stderr.endswith("no more intervals: schedule.end is reached\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give the name of a job with a schedule; jobs with one: daily, monthly"),
        (("publish",), "job 'publish' has no schedule; jobs with one: daily, monthly"),
        (("dayly",), "job 'dayly' is not in the file; jobs with one: daily, monthly"),
        (("daily", "--from", "yesterday"), "'yesterday' is not a time in ISO 8601"),
        (("daily", "--from", "0001-01-01T00:00+14:00"), "is not a time in ISO 8601 between the years 1970 and 2999"),
        (("daily", "--count", "1001"), "1001 is not in the range"),
        (("daily", "--set", "at=2 30 2"), "schedule.crontab"),
    ],
)
def test_what_is_wrong(run: Run, pipe: Pipe, arguments: tuple[str, ...], message: str) -> None:
    found = run("schedules", "preview", pipe(FILE + MONTHLY), *arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr


def test_a_crontab_that_never_comes_true(run: Run, pipe: Pipe) -> None:
    found = run("schedules", "preview", pipe(FILE.replace("* * *", "31 6 *")))
    assert found.exit_code == 2
    assert found.stderr.startswith("jobpipe: crontab 0 2 31 6 * never matches")


def test_where_a_person_looks_it_says_who_makes_the_runs(run: Run, pipe: Pipe) -> None:
    said = "its schedules are run by the control server: jobpipe pipeline submit "
    assert said in run("pipeline", "validate", pipe(FILE)).stdout
    assert said not in run("pipeline", "validate", pipe(FILE.partition("    schedule")[0])).stdout
    found = run("schedules", "preview", pipe(FILE), "daily", "--count", "1")
    assert (found.exit_code, found.stderr) == (0, "")
