"""Change data capture beside Debezium's engine, in the same run: rows a second, CPU, memory.

    python -m benchmarks.change_data postgres --rows 1000000 --runs 3
    python -m benchmarks.change_data mariadb --rows 300000
    python -m benchmarks.change_data postgres --rows 5000000 --transaction 5000000 --runs 1

Debezium runs in a JVM of its own, and hands changes to a function that counts them; jobpipe publishes them: each batch
is on the disk. Both read a table of six columns first, then follow inserts, which were made while they stood still,
1,000 rows in a transaction unless ``--transaction`` gives another number. Rates are from the first row to the last,
without the start of a process. The servers are Debian's, made for the run. Jars come by Maven into .bench/jars.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.change_data.databases import COLUMNS, PRODUCTS, Shop
from jobpipe.config import load
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper

HERE = Path(__file__).resolve().parent
JARS = Path(".bench/jars/debezium")
WAIT_SECONDS = 900.0
END_SECONDS = 20.0


@dataclass(frozen=True)
class Measured:
    """One stretch: rows a second, seconds of CPU for a million rows, and the most memory in MB."""

    rate: float
    cpu: float
    memory: float


class Counting:
    """A program that prints how many rows it has handed on, and all that it has started."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.count = -1
        self._changed = threading.Condition()
        self._log = log.open("w")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        self._known = psutil.Process(self._process.pid)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip().isdigit():
                with self._changed:
                    self.count = int(line)
                    self._changed.notify_all()

    def until(self, count: int) -> None:
        """Wait until so many rows came."""
        deadline = time.monotonic() + WAIT_SECONDS
        with self._changed:
            while self.count < count:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = Path(self._log.name).read_text()[-3000:]
                    sys.exit(f"{self.count} of {count} rows; its log ends with:\n{said}")
                self._changed.wait(1.0)

    def usage(self) -> tuple[float, float]:
        """Return seconds of CPU, and MB of memory, of all its processes."""
        cpu = memory = 0.0
        with contextlib.suppress(psutil.Error):
            for process in [self._known, *self._known.children(recursive=True)]:
                times = process.cpu_times()
                cpu += times.user + times.system
                memory += process.memory_info().rss / 1e6
        return cpu, memory

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop the program for the length of the block, so that writers and it do not share the cores."""
        self._known.suspend()
        try:
            yield
        finally:
            self._known.resume()

    def close(self) -> None:
        """End it, and wait for all that it has started, such as a coordinator that serves on for a moment."""
        started = []
        with contextlib.suppress(psutil.Error):
            started = self._known.children(recursive=True)
        self._process.terminate()
        _, left = psutil.wait_procs([self._known, *started], END_SECONDS)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, END_SECONDS)
        self._process.wait()
        self._log.close()


def measured(program: Counting, start: int, end: int) -> Measured:
    """Measure from where more than ``start`` rows are handed on to the last one."""
    program.until(start)
    began, (cpu, _), first = time.monotonic(), program.usage(), program.count
    most, stop = [0.0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            most[0] = max(most[0], program.usage()[1])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    program.until(end)
    seconds, (after, _) = time.monotonic() - began, program.usage()
    stop.set()
    watcher.join()
    rows = max(1, end - first)
    return Measured(rows / seconds, (after - cpu) / rows * 1e6, most[0])


@contextlib.contextmanager
def jobpipe_capture(shop: Shop, folder: Path) -> Iterator[Counting]:
    """Run a capture, with a coordinator and a registry of its own."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    zookeeper = EmbeddedZooKeeper(home)
    zookeeper.ensure()
    order = json.dumps({"product": shop.product, "home": str(home), "options": shop.capture_options()})
    program = Counting([sys.executable, "-m", "benchmarks.change_data.capture", order], folder / "jobpipe.log")
    try:
        yield program
    finally:
        program.close()
        zookeeper.stop()


@contextlib.contextmanager
def debezium(shop: Shop, folder: Path, batch: int | None) -> Iterator[Counting]:
    """Run Debezium's engine."""
    properties = folder / "debezium.properties"
    given = shop.debezium_properties(folder)
    if batch is not None:
        given |= {"max.batch.size": batch, "max.queue.size": 4 * batch}
    lines = "".join(f"{key}={value}\n" for key, value in given.items())
    properties.write_text("".join(each if each.isascii() else f"\\u{ord(each):04x}" for each in lines))
    jars = JARS / shop.product
    command = ["java", "-Xmx2g", "-cp", f"{jars.absolute()}/*", str(HERE / "CountChanges.java"), str(properties)]
    program = Counting(command, folder / "debezium.log")
    try:
        yield program
    finally:
        program.close()


def fetch(product: str) -> None:
    """Fetch the jars, if they are not there."""
    folder = JARS / product
    if any(folder.glob("*.jar")):
        return
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(HERE / f"{product}.xml"), "dependency:copy-dependencies"]
    subprocess.run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={folder.absolute()}"], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("product", choices=PRODUCTS)
    parser.add_argument("--rows", type=int, default=300_000, help="of the table, and of the changes (default 300000)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--transaction", type=int, default=1000, help="rows that are inserted in one (default 1000)")
    parser.add_argument("--batch", type=int, help="Debezium's max.batch.size, and a quarter of its max.queue.size")
    args = parser.parse_args()
    load(environ={})  # an error before anything is started
    fetch(args.product)
    found: dict[tuple[str, str], list[Measured]] = {}
    with PRODUCTS[args.product]() as shop:
        for run in range(args.runs):
            for name in ("jobpipe", "debezium"):
                with tempfile.TemporaryDirectory(prefix="bench-cdc-") as made:
                    shop.make_table(args.rows)
                    folder = Path(made)
                    opened = jobpipe_capture(shop, folder) if name == "jobpipe" else debezium(shop, folder, args.batch)
                    with opened as program:
                        # Debezium from its first row; jobpipe from the moment at which it begins to read.
                        snapshot = measured(program, 1 if name == "debezium" else 0, args.rows)
                        with program.standing_still():
                            shop.insert(args.rows, args.transaction)
                        stream = measured(program, args.rows + 1, 2 * args.rows)
                    shop.forget()
                for part, each in (("snapshot", snapshot), ("stream", stream)):
                    found.setdefault((name, part), []).append(each)
                    print(
                        f"run {run + 1} {name} {part}: {each.rate:,.0f} rows/s, {each.cpu:.1f} CPU s a million, "
                        f"{each.memory:.0f} MB",
                        flush=True,
                    )
    print(
        f"medians of {args.runs} runs, {args.rows:,} rows of {len(COLUMNS)} columns, load {psutil.getloadavg()[0]:.1f}"
    )
    for part in ("snapshot", "stream"):
        ours, theirs = (statistics.median(each.rate for each in found[name, part]) for name in ("jobpipe", "debezium"))
        cpu = [statistics.median(each.cpu for each in found[name, part]) for name in ("jobpipe", "debezium")]
        memory = [max(each.memory for each in found[name, part]) for name in ("jobpipe", "debezium")]
        print(
            f"{part}: {ours:,.0f} to {theirs:,.0f} rows/s = {ours / theirs:.1f}; CPU {cpu[0]:.1f} to {cpu[1]:.1f} s; "
            f"memory {memory[0]:.0f} to {memory[1]:.0f} MB"
        )


if __name__ == "__main__":
    main()
