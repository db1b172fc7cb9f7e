"""What a changed file does with a capture, which has no checkpoint but a replication slot."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe.control.control_service import Action, JobPlan, Submission
from jobpipe.errors import ConfigError
from tests.control.world import World, job_of

SOURCE = {"type": "postgres-cdc", "hostname": "db", "database-name": "shop", "username": "u", "tables": ["public.t"]}


def of_capture(world: World, **changed: Any) -> Submission:
    source = {**SOURCE, **{key.replace("_", "-"): value for key, value in changed.items()}}
    return world.submission({"changes": {"source": source}, "other": job_of()})


def planned(world: World, submission: Submission) -> JobPlan:
    server = world.server()
    server.submit(of_capture(world))
    return server.plan(submission).jobs[0]


@pytest.mark.parametrize(
    ("changed", "is_another"),
    [
        ({"tables": ["public.t", "public.u"]}, False),
        ({"hostname": "db2"}, False),
        ({"batch_rows": 5}, False),
        ({"database_name": "shop2"}, True),
        ({"slot_name": "s"}, True),
        ({"publication_name": "p"}, True),
    ],
)
def test_a_changed_option_restarts_it(world: World, changed: dict[str, Any], is_another: bool) -> None:
    plan = planned(world, of_capture(world, **changed))
    assert plan.action in (Action.RESTARTED, Action.STARTED)
    assert plan.rows_again == ()
    told = [each for each in plan.reasons if "give the job another name" in each]
    assert bool(told) is is_another
    assert all("postgres-cdc database-name shop" in each for each in told)


def test_one_that_goes_leaves_its_slot(world: World) -> None:
    server = world.server()
    server.submit(of_capture(world))
    plans = {each.job: each for each in server.plan(world.submission({"other": job_of()})).jobs}
    assert plans["changes"].action is Action.STOPPED
    assert "its replication slot stays" in "; ".join(plans["changes"].reasons)


def test_it_begins_with_no_other_checkpoint(world: World) -> None:
    server = world.server()
    server.submit(of_capture(world), new_checkpoint=["other"])
    with pytest.raises(ConfigError, match="flows, captures and programs have no checkpoint"):
        server.submit(of_capture(world), new_checkpoint=["changes"])
