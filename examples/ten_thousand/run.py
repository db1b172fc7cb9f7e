"""One publisher of 10,000 rows a second, two subscribers of the same topic: start all three, then count.

    python examples/ten_thousand/run.py

At the end both subscribers must have every row of every sealed batch, once, in order within each partition. Prints a
table; exit code 0 if all agrees. Each of the three is a Spark application of its own; they meet in an embedded
ZooKeeper.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

HERE = Path(__file__).resolve().parent
NAMES = ("first", "second")
LAST_LINES = 40  # of the log of a job that failed
SPARK = "--master local[1] --driver-memory 700m --conf spark.ui.enabled=false --conf spark.log.level=WARN pyspark-shell"


def start(log: Path, work: Path, script: str, *options: str) -> subprocess.Popen[bytes]:
    """Start one job, with its output in a log file of its own."""
    environ = {
        **os.environ,
        "JOBPIPE__HOME": str(work / "home"),
        "PYSPARK_SUBMIT_ARGS": SPARK,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(HERE / script), "--work", str(work), *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,  # its JVM is in the same group and ends with it
        )


def wait(jobs: dict[Path, subprocess.Popen[bytes]], seconds: float) -> dict[Path, str]:
    """Wait until all jobs have ended or one has failed; return, by its log, why a job did not end well."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        codes = {log: job.poll() for log, job in jobs.items()}
        if failed := {log: f"ended with code {code}" for log, code in codes.items() if code}:
            return failed
        if None not in codes.values():
            return {}
        time.sleep(0.5)
    return {log: f"did not end within {seconds:.0f} s" for log, job in jobs.items() if job.poll() is None}


def end(jobs: Iterable[subprocess.Popen[bytes]]) -> None:
    """End the process group of every job that still runs."""
    for job in jobs:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def read(folder: Path) -> pa.Table:
    """Read a subscriber's rows in the order in which it got them."""
    batches = sorted(folder.iterdir(), key=lambda batch: int(batch.name))
    files = [file for batch in batches for file in sorted(batch.glob("*.parquet"))]
    return pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])


def rises(values: pa.ChunkedArray) -> bool:
    """True if each value is greater than the one before."""
    array = values.combine_chunks()
    return len(array) < 2 or bool(pc.all(pc.greater(array[1:], array[:-1])).as_py())


def facts(rows: pa.Table, sealed: dict[str, dict[str, int]]) -> dict[str, tuple[int, int]]:
    """Compare one subscriber's rows with the publisher's record: what, (expected, got)."""
    total = sum(batch["rows"] for batch in sealed.values())
    texts = pc.binary_join_element_wise("row", rows["number"].cast(pa.string()), " ")
    parts = [rows.filter(pc.equal(rows["partition"], number)) for number in pc.unique(rows["partition"])]
    return {
        "batches": (sum(1 for batch in sealed.values() if batch["rows"]), len(pc.unique(rows["offset"]))),
        "rows": (total, rows.num_rows),
        "sum of numbers": (sum(batch["sum"] or 0 for batch in sealed.values()), pc.sum(rows["number"]).as_py()),
        "different numbers": (total, len(pc.unique(rows["number"]))),
        "right texts": (total, pc.sum(pc.equal(rows["text"], texts)).as_py()),
        "partitions": (2, len(parts)),
        "partitions in order": (2, sum(rises(part["number"]) for part in parts)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, help="an empty folder; default a temporary one")
    parser.add_argument("--rows-per-second", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=30)
    args = parser.parse_args()
    console = Console()

    work = (args.work or Path(tempfile.mkdtemp(prefix="ten_thousand-"))).absolute()
    work.mkdir(parents=True, exist_ok=True)
    zookeeper = EmbeddedZooKeeper(work / "home")
    jobs: dict[Path, subprocess.Popen[bytes]] = {}
    try:
        zookeeper.ensure()
        rate = ["--rows-per-second", str(args.rows_per_second), "--seconds", str(args.seconds)]
        log = work / "publisher.log"
        jobs[log] = start(log, work, "publisher.py", *rate)
        for name in NAMES:
            log = work / f"subscriber-{name}.log"
            jobs[log] = start(log, work, "subscriber.py", "--name", name)
        console.print(f"three Spark jobs run for about {args.seconds + 30} s; their logs are in {work}", soft_wrap=True)
        if failed := wait(jobs, args.seconds + 240):
            for log, why in failed.items():
                console.print(f"[red]{log.stem} {why}; the end of {log}:[/red]", soft_wrap=True)
                lines = log.read_text(errors="replace").splitlines()
                console.print("\n".join(lines[-LAST_LINES:]), markup=False, highlight=False, soft_wrap=True)
            return 1
    except KeyboardInterrupt:
        return 130
    finally:
        end(jobs.values())
        zookeeper.stop()

    sealed = json.loads((work / "sealed.json").read_text())
    table = Table("subscriber", "fact", "expected", "got", "ok")
    agrees = True
    for name in NAMES:
        for fact, (expected, got) in facts(read(work / name), sealed).items():
            agrees &= expected == got
            table.add_row(name, fact, f"{expected:,}", f"{got:,}", "yes" if expected == got else "NO")
    console.print(table)
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
