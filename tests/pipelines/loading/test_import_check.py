"""``validate --import``: the user's modules are imported in a process of its own, with a deadline."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from jobpipe.pipelines.loading.import_check import check_imports
from tests.pipelines.conftest import Write, loaded

FILE = """
pipeline: {name: x}
jobs:
  a:
    source: {type: rate}
    transform: [{type: python, function: "mine.work:clean"}]
    sink: {type: python, foreach-batch: "mine.work:%s"}
  b:
    type: flow
    source: {type: jobpipe, subscribe: orders}
    function: mine.work:check
  orders: {source: {type: rate}, sink: {type: jobpipe, topic: orders}}
"""
GOOD = "print('hello')\ndef clean(frame): return frame\ndef check(batch, context): return None\nclass Table: pass\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The user's module, beside the file."""
    folder = tmp_path / "mine"
    folder.mkdir()
    module = folder / "work.py"
    module.write_text(GOOD)
    return module


@pytest.mark.processes
def test_all_is_there(write: Write, mine: Path) -> None:
    """What the module prints does not disturb; it is not imported here."""
    assert check_imports(loaded(write(FILE % "Table"))) == []
    assert "mine.work" not in sys.modules


@pytest.mark.processes
def test_a_missing_name(write: Write, mine: Path) -> None:
    (problem,) = check_imports(loaded(write(FILE % "Tabel")))
    assert (problem.line, problem.key) == (7, "jobs.a.sink.foreach-batch")
    assert "AttributeError" in problem.what


@pytest.mark.processes
def test_a_module_that_fails(write: Write, mine: Path) -> None:
    """Each use is told."""
    mine.write_text("import nosuch\n")
    found = check_imports(loaded(write(FILE % "Table")))
    assert [problem.key for problem in found] == [
        "jobs.a.transform[0].function",
        "jobs.a.sink.foreach-batch",
        "jobs.b.function",
    ]
    assert all("No module named 'nosuch'" in problem.what for problem in found)


@pytest.mark.slow
@pytest.mark.processes
def test_a_module_that_hangs(write: Write, mine: Path, tmp_path: Path) -> None:
    """It is ended at the deadline, with what it started."""
    mine.write_text(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    (problem,) = check_imports(loaded(write(FILE % "Table")), seconds=5.0)
    assert "were not done after 5 s" in problem.what
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=10)
    assert alive == []


@pytest.mark.processes
def test_a_module_that_ends_the_process(write: Write, mine: Path) -> None:
    mine.write_text("import os\nos._exit(7)\n")
    (problem,) = check_imports(loaded(write(FILE % "Table")))
    assert "ended the process, with exit code 7" in problem.what


def test_nothing_is_imported_without_it(write: Write, mine: Path, tmp_path: Path) -> None:
    mine.write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    loaded(write(FILE % "Table"))
    assert not os.path.exists(tmp_path / "imported")
