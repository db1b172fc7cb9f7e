"""Slots: named before their data exist, bound once; who holds the name, in which epoch, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.errors import DataLoss, Fenced
from jobpipe.store.log.retention import Retention
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.slots import KEPT
from tests.store.build import look_into, open_log, seal

AT_ONCE = Retention(time=0.0, bytes=0, ack_grace=0.0, subscription_expiry=1e9)


def held(log: TopicLog, name: str = "s") -> int:
    """Take the name."""
    log.subscriptions.subscribe(name)
    return log.subscriptions.grant(name, {"pid": 1})


def test_a_slot_is_bound_once(tmp_path: Path) -> None:
    """Also to nothing; each later binding gets the first, also in the next epoch."""
    log = open_log(tmp_path)
    grant = held(log)
    for slot in ("some", "none"):
        log.slots.add("s", grant, slot, log.batches.head())
        assert log.slots.get("s", grant, slot).end is None
    start = log.batches.head()
    assert log.slots.bind("s", grant, "none", start).end == start
    seal(log, 0)
    assert log.slots.bind("s", grant, "some", log.batches.head()).end == log.batches.head()
    end = log.batches.head()
    seal(log, 1)
    log.slots.add("s", grant, "some", log.batches.head())  # repeated, as after a commit of unknown outcome
    log.close()
    log = open_log(tmp_path)
    assert log.slots.bind("s", grant, "some", log.batches.head()).end == end
    assert log.slots.bind("s", grant, "none", log.batches.head()).end == start
    assert (log.slots.get("s", grant, "some").start, log.slots.get("s", grant, "some").epoch) == (start, 1)
    log.close()


def test_an_older_epoch_and_an_older_grant_bind_nothing(tmp_path: Path) -> None:
    """Fenced; the slot stays unbound."""
    old = open_log(tmp_path)
    grant = held(old)
    old.slots.add("s", grant, "a", old.batches.head())
    new = open_log(tmp_path)
    for change in (
        lambda: old.slots.bind("s", grant, "a", old.batches.head()),
        lambda: old.slots.add("s", grant, "b", old.batches.head()),
    ):
        with pytest.raises(Fenced):
            change()
    assert new.slots.get("s", grant, "a").end is None
    newer = new.subscriptions.grant("s", {"pid": 2})
    for change in (
        lambda: new.slots.bind("s", grant, "a", new.batches.head()),
        lambda: new.slots.add("s", grant, "b", new.batches.head()),
        lambda: new.slots.get("s", grant, "a"),
    ):
        with pytest.raises(Fenced):
            change()
    assert new.slots.get("s", newer, "a").end is None
    new.close()
    old.close()


def test_a_slot_that_is_not_known(tmp_path: Path) -> None:
    """Never a guess: data loss that names topic and slot; binding it makes none."""
    log = open_log(tmp_path)
    grant = held(log)
    for ask in (lambda: log.slots.get("s", grant, "x"), lambda: log.slots.bind("s", grant, "x", log.batches.head())):
        with pytest.raises(DataLoss, match="slot x") as caught:
            ask()
        assert (caught.value.fields["reason"], caught.value.fields["slot"]) == ("slot", "x")
    other = held(log, "other")
    log.slots.add("other", other, "x", log.batches.head())
    with pytest.raises(DataLoss):
        log.slots.get("s", grant, "x")  # another subscription's
    log.close()


def test_the_oldest_are_forgotten_and_all_with_their_subscription(tmp_path: Path) -> None:
    """So many of each name stay, however many there were."""
    log = open_log(tmp_path)
    grant, other = held(log), held(log, "other")
    log.slots.add("other", other, "0", log.batches.head())
    for number in range(KEPT + 5):
        log.slots.add("s", grant, str(number), log.batches.head())
    for number in range(5):
        with pytest.raises(DataLoss):
            log.slots.get("s", grant, str(number))
    assert log.slots.get("s", grant, "5").end is None
    assert log.slots.get("other", other, "0").end is None
    log.subscriptions.drop("s")
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
    log.subscriptions.first_position("s", log.batches.tail())
    seal(log, 1)
    start = log.batches.at(1)
    log.subscriptions.declare("s", grant, start)
    log.subscriptions.acknowledge("s", grant, start)
    log.slots.add("s", grant, "a", start)
    seal(log, 2)
    log.clock.tick(1.0)
    log.cleaner.retain(AT_ONCE)
    log.clock.tick(1.0)
    log.cleaner.retain(AT_ONCE)
    assert log.batches.tail() == start
    log.slots.bind("s", grant, "a", log.batches.head())
    log.subscriptions.drop_declared("s")  # its driver is away
    log.cleaner.retain(AT_ONCE)
    assert log.batches.tail() == start
    end = log.slots.get("s", grant, "a").end
    assert end == log.batches.head()
    log.subscriptions.acknowledge("s", grant, end)
    log.cleaner.retain(AT_ONCE)
    log.clock.tick(1.0)
    log.cleaner.retain(AT_ONCE)
    assert log.batches.tail() == log.batches.head()
    log.close()
