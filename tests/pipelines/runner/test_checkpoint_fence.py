"""The mark next to a checkpoint: who is told that it was replaced, and who writes its mark again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from jobpipe.jobs.runner.checkpoint_fence import NAME, Fence
from jobpipe.jobs.runner.job_lease import LeaseLost
from jobpipe_registry.job_records import Lease

NO_SPARK = cast(SparkSession, None)  # for folders of this host


class Attempt:
    """An attempt with a mark; ``asked`` counts the questions to the registry, which gives ``answer``."""

    def __init__(self, folder: Path, number: int) -> None:
        self.asked = 0
        self.answer: bool | LeaseLost = True
        lease = Lease(run="r", attempt=number, host="h", pid=1, started=1.0, instance=f"i{number}")
        self.fence = Fence(NO_SPARK, f"file:{folder}", lease, self._confirm)

    def _confirm(self) -> bool:
        self.asked += 1
        if isinstance(self.answer, LeaseLost):
            raise self.answer
        return self.answer


def marked(folder: Path) -> Any:
    return json.loads((folder / NAME).read_text())["attempt"]


def test_a_later_attempt_has_begun(tmp_path: Path) -> None:
    first, second = Attempt(tmp_path, 1), Attempt(tmp_path, 2)
    first.fence.mark()
    first.fence.check()
    second.fence.mark()
    with pytest.raises(LeaseLost, match="attempt 2 of run r has begun"):
        first.fence.check()
    second.fence.check()
    assert (first.asked, second.asked) == (0, 0)


def test_an_earlier_attempt_marks_late(tmp_path: Path) -> None:
    """It stood still before it wrote: the registry decides, so that one of the two goes on, and one ends."""
    first, second = Attempt(tmp_path, 1), Attempt(tmp_path, 2)
    second.fence.mark()
    first.fence.mark()
    second.answer = False
    second.fence.check()
    assert marked(tmp_path) == 1
    second.answer = True
    second.fence.check()
    assert marked(tmp_path) == 2
    with pytest.raises(LeaseLost):
        first.fence.check()


def test_a_lower_number_of_a_registry_that_was_lost(tmp_path: Path) -> None:
    """Numbers begin again there: the attempt with the higher one is not the one that was ordered."""
    old, new = Attempt(tmp_path, 7), Attempt(tmp_path, 1)
    old.fence.mark()
    new.fence.mark()
    old.answer = LeaseLost("attempt 1 was ordered")
    with pytest.raises(LeaseLost, match="was ordered"):
        old.fence.check()
    new.fence.check()
    assert marked(tmp_path) == 1


def test_a_mark_that_cannot_be_read(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, 1)
    attempt.fence.check()
    (tmp_path / NAME).write_text("{")
    attempt.fence.check()
