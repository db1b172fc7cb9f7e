"""What a capture of MariaDB or MySQL knows of the transaction that is coming."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.cdc.mariadb.binlog.binlog_position import GtidState, Position
from jobpipe.cdc.mariadb.mysql_note import OpenTransaction, Place
from jobpipe.cdc.mariadb.mysql_state import CapturedTable, LogState, TopicState
from jobpipe.cdc.mariadb.server.server_catalog import FoundTable

NONE = cast("Any", None)


class Untouched(list[CapturedTable]):
    """Tables that are not to be looked at."""

    def __iter__(self) -> Iterator[CapturedTable]:
        raise AssertionError("all tables of a topic were looked at")


def place(offset: int, gtids: str) -> Place:
    return Place(Position("binlog.000001", offset), GtidState.of(gtids, True))


def topic(state: LogState, name: str, *tables: str) -> list[CapturedTable]:
    """Add a topic with tables; return these."""
    state.topics[name] = made = TopicState(cast("Any", SimpleNamespace(topic=name)))
    for each in tables:
        found = FoundTable("d", each, "BASE TABLE", "InnoDB", 0)
        made.tables.append(CapturedTable(found, NONE, made, NONE, ""))
        state.tables["d", each] = made.tables[-1]
    return made.tables


@pytest.mark.parametrize("same_server", [True, False])
def test_what_a_topic_has_is_skipped_and_counted_once(same_server: bool) -> None:
    """Two topics are ahead of a third one by a transaction, the first also by two changes of the one after it."""
    state = LogState(NONE, True, "1", place(100, "0-1-5"))
    a1, a2 = topic(state, "a", "a1", "a2")
    (b1,) = topic(state, "b", "b1")
    (c1,) = topic(state, "c", "c1")
    tables = (a1, a2, b1, c1)
    state.topics["a"].at, state.topics["a"].open = place(300, "0-1-6"), OpenTransaction("0-1-8", {"d.a1": 2})
    state.topics["b"].at, state.topics["c"].at = place(100, "0-1-5"), place(300, "0-1-6")
    state.replay(same_server=same_server)
    assert [each.replaying for each in state.topics.values()] == [True, False, True]

    state.begin("0-1-6", Position("binlog.000001", 100))
    for table, count in ((a1, 1), (b1, 1), (b1, 2)):
        state.count(table, count)
    assert [each.changes for each in tables] == [1, 0, 3, 0]
    assert [each.skipped for each in tables] == [math.inf, math.inf, 0, math.inf]
    state.reach(Position("binlog.000001", 300), "0-1-6")
    assert [each.replaying for each in state.topics.values()] == [True, False, False]

    state.begin("0-1-8", Position("binlog.000001", 300))
    assert [(each.changes, each.skipped, each.had) for each in tables] == [(0, 2, 2), (0, 0, 0), (0, 0, 0), (0, 0, 0)]
    assert not state.is_replaying
    state.count(a2, 1)
    state.reach(Position("binlog.000001", 400), "0-1-8")

    state.begin("0-1-9", Position("binlog.000001", 400))
    assert [(each.changes, each.skipped) for each in tables] == [(0, 0)] * 4

    for each in state.topics.values():
        each.tables = Untouched(each.tables)
    state.count(b1, 4)
    state.reach(Position("binlog.000001", 500), "0-1-9")
    state.begin("0-1-10", Position("binlog.000001", 500))
    assert b1.changes == 0
