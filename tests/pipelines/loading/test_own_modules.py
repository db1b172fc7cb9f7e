"""A warning says that others can change a folder of modules; the control server refuses it, see test_allowed_paths."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from jobpipe.config.reading import file_permissions
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.loading.lint import modules_of_others
from tests.pipelines.conftest import Write, loaded, problems

TEXT = """
pipeline:
  name: x
  libraries: [{glob: {include: 'lib/deep/**'}}, {glob: {include: own.py}}]
source: {type: rate}
sink: {type: console}
"""


@pytest.fixture
def file(write: Write, tmp_path: Path) -> Path:
    (tmp_path / "lib" / "deep").mkdir(parents=True)
    (tmp_path / "own.py").touch()
    return write(TEXT)


@pytest.mark.parametrize(("folder", "line"), [(".", None), ("lib", 4), ("lib/deep", 4), ("own.py", 4)])
def test_modules_that_others_may_write(file: Path, folder: str, line: int | None) -> None:
    assert warnings(file) == []
    there = file.parent / folder
    there.chmod(0o777)
    (problem,) = warnings(file)
    assert problem.what == f"others could have changed {there}: everyone may write to it (mode 0777)"
    assert problem.remedy == f"take that right away: `chmod go-w {there}`, or use another, or mount it read-only"
    assert problem.severity == "warning"
    if line is not None:
        assert (problem.key, problem.line) == ("pipeline.libraries", line)
    there.chmod(0o755)
    assert warnings(file) == []


def warnings(file: Path) -> list[Problem]:
    """Return what is told of the modules; the file itself is right."""
    return list(modules_of_others(loaded(file)))


def test_a_folder_that_was_named(file: Path) -> None:
    """By naming a pipeline one trusts its owner; and what is missing, or directly in /tmp, is no mistake here."""
    file.parent.chmod(0o1777)
    (file.parent / "own.py").unlink()
    assert warnings(file) == []
    file.parent.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(file.parent, 4711, 4711)
        assert warnings(file) == []
    file.parent.chmod(0o777)
    (problem,) = warnings(file)
    assert "others could have changed" in problem.what
    assert "chown" not in problem.remedy


def test_a_folder_that_cannot_be_looked_at(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: Path) -> os.statvfs_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    assert warnings(file) == []
    monkeypatch.setattr(file_permissions.os, "statvfs", stale)
    (problem,) = warnings(file)
    assert problem.what == f"{file.parent} cannot be looked at ({os.strerror(errno.ESTALE)})"


def test_the_remedy_for_a_file_can_be_pasted(write: Write) -> None:
    file = write("pipeline: {name: x}\nsource: {type: rate}\nsink: {type: console}\n", "my pipeline.yaml")
    assert loaded(file)
    file.chmod(0o666)
    assert [each.remedy for each in problems(file)] == [f"chmod go-w '{file}'"]
