"""The oracle itself: it must find every fault that is planted, and none where there is none."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from jobpipe.testing import SCHEMA, Checker, Journal, NumberedRows

ROWS = NumberedRows("orders", partitions=2, rows=3)


def sealed(*batch_ids: int, open_: tuple[int, ...] = ()) -> Journal:
    """Return a journal in which some batches are sealed, and some only intended."""
    journal = Journal()
    for batch_id in sorted({*batch_ids, *open_}):
        journal.intend(batch_id, ROWS.ranges(batch_id))
        if batch_id in batch_ids:
            journal.seal(batch_id)
    return journal


def delivery(*batch_ids: int) -> list[pa.Table]:
    """Return the tables of some batches, in order."""
    return [table for batch_id in batch_ids for table in ROWS.tables(batch_id)]


def faults(journal: Journal, tables: list[pa.Table]) -> dict[str, list[tuple[int, int]]]:
    """Return what the checker finds."""
    checker = Checker(ROWS, journal)
    for table in tables:
        checker.take(table)
    return checker.report().faults


def changed(table: pa.Table, column: str, row: int, value: object) -> pa.Table:
    """Return the table with one value changed."""
    values = table.column(column).to_pylist()
    values[row] = value
    index = table.schema.get_field_index(column)
    return table.set_column(index, SCHEMA.field(column), pa.array(values, SCHEMA.field(column).type))


def test_sound_delivery_has_no_fault() -> None:
    """All sealed rows, once, in order: partitions may come in any order to each other."""
    checker = Checker(ROWS, sealed(0, 1, 2))
    for table in (*delivery(0), *reversed(delivery(1)), *delivery(2)):
        for batch in table.to_batches(max_chunksize=2):
            checker.take(batch)
    report = checker.check()
    assert (report.rows, report.faults, checker.complete) == (18, {}, True)


def test_nothing_sealed_and_nothing_arrived_is_sound() -> None:
    """The empty case."""
    assert faults(Journal(), []) == {}


def test_lost_batch() -> None:
    """A batch that is missing in the middle."""
    assert faults(sealed(0, 1, 2), delivery(0, 2)) == {"lost": [(0, 3), (0, 4), (0, 5), (1, 3), (1, 4), (1, 5)]}


def test_lost_last_row() -> None:
    """The newest row counts too."""
    assert faults(sealed(0), [ROWS.table(0, 0, 3), ROWS.table(1, 0, 2)]) == {"lost": [(1, 2)]}


def test_lost_partition() -> None:
    """A partition of which nothing ever arrived."""
    assert faults(sealed(0), [ROWS.table(1, 0, 3)]) == {"lost": [(0, 0), (0, 1), (0, 2)]}


def test_duplicated_batch() -> None:
    """A replay that was published twice."""
    found = faults(sealed(0, 1), delivery(0, 1, 1))
    assert found == {"duplicated": [(0, 3), (0, 4), (0, 5), (1, 3), (1, 4), (1, 5)]}


def test_swapped_batches() -> None:
    """A later batch came first: the rows of the earlier one are out of order."""
    assert faults(sealed(0, 1), delivery(1, 0))["misordered"] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_swapped_rows() -> None:
    """Inside one batch too."""
    table = ROWS.table(0, 0, 3).take([0, 2, 1])
    assert faults(sealed(0), [table, ROWS.table(1, 0, 3)]) == {"misordered": [(0, 1)]}


@pytest.mark.parametrize(
    ("column", "value"), [("payload", "rubbish"), ("digest", 1), ("number", 7), ("partition", 5), ("payload", "")]
)
def test_damaged_row(column: str, value: object) -> None:
    """Whatever value changes, the row does not fit itself any more, and the right one is lost."""
    tables = delivery(0)
    tables[0] = changed(tables[0], column, 1, value)
    found = faults(sealed(0), tables)
    assert len(found["damaged"]) == 1
    assert found["lost"] == [(0, 1)]


def test_row_of_another_topic() -> None:
    """The same numbers of another topic are damage, not delivery."""
    found = faults(sealed(0), [*NumberedRows("other", partitions=1, rows=3).tables(0), ROWS.table(1, 0, 3)])
    assert found == {"damaged": [(0, 0), (0, 1), (0, 2)], "lost": [(0, 0), (0, 1), (0, 2)]}


def test_row_that_was_never_sealed() -> None:
    """Rows that the journal does not know must not be visible."""
    assert faults(sealed(0), delivery(0, 1))["unsealed"] == [(0, 3), (0, 4), (0, 5), (1, 3), (1, 4), (1, 5)]


def test_open_batch_may_arrive_or_not_but_only_whole() -> None:
    """Its publisher died before it was told."""
    journal = sealed(0, open_=(1,))
    assert faults(journal, delivery(0)) == {}
    assert faults(journal, delivery(0, 1)) == {}
    assert faults(journal, [*delivery(0), ROWS.table(0, 3, 5)]) == {"unsealed": [(0, 3), (0, 4)]}


def test_check_names_topic_and_rows() -> None:
    """The text is what a failed test shows."""
    checker = Checker(ROWS, sealed(0))
    checker.take(ROWS.table(0, 0, 3))
    with pytest.raises(AssertionError, match=r"topic 'orders': 3 rows arrived; 3 lost .*\(1, 0\), \(1, 1\), \(1, 2\)"):
        checker.check()


def test_progress() -> None:
    """The longest wait between two arrivals counts, the one for the first included."""
    now = [0.0]
    checker = Checker(ROWS, sealed(0, 1), clock=lambda: now[0])
    for step, table in zip((1.0, 0.5, 9.0, 0.0), delivery(0, 1), strict=True):
        now[0] += step
        checker.take(table)
    assert checker.check(max_pause=10.0).longest_pause == 9.0
    with pytest.raises(AssertionError, match=r"no progress for 9\.0 s"):
        checker.check(max_pause=5.0)


def test_missing_column_is_told() -> None:
    """A delivery without the four columns cannot be checked."""
    with pytest.raises(AssertionError, match="digest"):
        Checker(ROWS, sealed(0)).take(ROWS.table(0, 0, 1).drop_columns(["digest"]))


def test_rows_are_the_same_each_time_and_differ_by_place() -> None:
    """A replay can be played; no two rows are alike."""
    assert ROWS.tables(3)[1].equals(NumberedRows("orders", partitions=2, rows=3).tables(3)[1])
    payloads = [value for table in delivery(0, 1, 2) for value in table.column("payload").to_pylist()]
    assert len(set(payloads)) == len(payloads) == 18
    wide = NumberedRows("orders", rows=2, payload=1000).tables(0)[0]
    assert {len(value) for value in wide.column("payload").to_pylist()} == {1000}


def test_journal_in_a_file_is_read_by_another_process(tmp_path: Path) -> None:
    """What was appended counts, a torn last line does not."""
    path = tmp_path / "journal"
    journal = Journal(path)
    with journal.sealing(0, ROWS.ranges(0)):
        pass
    journal.intend(1, ROWS.ranges(1))
    with path.open("a") as file:
        file.write('{"what": "seal')
    again = Journal(path)
    assert again.sealed() == journal.sealed() == {0: [(0, 3)], 1: [(0, 3)]}
    assert again.possible() == {0: [(0, 3), (3, 6)], 1: [(0, 3), (3, 6)]}
    assert (again.batches, again.rows) == (1, 6)


def test_journal_of_a_failed_seal_stays_open() -> None:
    """An error inside the block leaves the batch intended only."""
    journal = Journal()
    with pytest.raises(OSError, match="disk"), journal.sealing(0, ROWS.ranges(0)):
        raise OSError("disk")
    assert (journal.batches, journal.possible()) == (0, {0: [(0, 3)], 1: [(0, 3)]})


def test_journal_replayed_batch_counts_once() -> None:
    """Intending and sealing again changes nothing."""
    journal = sealed(0)
    with journal.sealing(0, ROWS.ranges(0)):
        pass
    assert journal.rows == 6


def test_a_batch_is_open_until_it_is_known_to_be_sealed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    assert not journal.is_open(0)
    journal.intend(0, {0: (0, 10)})
    assert Journal(tmp_path / "journal").is_open(0)  # of a publisher that was killed
    journal.seal(0)
    assert not Journal(tmp_path / "journal").is_open(0)
