"""Slots: named before their data exist, bound once; who holds the name, in which epoch, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.errors import DataLoss, Fenced
from jobpipe.store import Retention, TopicLog
from jobpipe.store.slots import KEPT
from tests.store.build import look_into, open_log, seal

AT_ONCE = Retention(time=0.0, bytes=0, ack_grace=0.0, subscription_expiry=1e9)


def held(log: TopicLog, name: str = "s") -> int:
    """Take the name."""
    log.subscribe(name)
    return log.grant(name, {"pid": 1})


def test_a_slot_is_bound_once(tmp_path: Path) -> None:
    """Also to nothing; each later binding gets the first, also in the next epoch."""
    log = open_log(tmp_path)
    grant = held(log)
    for slot in ("some", "none"):
        log.add_slot("s", grant, slot, log.head())
        assert log.slot("s", grant, slot).end is None
    start = log.head()
    assert log.bind_slot("s", grant, "none", start).end == start
    seal(log, 0)
    assert log.bind_slot("s", grant, "some", log.head()).end == log.head()
    end = log.head()
    seal(log, 1)
    log.add_slot("s", grant, "some", log.head())  # repeated, as after a commit of unknown outcome
    log.close()
    log = open_log(tmp_path)
    assert log.bind_slot("s", grant, "some", log.head()).end == end
    assert log.bind_slot("s", grant, "none", log.head()).end == start
    assert (log.slot("s", grant, "some").start, log.slot("s", grant, "some").epoch) == (start, 1)
    log.close()


def test_an_older_epoch_and_an_older_grant_bind_nothing(tmp_path: Path) -> None:
    """Fenced; the slot stays unbound."""
    old = open_log(tmp_path)
    grant = held(old)
    old.add_slot("s", grant, "a", old.head())
    new = open_log(tmp_path)
    for change in (
        lambda: old.bind_slot("s", grant, "a", old.head()),
        lambda: old.add_slot("s", grant, "b", old.head()),
    ):
        with pytest.raises(Fenced):
            change()
    assert new.slot("s", grant, "a").end is None
    newer = new.grant("s", {"pid": 2})
    for change in (
        lambda: new.bind_slot("s", grant, "a", new.head()),
        lambda: new.add_slot("s", grant, "b", new.head()),
        lambda: new.slot("s", grant, "a"),
    ):
        with pytest.raises(Fenced):
            change()
    assert new.slot("s", newer, "a").end is None
    new.close()
    old.close()


def test_a_slot_that_is_not_known(tmp_path: Path) -> None:
    """Never a guess: data loss that names topic and slot; binding it makes none."""
    log = open_log(tmp_path)
    grant = held(log)
    for ask in (lambda: log.slot("s", grant, "x"), lambda: log.bind_slot("s", grant, "x", log.head())):
        with pytest.raises(DataLoss, match="slot x") as caught:
            ask()
        assert (caught.value.fields["reason"], caught.value.fields["slot"]) == ("slot", "x")
    other = held(log, "other")
    log.add_slot("other", other, "x", log.head())
    with pytest.raises(DataLoss):
        log.slot("s", grant, "x")  # another subscription's
    log.close()


def test_the_oldest_are_forgotten_and_all_with_their_subscription(tmp_path: Path) -> None:
    """So many of each name stay, however many there were."""
    log = open_log(tmp_path)
    grant, other = held(log), held(log, "other")
    log.add_slot("other", other, "0", log.head())
    for number in range(KEPT + 5):
        log.add_slot("s", grant, str(number), log.head())
    for number in range(5):
        with pytest.raises(DataLoss):
            log.slot("s", grant, str(number))
    assert log.slot("s", grant, "5").end is None
    assert log.slot("other", other, "0").end is None
    log.drop("s")
    log.close()
    log = look_into(tmp_path)
    assert log._db.value("SELECT count(*) FROM slots WHERE name = 's'") == 0
    assert log._db.value("SELECT count(*) FROM slots") == 1
    log.close()


def test_retention_keeps_what_a_slot_will_read(tmp_path: Path) -> None:
    """Bound or not, from its start; what lies before goes, and all goes when the slot behind is made."""
    log = open_log(tmp_path)
    grant = held(log)
    seal(log, 0)
    log.first_position("s", log.tail())
    seal(log, 1)
    start = log.at(1)
    log.declare("s", grant, start)
    log.acknowledge("s", grant, start)
    log.add_slot("s", grant, "a", start)
    seal(log, 2)
    log.tick(1.0)
    log.retain(AT_ONCE)
    log.tick(1.0)
    log.retain(AT_ONCE)
    assert log.tail() == start
    log.bind_slot("s", grant, "a", log.head())
    log.drop_declared("s")  # its driver is away
    log.retain(AT_ONCE)
    assert log.tail() == start
    end = log.slot("s", grant, "a").end
    assert end == log.head()
    log.acknowledge("s", grant, end)
    log.retain(AT_ONCE)
    log.tick(1.0)
    log.retain(AT_ONCE)
    assert log.tail() == log.head()
    log.close()
