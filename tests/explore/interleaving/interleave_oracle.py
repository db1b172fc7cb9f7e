"""What must be true of a log after two coordinators have worked on it."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pyarrow as pa

from jobpipe.errors import Fenced, JobpipeError
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.store.spool.spool_files import CATALOG
from jobpipe.testing import Checker
from tests.explore.interleaving.interleave_log import FLOW, HISTORY, PARTITIONS, TOPIC, World, part_tables
from tests.store.build import decode, pieces_of


def judge(world: World, checked: Checker) -> list[str]:
    """Return what is wrong with the log that is there now.

    Args:
        checked: Has the rows of the batches before :data:`HISTORY`, or before 3 where that one was taken back.
    """
    faults: list[str] = []
    raw = sqlite3.connect(world.directory / CATALOG)
    try:
        health = [row[0] for row in raw.execute("PRAGMA integrity_check")]
        if health != ["ok"]:
            return [f"integrity_check: {health[:3]}"]
        _judge_tables(world, raw, faults)
    except sqlite3.Error as error:
        return [f"the catalog cannot be read: {error}"]
    finally:
        raw.close()
    try:
        _judge_rows(world, checked, faults)
    except (JobpipeError, AssertionError, OSError, pa.ArrowException) as error:
        faults.append(f"what is sealed cannot be read: {error!r}"[:300])
    return faults


def _judge_tables(world: World, raw: sqlite3.Connection, faults: list[str]) -> None:
    (epoch, next_n, total) = raw.execute("SELECT epoch, next_n, total_rows FROM meta").fetchone()
    batches = {row[0]: row[1:] for row in raw.execute("SELECT n, epoch, batch_id, rows, is_end FROM batches")}
    numbers = sorted(batches)
    if numbers != list(range(next_n - len(numbers), next_n)):
        faults.append(f"batches {numbers}, and the next is {next_n}")
    newest = raw.execute("SELECT max(epoch) FROM epochs").fetchone()[0]
    if newest is not None and newest != epoch:
        faults.append(f"the newest epoch is {newest}, the catalog's {epoch}")
    for n, (sealed_by, *_) in batches.items():
        row = raw.execute("SELECT epoch FROM epochs WHERE first_n <= ? ORDER BY first_n DESC, epoch DESC LIMIT 1", (n,))
        owner = row.fetchone()
        if owner is None or owner[0] != sealed_by:
            faults.append(f"batch {n} was sealed by epoch {sealed_by}, by the table of epochs it is of {owner}")
    for batch_id, position in world.seals:
        found = batches.get(position.n - 1)
        wrong = found is None or found[1] != batch_id or (found[0] != position.epoch and batch_id != HISTORY - 1)
        if wrong and not (world.mended and batch_id <= HISTORY):
            faults.append(f"batch {batch_id} was answered {position.place} of epoch {position.epoch}, is {found}")
    ids = [found[1] for found in batches.values() if not found[3] and found[1] >= 0]  # of a query
    if len(ids) != len(set(ids)):
        faults.append(f"batches are sealed twice: {sorted(ids)}")
    if sum(1 for found in batches.values() if found[3]) > 1:
        faults.append("there are two end marks")
    summed = raw.execute("SELECT max(cum_rows) FROM batches").fetchone()[0]
    if summed is not None and summed != total:
        faults.append(f"{total} rows in all, the newest batch says {summed}")
    for name, n in world.acked.items():
        row = raw.execute("SELECT acked_n FROM subscriptions WHERE name = ?", (name,)).fetchone()
        if row is None or row[0] < n:
            faults.append(f"{name} has acknowledged {n}, stored is {row}")
    for slot, end in world.slots:
        row = raw.execute('SELECT "end" FROM slots WHERE slot = ?', (slot,)).fetchone()
        if row is None or f'"n": {end.n},' not in row[0]:
            faults.append(f"slot {slot[:4]} was bound to {end.n}, stored is {row}")
    if len(world.grants) != len(set(world.grants)):
        faults.append(f"a grant was given twice: {world.grants}")
    if numbers and world.leased and numbers[0] > min(world.leased):
        faults.append(f"leased from {min(world.leased)}, removed up to {numbers[0]}")


def _judge_rows(world: World, checker: Checker, faults: list[str]) -> None:
    published: dict[int, list[pa.Table]] = {}
    reader = CatalogReader.open(world.directory, TOPIC)
    try:
        parts = {n for (n,) in reader._db.all("SELECT n FROM batches WHERE query_id = '' AND NOT is_end")}
        moved = reader._db.value("SELECT n FROM cursors WHERE flow = ?", FLOW.flow) or 0
        for partition in range(PARTITIONS):
            for piece in pieces_of(reader, reader.batches.tail(), reader.batches.head(), partition):
                table = decode(
                    replace(piece, path=world.hosts / piece.path.name) if piece.host and piece.path else piece
                )
                if piece.n in parts:
                    published.setdefault(partition, []).append(table)
                elif piece.n >= HISTORY:  # what lies before was taken
                    checker.take(table)
    finally:
        reader.close()
    if moved < world.parts:
        faults.append(f"{world.parts} parts were answered, the cursor is at {moved}")
    for partition, tables in published.items() if moved else ():
        wanted = [part_tables(n)[partition] for n in range(moved)]
        if pa.concat_tables(tables) != pa.concat_tables(wanted):
            faults.append(f"partition {partition} has not each part before the cursor at {moved} once")
    if len(parts) != moved:
        faults.append(f"{len(parts)} parts are sealed, the cursor is at {moved}")
    report = checker.report()
    if report.faults:
        faults.append(str(report))


def allowed(error: BaseException | None, *, fenced: bool) -> bool:
    """Tell whether a side may have ended like this; ``fenced``: the other one has taken an epoch above its own."""
    if error is None or (isinstance(error, Fenced) and fenced):
        return True
    return isinstance(error, JobpipeError) and fenced
