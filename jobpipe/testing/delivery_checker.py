"""Compares what arrived with what was sealed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from jobpipe.testing.journal import Journal
from jobpipe.testing.numbered_rows import SCHEMA, NumberedRows

SHOWN = 5  # rows of one fault named in a report

Row = tuple[int, int]  # (partition, number)


@dataclass
class Report:
    """What is wrong with a delivery; rows are (partition, number).

    Attributes:
        lost: Sealed, but not there.
        duplicated: There more than once.
        misordered: There after a row of its partition that was sealed later.
        damaged: Payload, digest and number do not belong together, or the row is of another topic.
        unsealed: Never sealed, nor intended; or part of an open batch that arrived in part.
        rows: How many arrived, all included.
        longest_pause: Seconds between two arrivals, or up to the first one.
    """

    lost: list[Row] = field(default_factory=list)
    duplicated: list[Row] = field(default_factory=list)
    misordered: list[Row] = field(default_factory=list)
    damaged: list[Row] = field(default_factory=list)
    unsealed: list[Row] = field(default_factory=list)
    rows: int = 0
    longest_pause: float = 0.0

    @property
    def faults(self) -> dict[str, list[Row]]:
        """The kinds of faults there are, by name."""
        kinds = ("lost", "duplicated", "misordered", "damaged", "unsealed")
        return {kind: rows for kind in kinds if (rows := getattr(self, kind))}

    def __str__(self) -> str:
        parts = [
            f"{len(rows)} {kind} (partition, number): {', '.join(map(str, rows[:SHOWN]))}"
            + (", ..." if len(rows) > SHOWN else "")
            for kind, rows in self.faults.items()
        ]
        return f"{self.rows} rows arrived; " + ("; ".join(parts) or "no fault")


class Checker:
    """Takes one subscriber's batches as they arrive.

    Args:
        rows: How rows of this topic look.
        journal: What was sealed; read when :meth:`report` is called.
        clock: For :attr:`Report.longest_pause`.
    """

    def __init__(self, rows: NumberedRows, journal: Journal, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rows = rows
        self._journal = journal
        self._clock = clock
        self._arrived: dict[int, list[int]] = {}
        self._damaged: list[Row] = []
        self._last = clock()
        self._longest = 0.0
        self.rows = 0

    def take(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Take rows, in the order of their arrival; other columns than the four are ignored.

        Raises:
            AssertionError: a column is missing.
        """
        missing = set(SCHEMA.names) - set(batch.schema.names)
        if missing:
            raise AssertionError(f"columns are missing: {sorted(missing)}")
        now = self._clock()
        self._longest, self._last = max(self._longest, now - self._last), now
        self.rows += batch.num_rows
        columns = [batch.column(name).to_pylist() for name in SCHEMA.names]
        for partition, number, payload, digest in zip(*columns, strict=True):
            if self._rows.is_sound(partition, number, payload, digest):
                self._arrived.setdefault(partition, []).append(number)
            else:
                self._damaged.append((partition, number))

    def take_all(self, batches: Iterable[pa.RecordBatch]) -> Checker:
        """Take batches up to their end; return this checker."""
        for batch in batches:
            self.take(batch)
        return self

    @property
    def complete(self) -> bool:
        """True once everything that was sealed has arrived."""
        return not self.report().lost

    def report(self) -> Report:
        """Return what is wrong so far."""
        report = Report(rows=self.rows, longest_pause=self._longest, damaged=list(self._damaged))
        sealed, possible = self._journal.sealed(), self._journal.possible()
        for partition in sorted({*self._arrived, *possible}):
            self._compare(report, partition, sealed.get(partition, []), possible.get(partition, []))
        return report

    def check(self, *, max_pause: float | None = None) -> Report:
        """Return the report.

        Args:
            max_pause: Seconds that rows may take to arrive, one batch after the other: progress.

        Raises:
            AssertionError: with every fault, or because there was no progress.
        """
        report = self.report()
        if report.faults:
            raise AssertionError(f"topic {self._rows.topic!r}: {report}")
        if max_pause is not None and report.longest_pause > max_pause:
            raise AssertionError(
                f"topic {self._rows.topic!r}: no progress for {report.longest_pause:.1f} s, at most {max_pause:g} s "
                "are allowed"
            )
        return report

    def _compare(
        self, report: Report, partition: int, sealed: list[tuple[int, int]], possible: list[tuple[int, int]]
    ) -> None:
        arrived = self._arrived.get(partition, [])
        place = {number: index for index, number in enumerate(_numbers(possible))}
        must = set(_numbers(sealed))
        seen: set[int] = set()
        latest = -1
        for number in arrived:
            if number not in place:
                report.unsealed.append((partition, number))
            elif number in seen:
                report.duplicated.append((partition, number))
            elif place[number] < latest:
                report.misordered.append((partition, number))
            else:
                latest = place[number]
            seen.add(number)
        report.lost += [(partition, number) for number in _numbers(possible) if number in must and number not in seen]
        for first, end in possible:
            here = [number for number in range(first, end) if number in seen]
            if here and len(here) < end - first and first not in must:
                report.unsealed += [(partition, number) for number in here]


def _numbers(ranges: list[tuple[int, int]]) -> Iterable[int]:
    for first, end in ranges:
        yield from range(first, end)
