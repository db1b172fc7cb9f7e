"""Rows that a catalog's connection keeps for the next time: never older than the catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.store.catalog.catalog_file import Database
from tests.store.build import look_into, open_log, seal


class Asked:
    """Counts what SQLite is asked."""

    def __init__(self, database: Database) -> None:
        self.queries: list[str] = []
        database._connection.set_trace_callback(self.queries.append)

    def selects(self) -> int:
        found = sum(query.startswith("SELECT") for query in self.queries)
        self.queries.clear()
        return found


def test_the_second_status_asks_for_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    log.subscriptions.subscribe("s")
    asked = Asked(log._db)
    first = log.status()
    assert asked.selects() > 10
    second = log.status()
    assert asked.selects() == 0
    assert (second.head, second.rows) == (first.head, first.rows)
    assert [line.name for line in second.subscriptions] == ["s"]


def test_a_change_of_ours_is_seen(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert (log.status().head.n, log.status().head.n) == (0, 0)
    seal(log, 0)
    assert (log.status().head.n, log.status().rows) == (1, 2)
    log.subscriptions.subscribe("s")
    assert [line.name for line in log.status().subscriptions] == ["s"]


def test_an_acknowledgement_in_memory_is_seen(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.subscriptions.subscribe("s")
    grant = log.subscriptions.grant("s", {})
    head = seal(log, 0)
    assert log.status().subscriptions[0].lag.batches == 1
    log.subscriptions.acknowledge("s", grant, head)
    assert log.status().subscriptions[0].lag.batches == 0


def test_a_change_of_another_process_is_seen(tmp_path: Path) -> None:
    """It takes the log over; ours is fenced, and still tells no lies."""
    log = open_log(tmp_path)
    seal(log, 0)
    assert log.status().head.n == 1
    other = look_into(tmp_path)
    other.take_over(log.epoch + 1, "other")
    seal(other, 1)
    assert log.status().head.n == 2


def test_what_was_rolled_back_is_not_kept(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seal(log, 0)
    log.status()

    def fail() -> None:
        with log._db.write():
            log._db.execute("UPDATE meta SET next_n = 7")
            assert log.batches.next_n() == 7
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert log.status().head.n == 1


def test_one_row_and_all_rows_are_kept_apart(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.subscriptions.subscribe("a")
    log.subscriptions.subscribe("b")
    query = "SELECT name FROM subscriptions WHERE required = ? ORDER BY name"
    for _ in range(2):
        with log._db.read_again():
            one, rows = log._db.one(query, 0), log._db.all(query, 0)
            assert one is not None
            assert (one["name"], [row["name"] for row in rows]) == ("a", ["a", "b"])
            assert log._db.one(query, 1) is None
            assert list(log._db.all(query, 1)) == []
