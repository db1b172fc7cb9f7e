"""The states of a job: all can be reached, and none but a new run leaves an end."""

from __future__ import annotations

import pytest

from jobpipe.pipelines.model.job_states import ENDED, FOLLOWING, JobState
from jobpipe_registry.job_records import ENDS


def test_each_state_says_what_follows() -> None:
    assert set(FOLLOWING) == set(JobState)


def test_each_state_can_be_reached() -> None:
    reached = {JobState.SUBMITTED}
    while more := {after for state in reached for after in FOLLOWING[state]} - reached:
        reached |= more
    assert reached == set(JobState)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_after_an_end_only_a_new_run_begins(state: JobState) -> None:
    assert FOLLOWING[state] == {JobState.SUBMITTED}


@pytest.mark.parametrize("state", sorted(set(JobState) - ENDED))
def test_each_other_state_has_a_way_to_the_end(state: JobState) -> None:
    assert FOLLOWING[state] & ENDED
    assert state not in FOLLOWING[state] or state is JobState.LOST  # of which more may be heard


def test_end_records_name_states() -> None:
    assert {JobState(name) for name in ENDS} == ENDED
