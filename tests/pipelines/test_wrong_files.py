"""Every wrong file gives exactly its problems: line, key, what is wrong, and what to do."""

from __future__ import annotations

import pytest

from jobpipe.pipelines.file.problems import Problem
from tests.pipelines.conftest import Write, problems
from tests.pipelines.wrong import Expected, Wrong
from tests.pipelines.wrong_files import FILES
from tests.pipelines.wrong_jobs import JOBS
from tests.pipelines.wrong_stages import STAGES

WRONG = (*FILES, *JOBS, *STAGES)


def fits(found: Problem, expected: Expected) -> bool:
    line, key, what, remedy = expected
    severity = "warning" if what.startswith("W:") else "error"
    return (
        (found.line, found.key, found.severity) == (line, key, severity)
        and what.removeprefix("W:") in found.what
        and remedy in found.remedy
    )


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_file(wrong: Wrong, write: Write) -> None:
    path = write(wrong.text)
    found = problems(path)
    told = "\n".join(map(str, found))
    missing = [expected for expected in wrong.problems if not any(fits(problem, expected) for problem in found)]
    assert not missing, told
    assert len(found) == len(wrong.problems), told
    assert {problem.file for problem in found} == {str(path)}
    assert "hunter2" not in told
    assert "T0KEN" not in told


def test_there_are_many() -> None:
    assert len(WRONG) > 60
    assert len({wrong.name for wrong in WRONG}) == len(WRONG)
    assert sum(len(wrong.problems) > 1 for wrong in WRONG) > 10
