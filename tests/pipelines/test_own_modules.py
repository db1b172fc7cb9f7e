"""A pipeline's modules come from folders that others cannot change, as its file does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobpipe.pipelines.loading import load_pipeline
from tests.pipelines.conftest import Write, problems

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
    load_pipeline(file)
    there = file.parent / folder
    there.chmod(0o777)
    (problem,) = problems(file)
    assert problem.what == f"others could have changed {there}: everyone may write to it (mode 0777)"
    assert f"chmod go-w {there}" in problem.remedy
    if line is not None:
        assert (problem.key, problem.line) == ("pipeline.libraries", line)
    there.chmod(0o755)
    load_pipeline(file)


def test_a_folder_that_was_named(file: Path) -> None:
    """By naming a pipeline one trusts its owner; and what is missing, or directly in /tmp, is no mistake here."""
    file.parent.chmod(0o1777)
    (file.parent / "own.py").unlink()
    load_pipeline(file)
    file.parent.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(file.parent, 4711, 4711)
        load_pipeline(file)
    file.parent.chmod(0o777)
    assert "others could have changed" in problems(file)[0].what
