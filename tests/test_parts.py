"""The parts of the tests: which of them runs a test, and what is read from their reports."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.parts import CORE, PARTS, Outcome, read_report, run, summary


@pytest.mark.parametrize("folder", ["tests/faults", "tests/spark", "tests/store"])
def test_each_test_is_in_one_part(folder: str) -> None:
    """Whatever its marks."""
    marks = ("slow", "spark", "quarantined", *(["core"] if folder in CORE else []))
    for values in itertools.product((False, True), repeat=len(marks)):
        marked = {"core": False, **dict(zip(marks, values, strict=True))}
        found = [
            name
            for name, part in PARTS.items()
            if folder not in part.ignored
            and any(f"{folder}/".startswith(f"{path}/") for path in part.paths)
            and is_selected(part.marks, marked)
        ]
        assert len(found) == 1, (marked, found)


def is_selected(expression: str, marked: dict[str, bool]) -> bool:
    """Judge pytest's expression, of names, ``and``, ``or``, ``not`` and parentheses."""
    assert set(re.findall(r"\w+", expression)) <= {*marked, "and", "or", "not"}
    return bool(eval(expression, {}, dict(marked)))  # noqa: S307 - of our own table


def outcome(tmp_path: Path, cases: str, status: int = 0, name: str = "unit") -> Outcome:
    """Read a report with these test cases."""
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return read_report(name, status, 1.0, report)


AGAIN = '<properties><property name="run again after" value="row 17 was lost"/></properties>'


def test_a_second_run_counts_instead_of_the_first(tmp_path: Path) -> None:
    """One that passed then is named, one that failed again is a failure."""
    found = outcome(
        tmp_path,
        '<testcase file="a.py" name="once"/><testcase file="a.py" name="left"><skipped/></testcase>'
        f'<testcase file="a.py" name="lucky"/><testcase file="a.py" name="lucky">{AGAIN}</testcase>'
        f'<testcase file="a.py" name="twice"/><testcase file="a.py" name="twice">{AGAIN}<failure/></testcase>',
        status=1,
    )
    assert (found.passed, found.failed, found.skipped) == (2, 1, 1)
    assert found.run_again == ("a.py::lucky: row 17 was lost",)
    assert not found.good
    assert summary([found], name_long=True).splitlines()[-1] == "2 passed, 1 failed, 1 skipped"


@pytest.mark.parametrize("text", [None, "<testsuites><testcase"])
def test_a_part_without_a_whole_report_has_failed(tmp_path: Path, text: str | None) -> None:
    """Also if pytest says that all is well."""
    report = tmp_path / "report.xml"
    if text is not None:
        report.write_text(text)
    assert not read_report("unit", 0, 1.0, report).good


@pytest.mark.parametrize(("status", "good"), [(0, True), (1, True), (5, True), (2, False), (4, False), (-9, False)])
def test_what_is_quarantined_may_fail_and_no_more(status: int, good: bool) -> None:
    """A part that was killed, or that pytest refuses, is none that is known."""
    assert Outcome("quarantined", status, 1.0).good is good
    assert Outcome("unit", status, 1.0).good is (status == 0)


def test_without_that_python_a_part_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert run("unit@2.7") == Outcome("unit@2.7", 0, 0.0)
    assert "SKIPPED: there is no Python 2.7 here" in capsys.readouterr().out


def test_explorers_write_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their exit code says all."""
    for status in (0, 1):
        done = SimpleNamespace(returncode=status, stdout="")
        monkeypatch.setattr(subprocess, "run", lambda *_, done=done, **__: done)
        assert run("explore").status == status
