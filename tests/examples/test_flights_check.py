"""The check of the flights' results: right where all agrees, and not otherwise."""

from __future__ import annotations

import json
import zipfile
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from jobpipe.config import Config
from jobpipe.errors import JobpipeError
from jobpipe.publishing.topic_publisher import Publisher
from tests.examples.programs import EXAMPLES, load

check = load(EXAMPLES / "flights" / "check.py")

FLIGHTS = """\
year,month,day,dep_time,dep_delay,carrier
2013,1,2,517,2,AA
2013,1,2,533,16,AA
2013,1,2,NA,NA,AA
2013,1,3,NA,NA,AA
2013,1,2,600,-5,B6
"""
REPORT = """\
"carrier","day","flights","departed","late","delay_sum","delay_max","delay_mean"
"B6",2013-01-02,1,1,0,-5,-5,-5
"AA",2013-01-02,3,2,1,18,16,9
"AA",2013-01-03,1,0,0,,,
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("flights.csv", FLIGHTS)
    return file


def test_expected_report_by_hand(source: Path) -> None:
    assert check.expected_report(source) == {
        ("AA", date(2013, 1, 2)): (3, 2, 1, 18, 16, 9.0),
        ("AA", date(2013, 1, 3)): (1, 0, 0, None, None, None),
        ("B6", date(2013, 1, 2)): (1, 1, 0, -5, -5, -5.0),
    }


def test_expected_report_of_the_real_flights() -> None:
    report = check.expected_report(check.flights_zip())
    assert sum(values[0] for values in report.values()) == check.AUDIT["rows"]
    assert sum(values[0] - values[1] for values in report.values()) == check.AUDIT["without_dep_time"]
    assert len({carrier for carrier, _ in report}) == check.AUDIT["carriers"]


def test_report_that_agrees(source: Path, tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text(REPORT)
    assert all(fact.ok for fact in check.report_facts(tmp_path / "report.csv", source))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('"AA",2013-01-02,3,2,1,18,16,9\n', ""),  # missing
        ('"AA",2013-01-02,3,2,1,18,16,9\n', '"AA",2013-01-02,2,2,1,18,16,9\n'),  # an older word on the day
        ('"B6",2013-01-02,', '"B6",2013-01-09,'),  # another day
        ("18,16,9", "18,16,9.5"),
        ("1,0,0,,,", "1,0,0,0,,"),
    ],
)
def test_report_that_does_not_agree(source: Path, tmp_path: Path, right: str, wrong: str) -> None:
    assert right in REPORT
    (tmp_path / "report.csv").write_text(REPORT.replace(right, wrong))
    facts = check.report_facts(tmp_path / "report.csv", source)
    assert not facts[-1].ok


@pytest.mark.parametrize("content", [None, "", "carrier,day\nAA,yesterday\n"])
def test_report_that_cannot_be_read(source: Path, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "report.csv").write_text(content)
    assert [fact.ok for fact in check.report_facts(tmp_path / "report.csv", source)] == [False]


def test_audit(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    assert not any(fact.ok for fact in check.audit_facts(file))
    file.write_text(json.dumps(check.AUDIT))
    assert all(fact.ok for fact in check.audit_facts(file))
    file.write_text(json.dumps({**check.AUDIT, "rows": check.AUDIT["rows"] + 1}))
    assert [fact.what for fact in check.audit_facts(file) if not fact.ok] == ["audit: rows"]


def test_rows_left_behind_are_a_fact() -> None:
    lines = [SimpleNamespace(name=name, lag=SimpleNamespace(rows=rows)) for name, rows in (("a", 0), ("b", 7))]
    facts = check.topic_facts({"t": SimpleNamespace(subscriptions=lines)})
    assert [(fact.expected, fact.got, fact.ok) for fact in facts] == [(0, 0, True), (0, 7, False)]


def test_broken_lines_are_those_that_the_data_do_not_have(source: Path, tmp_path: Path) -> None:
    header, *rows = FLIGHTS.splitlines()
    parts = {"part-0.csv": [header, "2013,1", *rows[::2]], "part-1.csv": [header, *rows[1::2], "2013,1", "two"]}
    (tmp_path / "input").mkdir()
    for name, lines in parts.items():
        (tmp_path / "input" / name).write_text("\n".join([*lines, ""]))
    assert check.broken_lines(tmp_path / "input", source) == ["2013,1", "2013,1", "two"]


@pytest.mark.parametrize(
    ("letters", "ok"),
    [
        (["a", "b", "b"], [True, True]),
        (["b", "a", "b"], [True, True]),
        (["a", "b"], [False, False]),
        (["a", "a", "b"], [True, False]),
        (["a", "b", "b", "b"], [False, False]),
        (["a", "b", "c"], [True, False]),
    ],
)
def test_dead_letters_are_what_was_put_in(letters: list[str], ok: list[bool]) -> None:
    assert [fact.ok for fact in check.dead_letters_facts(3, ["a", "b", "b"], letters)] == ok


def test_too_few_lines_put_in_are_a_fact() -> None:
    assert [fact.ok for fact in check.dead_letters_facts(3, ["a", "b"], ["a", "b"])] == [False, True]


@pytest.mark.slow
@pytest.mark.zookeeper
def test_dead_letters_are_read_from_the_spool(config: Config) -> None:
    publisher = Publisher("dead", config=config)
    long = "x" * 1_000_000  # in a file; small batches are in the catalog
    batches = [["a", "b"], *([f"row {number}"] for number in range(100)), [long]]
    for batch_id, rows in enumerate(batches):
        publisher.seal("query", batch_id, [pa.table({"row": rows, "stage": ["csv"] * len(rows)})])
    publisher.close(final=True)
    assert check.dead_letters(config.spool_dir, "dead") == [row for rows in batches for row in rows]


def test_no_dead_letters_at_all(tmp_path: Path) -> None:
    with pytest.raises(JobpipeError, match="does not exist"):
        check.dead_letters(tmp_path, "dead")
