"""Topics that are served on for the readers of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.errors import LinkBroken, TopicNotFound
from jobpipe.jobs.monitor import keep_serving
from jobpipe.jobs.monitor.keep_serving import KeepServing
from jobpipe.pipelines.model.graph import TopicNode, graph_of
from tests.pipelines.conftest import Write, loaded

FILE = """
pipeline: {name: flights}
jobs:
  publish:
    source: {type: rate}
    sink: {type: jobpipe, topic: flights, final: true}
  report:
    source: {type: jobpipe, subscribe: flights}
    sink: {type: console}
"""


class Served:
    """Stand-ins of the test: what the next look at the newest one finds."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.closed = 0
        self.answer: Any = True

    def __call__(self, config: Any, name: str) -> Served:
        self.made.append(name)
        return self

    def serves(self, wait: float) -> bool:
        if isinstance(self.answer, Exception):
            error, self.answer = self.answer, True
            raise error
        return bool(self.answer)

    def close(self) -> None:
        self.closed += 1


class Admin:
    def locate(self, name: str) -> None:
        raise TopicNotFound("nobody serves it")


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Served:
    found = Served()
    monkeypatch.setattr(keep_serving, "SpoolServer", found)
    monkeypatch.setattr(keep_serving, "check_spool", lambda config, name: None)
    return found


@pytest.fixture
def jobs() -> dict[str, Any]:
    return {"publish": SimpleNamespace(ended=True), "report": SimpleNamespace(ended=False)}


@pytest.fixture
def topic(write: Write) -> TopicNode:
    (node,) = graph_of(loaded(write(FILE))).topics
    return node


@pytest.fixture
def serving(topic: TopicNode, jobs: dict[str, Any], tmp_path: Path) -> KeepServing:
    return KeepServing(
        SimpleNamespace(),  # type: ignore[arg-type]
        Admin(),  # type: ignore[arg-type]
        lambda: [topic],
        lambda name: not jobs[name].ended,
    )


def test_from_the_second_look_on(
    serving: KeepServing, topic: TopicNode, stand_ins: Served, jobs: dict[str, Any]
) -> None:
    """At the first one a coordinator may be about to follow another."""
    serving._check_topic(topic)
    assert stand_ins.made == []
    serving._check_topic(topic)
    serving._check_topic(topic)
    assert (stand_ins.made, stand_ins.closed) == (["flights"], 0)
    jobs["report"].ended = True
    serving._check_topic(topic)
    serving._check_topic(topic)
    assert (stand_ins.made, stand_ins.closed) == (["flights"], 1)


def test_not_while_its_job_lives(
    serving: KeepServing, topic: TopicNode, stand_ins: Served, jobs: dict[str, Any]
) -> None:
    jobs["publish"].ended = False
    for _ in range(3):
        serving._check_topic(topic)
    assert stand_ins.made == []


@pytest.mark.parametrize("answer", [LinkBroken("it was killed"), False])
def test_one_that_ended_is_made_anew(serving: KeepServing, topic: TopicNode, stand_ins: Served, answer: Any) -> None:
    serving._check_topic(topic)
    serving._check_topic(topic)
    stand_ins.answer = answer
    if answer is False:
        serving._check_topic(topic)
    else:
        with pytest.raises(LinkBroken):
            serving._check_topic(topic)
    assert stand_ins.closed == 1
    stand_ins.answer = True
    serving._check_topic(topic)
    serving._check_topic(topic)
    assert (stand_ins.made, stand_ins.closed) == (["flights", "flights"], 1)


def test_a_topic_that_nobody_names_any_more_is_left(serving: KeepServing, topic: TopicNode, stand_ins: Served) -> None:
    serving._check_topic(topic)
    serving._check_topic(topic)
    serving._stop_serving_others([topic])
    assert stand_ins.closed == 0
    serving._stop_serving_others([])
    assert (stand_ins.closed, serving._serving) == (1, {})
