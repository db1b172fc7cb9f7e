"""Every wrong file gives exactly its problems: line, key, what is wrong, and what to do."""

from __future__ import annotations

import pytest

from tests.pipelines.conftest import Write, problems
from tests.pipelines.file.wrong import Expected, Wrong, read_corpus

TOO_MANY = "".join(f"  a{number}: {{application: pipeline.yaml}}\n" for number in range(1001))
WRONG = (
    *read_corpus(),
    Wrong(
        "too many jobs",
        f"pipeline: {{name: x}}\njobs:\n{TOO_MANY}",
        (Expected(2, "there are 1001 jobs", "at most 1000", "jobs"),),
    ),
)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_file(wrong: Wrong, write: Write) -> None:
    path = write(wrong.text)
    found = problems(path)
    told = "\n".join(map(str, found))
    missing = [expected for expected in wrong.problems if not any(map(expected.fits, found))]
    assert not missing, told
    assert len(found) == len(wrong.problems), told
    assert {problem.file for problem in found} == {str(path)}
    assert "hunter2" not in told
    assert "T0KEN" not in told


def test_there_are_many() -> None:
    assert len(WRONG) > 60
    assert len({wrong.name for wrong in WRONG}) == len(WRONG)
    assert sum(len(wrong.problems) > 1 for wrong in WRONG) > 10
