"""Reports of attempts: written whole, for their owner alone; read whatever is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.jobs.workloads.progress_reports import MAX_ERROR, Report, Reporter, read_report


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "report.json"


def test_the_newest_is_read(path: Path) -> None:
    reporter = Reporter(path)
    assert read_report(path) is None
    reporter.report(1, 10)
    reporter.report(2, 30)
    assert read_report(path) == Report(batches=2, rows=30)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("", ""),
        ("\n  ValueError: no amount\nTraceback (most recent call last):\n", "ValueError: no amount"),
        ("x" * 1000, "x" * MAX_ERROR),
    ],
)
def test_one_line_of_an_error(path: Path, error: str, line: str) -> None:
    Reporter(path).report(0, 0, error)
    assert read_report(path) == Report(error=line)


def test_that_the_work_has_begun_stays_told(path: Path) -> None:
    reporter = Reporter(path)
    reporter.report(0, 0)
    assert read_report(path) == Report()
    reporter.start()
    assert read_report(path) == Report(started=True)
    reporter.report(1, 2)
    assert read_report(path) == Report(batches=1, rows=2, started=True)


def test_the_exit_code_is_the_last_word(path: Path) -> None:
    """V14: with what was told before; not after the one who reads it has removed the file."""
    reporter = Reporter(path)
    reporter.report(2, 30, "ValueError: no amount")
    reporter.end(75)
    assert read_report(path) == Report(batches=2, rows=30, error="ValueError: no amount", exit_code=75)
    path.unlink()
    reporter.end(75)
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rows": -1}', '{"rows": 1e400}', '{"more": 1}', "{" * 100_000])
def test_what_is_no_report(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    assert read_report(path) is None


def test_no_file_is_wanted() -> None:
    reporter = Reporter(None)
    reporter.report(1, 1, "x")
    reporter.end(0)


def test_where_it_cannot_be_written_the_work_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reporter = Reporter(tmp_path / "file" / "report.json")
    reporter.report(1, 1)
    reporter.end(0)
