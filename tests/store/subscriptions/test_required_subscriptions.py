"""Required subscriptions: what a publisher declares, what is changed while it runs, and which of them counts."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from jobpipe.store.log.topic_log import TopicLog
from tests.store.build import open_log, seal
from tests.store.catalog.test_retention import ALL


@pytest.fixture
def log(tmp_path: Path) -> TopicLog:
    log = open_log(tmp_path)
    assert log.required.declare(["billing"]) == {"billing"}
    return log


def required(log: TopicLog) -> set[str]:
    marked = {known.name for known in log.subscriptions.all() if known.required}
    assert marked == log.required.names()
    return marked


def test_a_change_outlives_coordinators_and_publishers(log: TopicLog, tmp_path: Path) -> None:
    """They open the topic again, and declare what they declared before."""
    assert log.required.change("audit", required=True) == {"audit", "billing"}
    assert log.required.change("billing", required=False) == {"audit"}
    for _ in range(2):
        log.close()
        log = open_log(tmp_path)
        assert log.required.names() == {"audit"}, "also where it is only served"
        assert log.required.declare(["billing"]) == {"audit"}
    assert required(log) == {"audit"}
    assert [known.name for known in log.subscriptions.all()] == ["audit", "billing"], "it stays, until it is dropped"


@pytest.mark.parametrize("declared", [["billing", "shipping"], ["shipping"], []])
def test_another_declaration_counts_alone(log: TopicLog, declared: list[str]) -> None:
    log.required.change("audit", required=True)
    log.required.change("billing", required=False)
    assert log.required.declare(declared) == set(declared)
    assert required(log) == set(declared)
    assert log.required.declare(declared) == set(declared)


def test_a_change_can_be_taken_back(log: TopicLog) -> None:
    for name in ("billing", "audit"):
        for _ in range(2):
            log.required.change(name, required=False)
        for _ in range(2):
            log.required.change(name, required=True)
    assert required(log) == {"audit", "billing"}
    log.required.change("audit", required=False)
    log.required.change("nobody", required=False)
    assert required(log) == {"billing"}
    assert log._db.value("SELECT count(*) FROM required") == 1, "nothing is left of what is as it was"


def test_nothing_declared_is_a_declaration_too(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.required.declare([])
    log.required.change("audit", required=True)
    assert log.required.declare([]) == {"audit"}
    assert log.required.declare(["billing"]) == {"billing"}


def test_a_new_one_keeps_what_is_there_and_one_that_is_none_expires(log: TopicLog) -> None:
    seal(log, 0)
    log.subscriptions.drop("billing")
    log.required.change("audit", required=True)
    assert list(log.subscriptions.names()) == ["audit"], "what was dropped is not made again by the way"
    assert log.subscriptions.get("audit").acked == log.batches.tail()
    log.clock.tick(1e12)
    assert log.cleaner.retain(ALL).expired == ()
    log.required.change("audit", required=False)
    assert log.cleaner.retain(ALL).expired == ("audit",)


def test_many_are_read_again_once(log: TopicLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1,000 of them, once for each took a second, in which nothing else was written."""
    reload = Mock(wraps=log.subscriptions.reload)
    monkeypatch.setattr(log.subscriptions, "reload", reload)
    names = {f"name-{number}" for number in range(50)}
    assert log.required.declare(names) == names
    assert required(log) == names
    assert set(log.subscriptions.names()) == names | {"billing"}
    assert reload.call_count == 1


def test_a_dropped_one_stays_required(log: TopicLog) -> None:
    log.subscriptions.drop("billing")
    assert log.required.names() == {"billing"}
    assert (log.status().required, log.status().subscriptions) == (("billing",), ()), "and can be seen"
    log.required.change("billing", required=False)
    assert log.required.names() == set()
    assert list(log.subscriptions.names()) == []
