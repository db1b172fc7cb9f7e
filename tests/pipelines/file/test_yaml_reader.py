"""Hostile and broken files: each is refused at once, with the line where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobpipe.config.reading.yaml_reader import MAX_BYTES, MAX_DEPTH, MAX_NODES
from jobpipe.pipelines.file.overlays import read_content, read_files
from jobpipe.pipelines.file.problems import ProblemList
from tests.pipelines.conftest import Write, problems

pytestmark = pytest.mark.timeout(20)  # a parser that is not linear takes hours


def told(path: Path) -> tuple[int | None, str]:
    """Return line and text of the one problem of a file."""
    report = ProblemList()
    assert read_files(path, [], report) is None
    (problem,) = report.problems
    assert problem.file == str(path)
    return problem.line, str(problem)


def test_a_large_file_is_not_read(write: Write) -> None:
    line, text = told(write(b"a: b\n" * (10 * MAX_BYTES // 5)))
    assert line is None
    assert f"larger than {MAX_BYTES} bytes" in text


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_depth(write: Write, opening: str) -> None:
    line, text = told(write("pipeline: 1\nx:\n  " + opening * 5000))
    assert line == 3
    assert f"at most {MAX_DEPTH} levels" in text


@pytest.mark.slow
def test_many_values(write: Write) -> None:
    line, text = told(write("a:\n" + "- 1\n" * (MAX_NODES + 1)))
    assert line is not None
    assert line > MAX_NODES - 10
    assert f"at most {MAX_NODES} values" in text


def test_a_billion_laughs(write: Write) -> None:
    """Aliases are counted where they are used."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    report = ProblemList()
    assert read_files(write("\n".join(lines)), [], report) is None
    (problem,) = report.problems
    assert problem.line is not None
    assert f"more than {MAX_NODES} values" in problem.what


def test_an_alias_of_itself(write: Write) -> None:
    report = ProblemList()
    assert read_files(write("a: &a\n  b: *a\n"), [], report) is None
    (problem,) = report.problems
    assert f"or {MAX_DEPTH} levels" in problem.what


def test_nul(write: Write) -> None:
    line, text = told(write(b"a: b\nc: \0\n"))
    assert line == 2
    assert "character #x0000" in text


def test_no_utf_8(write: Write) -> None:
    line, text = told(write(b"a: b\n\nc: \xff\xfe\n"))
    assert line == 3
    assert "not text in UTF-8" in text


def test_a_byte_order_mark_is_no_problem(write: Write) -> None:
    report = ProblemList()
    assert read_files(write("\ufeffa: b\n"), [], report) is not None
    assert not report.problems


def test_a_missing_file(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in told(tmp_path / "nosuch.yaml")[1]


def test_a_folder_and_a_pipe(tmp_path: Path) -> None:
    """A pipe that nobody writes to is not waited for."""
    assert "Is a directory" in told(tmp_path)[1]
    os.mkfifo(tmp_path / "pipe")
    assert "this is not a file" in told(tmp_path / "pipe")[1]


def test_a_file_that_others_may_write(write: Write) -> None:
    path = write("a: b\n")
    path.chmod(0o666)
    assert "others could have changed it" in told(path)[1]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: !!bool yes\n", 1),
        ("a:\n- !!null x\n", 2),
        ("a: !!str b\n", 1),
        ("a: ! b\n", 1),
        ("a: !!map {b: c}\n", 1),
        ("a: !!seq [b]\n", 1),
        ("b: c\n!!str a: b\n", 2),
        ("a: !!timestamp 2013-99-99\n", 1),
        ("a:\n  b: !!int x\n", 2),
        ("a: !!binary abc\n", 1),
        ("a: !x {b: c}\n", 1),
    ],
)
def test_tags(text: str, line: int) -> None:
    report = ProblemList()
    read_content(text.encode(), "f", report)
    (problem,) = report.problems
    assert problem.line == line


@pytest.mark.parametrize("parts", [MAX_DEPTH, 300_000])  # far more than Python may call
def test_a_key_of_many_parts(write: Write, parts: int) -> None:
    """It is one key, and no section."""
    path = write(f"pipeline: {{name: x}}\n? jobs.{'.'.join(['a'] * parts)}\n: 1\n")
    assert "there is no such key" in [problem.what for problem in problems(path)]


def test_no_alias_of_a_key(write: Write) -> None:
    report = ProblemList()
    read_content(b"a: &x b\n? [1]\n: c\n*x : d\n", "f", report)
    assert [problem.line for problem in report.problems] == [2]


def test_a_broken_file_hides_no_problem_of_its_overlays(write: Write, tmp_path: Path) -> None:
    report = ProblemList()
    broken, over = write("pipeline: {\n"), write("a: [\n", "prod.yaml")
    assert read_files(broken, [tmp_path / "missing.yaml", over], report) is None
    assert {Path(problem.file).name for problem in report.problems} == {"pipeline.yaml", "missing.yaml", "prod.yaml"}
