"""Files of pipelines for tests: written, loaded, and their problems."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobpipe.errors import PipelineError
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.model.pipeline import Pipeline

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a writer of files: ``write(text, name)``."""

    def write(text: str | bytes, name: str = "pipeline.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(0o600)
        return path

    return write


def problems(path: Path, **arguments: Any) -> list[Problem]:
    """Return what is wrong with a file; fails if nothing is."""
    with pytest.raises(PipelineError) as told:
        load_pipeline(path, **arguments)
    found = [Problem(**problem) for problem in told.value.fields["problems"]]
    assert str(told.value).splitlines()[1:] == [f"  {problem}" for problem in found]
    return found


def loaded(path: Path, **arguments: Any) -> Pipeline:
    """Return a pipeline of which nothing is wrong, not even probably."""
    pipeline = load_pipeline(path, **arguments)
    assert list(map(str, pipeline.warnings)) == []
    return pipeline
