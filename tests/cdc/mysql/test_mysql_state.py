"""What a capture of MariaDB or MySQL knows of the transaction that is coming."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

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


def test_what_a_topic_has_is_skipped_and_counted_once() -> None:
    """One topic is ahead of the other by a transaction, and two changes of the one after it."""
    state = LogState(NONE, True, "1", place(100, "0-1-5"))
    a1, a2 = topic(state, "a", "a1", "a2")
    (b1,) = topic(state, "b", "b1")
    state.topics["a"].at, state.topics["a"].open = place(300, "0-1-7"), OpenTransaction("0-1-8", {"d.a1": 2})
    state.topics["b"].at = place(100, "0-1-5")
    state.replay(same_server=True)
    assert state.is_replaying

    state.begin("0-1-6", Position("binlog.000001", 100))
    for table, count in ((a1, 1), (b1, 1), (b1, 2)):
        state.count(table, count)
    assert [(each.changes, each.skipped) for each in (a1, a2, b1)] == [(1, float("inf")), (0, float("inf")), (3, 0)]
    state.reach(Position("binlog.000001", 300), "0-1-6")

    state.begin("0-1-8", Position("binlog.000001", 300))
    assert [(each.changes, each.skipped) for each in (a1, a2, b1)] == [(0, 2), (0, 0), (0, 0)]
    assert (state.is_replaying, a1.had, a2.had) == (False, 2, 0)
    state.count(a2, 1)

    state.begin("0-1-9", Position("binlog.000001", 400))
    assert [(each.changes, each.skipped) for each in (a1, a2, b1)] == [(0, 0)] * 3

    for each in state.topics.values():
        each.tables = Untouched(each.tables)
    state.count(b1, 4)
    state.reach(Position("binlog.000001", 500), "0-1-9")
    state.begin("0-1-10", Position("binlog.000001", 500))
    assert b1.changes == 0
