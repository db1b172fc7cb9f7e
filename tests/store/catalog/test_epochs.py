"""Epochs at the end of the numbers, as an earlier version took them over: lowered where that harms no reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.errors import Fenced, SpoolError
from jobpipe.store.catalog.epoch_lowering import CatalogEpochs, lower_epochs, read_epochs
from jobpipe.store.spool.spool_files import CATALOG
from tests.store.build import TOPIC, look_into, open_log, seal

END = 2**53 - 1  # what a subscriber can be told
MOST = END - 1_000_000


def lower(home: Path) -> CatalogEpochs:
    return lower_epochs(home / TOPIC, TOPIC, MOST, END, fsync=False, shared=False)


def test_a_log_with_room_stays(tmp_path: Path) -> None:
    assert read_epochs(tmp_path / TOPIC, TOPIC, MOST) is None
    log = open_log(tmp_path, epoch=MOST)
    seal(log, 0)
    log.close()
    found = read_epochs(tmp_path / TOPIC, TOPIC, MOST)
    assert found == CatalogEpochs(tmp_path / TOPIC / CATALOG, MOST, MOST) == lower(tmp_path)


@pytest.mark.parametrize("high", [[END], [2**63 - 1], [MOST + 1, END, 2**63 - 1]])
def test_epochs_without_a_batch_are_lowered(tmp_path: Path, high: list[int]) -> None:
    """S6: and who took over under them is fenced, with those before him."""
    first = open_log(tmp_path, epoch=5)
    seal(first, 0)
    others = [open_log(tmp_path, epoch=epoch) for epoch in high]
    found = read_epochs(tmp_path / TOPIC, TOPIC, MOST)
    assert found is not None
    lowered = lower(tmp_path)
    assert (lowered.epoch, lowered.lowered) == (found.lowered, found.lowered)
    assert 5 < lowered.epoch <= 5 + len(high) + 1
    for old in (first, *others):
        with pytest.raises(Fenced):
            seal(old, 1)
    log = open_log(tmp_path, epoch=lowered.epoch + 1)
    seal(log, 1)
    log.batches.check(log.batches.at(1))
    assert (log.batches.at(1).epoch, log.batches.at(2).epoch) == (5, lowered.epoch + 1)


def test_batches_that_nobody_can_have_read_get_another_epoch(tmp_path: Path) -> None:
    """S6: no subscriber can be told of an epoch above 2^53-1."""
    first = open_log(tmp_path, epoch=5)
    seal(first, 0)
    for number, epoch in enumerate((2**63 - 2, 2**63 - 1), 1):
        seal(open_log(tmp_path, epoch=epoch), number)
    lowered = lower(tmp_path)
    assert lowered.epoch == 8
    log = look_into(tmp_path, fsync=False)
    assert [log.batches.at(n).epoch for n in range(4)] == [0, 5, 6, 7]
    log.take_over(9, "publisher")
    seal(log, 3)
    assert log.batches.at(4).epoch == 9
    assert sum(plan.rows for plan in log.planner.describe(log.batches.at(0), log.batches.at(4))) == 8


def test_batches_that_may_have_been_read_keep_their_epoch(tmp_path: Path) -> None:
    """S6: a checkpoint may hold it. Nothing is changed, and the error says what can be done."""
    seal(open_log(tmp_path, epoch=END), 0)
    with pytest.raises(SpoolError, match=f"from offset 0 on were sealed under epoch {END}.*new checkpoints"):
        lower(tmp_path)
    assert look_into(tmp_path, fsync=False).epoch == END
