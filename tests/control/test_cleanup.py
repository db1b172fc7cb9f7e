"""Subscriptions of jobs whose file has changed, while the publisher runs on."""

from __future__ import annotations

from typing import Any

from jobpipe.control.control_server import ControlServer
from jobpipe.pipelines.model.job_states import JobState
from tests.control.world import NAME, World, job_of, wait
from tests.pipelines.waiting import eventually

READER = ("flights", f"{NAME}.report")


def submit(world: World, server: ControlServer, reader: str | None) -> None:
    """Submit a publisher of `flights`, and a job that reads this topic."""
    jobs: dict[str, Any] = {"publish": job_of(sink={"type": "jobpipe", "topic": "flights"})}
    if reader is not None:
        jobs["report"] = job_of(source={"type": "jobpipe", "subscribe": reader})
    server.submit(world.submission(jobs), new_checkpoint=["report"] if reader == "other" else [])


def test_a_job_that_reads_another_topic_leaves_no_subscription_behind(world: World) -> None:
    server = world.server()
    submit(world, server, "flights")
    world.work(1, "publish")
    wait(server, JobState.RUNNING, "publish")
    submit(world, server, "other")
    server.close()
    assert world.topics.dropped == []  # the topic is away
    world.topics.served.add("flights")
    world.server()
    eventually(lambda: world.topics.dropped == [READER])
    assert world.topics.required == {READER: False}
    assert len([each for each in world.cluster.submitted if each.job == "publish"]) == 1


def test_a_drop_that_waits_is_forgotten_if_the_job_reads_the_topic_again(world: World) -> None:
    server = world.server()
    submit(world, server, "flights")
    submit(world, server, "other")
    server.submit(
        world.submission({"report": job_of(source={"type": "jobpipe", "subscribe": "flights"})}),
        new_checkpoint=["report"],
    )
    server.close()
    world.topics.served.update(("flights", "other"))
    world.server()
    eventually(lambda: ("other", f"{NAME}.report") in world.topics.dropped)
    assert READER not in world.topics.dropped


def test_a_reader_that_is_added_is_required_of_a_publisher_that_runs_on(world: World) -> None:
    world.topics.served.update(("flights", "other"))
    server = world.server()
    submit(world, server, None)
    world.work(1, "publish")
    wait(server, JobState.RUNNING, "publish")
    submit(world, server, "flights")
    eventually(lambda: world.topics.required == {READER: True})
    assert world.topics.dropped == []
