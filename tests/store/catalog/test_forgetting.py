"""What a catalog forgets, so that it does not grow with the starts of publishers and the batches of its life."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from jobpipe.errors import DataLoss, Fenced
from jobpipe.publishing.first_publish_check import series_id
from jobpipe.store.catalog.epoch_lowering import lower_epochs
from jobpipe.store.catalog.position import Position
from jobpipe.store.log import retention
from jobpipe.store.log.retention import ONCE_KEPT, Retention
from jobpipe.store.log.topic_log import TopicLog
from tests.store.build import TOPIC, look_into, open_log, seal

ALL = Retention(time=0, bytes=0, ack_grace=0, subscription_expiry=1e9)  # whatever is acknowledged may go


def sizes(log: TopicLog) -> dict[str, int]:
    tables = [row[0] for row in log._db.all("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: int(log._db.value(f"SELECT count(*) FROM {table}")) for table in tables}  # noqa: S608 - its own names


def publish_once(home: Path, number: int) -> Position:
    """One life of a publisher, which writes one batch that does not come again."""
    log = open_log(home)
    end = seal(log, 0, query=series_id(f"job:run-{number}", once=True))
    log.clock.tick(ONCE_KEPT / 3)
    assert log.cleaner.retain(ALL).batches == 1
    log.close()
    return end


def test_no_table_grows_with_the_lives_of_publishers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "EPOCHS_KEPT", 5)
    found = []
    for number in range(24):
        publish_once(tmp_path, number)
        log = look_into(tmp_path)
        found.append(sizes(log))
        log.close()
    assert found[11] == found[23]
    assert found[23]["queries"] <= 4
    assert found[23]["epochs"] <= 7


def test_publishers_that_write_nothing_leave_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "EPOCHS_KEPT", 3)
    log = open_log(tmp_path)
    follow(log)
    end = seal(log, 0)
    log.close()
    for _ in range(9):
        log = open_log(tmp_path)
        log.cleaner.retain(ALL)
        log.close()
    log = open_log(tmp_path)
    log.cleaner.retain(ALL)
    assert sizes(log)["epochs"] == 4  # of the batch, and the newest three
    log.batches.check(end)
    assert log.batches.at(1) == end
    log.close()


def follow(log: TopicLog) -> int:
    """Let a subscription keep what is there; return its grant."""
    log.subscriptions.subscribe("s")
    grant = log.subscriptions.grant("s", {})
    log.subscriptions.first_position("s", log.batches.tail())
    return grant


def test_an_epoch_that_was_given_out_fences_what_is_lowered(tmp_path: Path) -> None:
    """The repair of a number that is too high gives out the next ones: not one under which a process still stands."""
    open_log(tmp_path, epoch=5).close()
    stands = open_log(tmp_path, epoch=7)
    high = open_log(tmp_path, epoch=2000)
    high.cleaner.retain(ALL)
    high.close()
    lower_epochs(tmp_path / TOPIC, TOPIC, 1000, 10**9, fsync=False, shared=False)
    with pytest.raises(Fenced):
        seal(stands, 0)
    stands.close()


def test_a_run_is_in_the_recovery_point_also_after_many_checkpoints(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(9):
        seal(log, 0, query=f"checkpoint-{number}")
    once = series_id("job:run", once=True)
    seal(log, 0, query=once)
    for _ in range(9):  # publishers without ids, of which no batch comes again
        seal(log, 0, query=series_id(str(uuid.uuid4()), once=True))
    seal(log, 1, query="checkpoint-8")
    known = [query for query, _ in log.recovery.point().queries]
    assert known == ["checkpoint-7", "checkpoint-6", "checkpoint-5", "checkpoint-4", once]
    log.close()


def test_a_series_is_known_for_a_week_and_its_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    once, for_ever = series_id("job:run", once=True), series_id("mine", once=False)
    grant = follow(log)
    for name in (for_ever, once, "query"):
        end = seal(log, 0, query=name)
    log.clock.tick(ONCE_KEPT + 1)
    log.cleaner.retain(ALL)
    assert log.batches.last_sealed(once) is not None  # its batch is there
    log.subscriptions.acknowledge("s", grant, end)
    log.cleaner.retain(ALL)
    log.cleaner.retain(ALL)
    assert log.batches.last_sealed(once) is None
    assert log.batches.last_sealed(for_ever) is not None
    assert log.batches.last_sealed("query") is not None
    log.close()


def test_the_newest_query_is_not_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    once = series_id("job:run", once=True)
    seal(log, 0, query=once)
    log.clock.tick(ONCE_KEPT * 2)
    log.cleaner.retain(ALL)
    log.cleaner.retain(ALL)
    newest = log.batches.newest_query()
    assert newest is not None
    assert newest.query_id == once
    log.close()


def test_a_position_whose_epoch_is_forgotten_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "EPOCHS_KEPT", 2)
    ends = [publish_once(tmp_path, number) for number in range(6)]
    log = look_into(tmp_path)
    for end in ends[:-1]:
        with pytest.raises(DataLoss) as told:
            log.batches.check(end)
        assert told.value.fields["reason"] == "removed"
    log.batches.check(ends[-1])
    wrong = Position(ends[-1].log, ends[-1].epoch + 7, ends[-1].n)
    with pytest.raises(DataLoss) as told:
        log.batches.check(wrong)
    assert told.value.fields["reason"] == "epoch"
    log.close()
