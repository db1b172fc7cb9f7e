"""Sinks of files, killed: of a stream each row is there once, for readers of Spark's; of a run all rows once."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from tests.faults.pipelines.sink_program import KEYS, ROWS, SINKS, SinkOrder
from tests.faults.rig import chance, gone
from tests.faults.spark.spark_rig import ROOT, SPARK_PATIENCE, SparkProgram
from tests.harness.program import MARK, marked
from tests.pipelines.running import committed
from tests.spark.kit import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

KILLS = 2
KILLED_WITHIN = 1.5  # seconds after the first micro-batches of that life

READ: dict[str, Callable[[str], list[str]]] = {
    "csv": lambda path: [row[0] for row in csv.reader(Path(path).read_text().splitlines())],
    "json": lambda path: [json.loads(line)["value"] for line in Path(path).read_text().splitlines()],
    "orc": lambda path: [str(value) for value in orc.ORCFile(path).read()["value"].to_pylist()],
    "text": lambda path: Path(path).read_text().splitlines(),
    "xml": lambda path: re.findall(r"<value>(\d+)</value>", Path(path).read_text()),
}


@contextmanager
def program_in(folder: Path) -> Iterator[SparkProgram]:
    """Give the application; nothing of it is left at the end."""
    mark = f"sinks-{uuid.uuid4().hex[:8]}"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, MARK: mark, "PYTHONPATH": path}

    def order(**changes: object) -> SinkOrder:
        return SinkOrder(str(folder), **changes)  # type: ignore[arg-type]

    try:
        yield SparkProgram("tests.faults.pipelines.sink_program", order, folder / "log", environ)
    finally:
        for process in marked(mark):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        gone(marked(mark))


def batches_of(folder: Path) -> int:
    """Return how many micro-batches a query has committed."""
    place = folder / "commits"
    names = [entry.name for entry in place.iterdir()] if place.exists() else []
    return 1 + max((int(name) for name in names if name.isdigit()), default=-1)


def test_streams(tmp_path: Path) -> None:
    """kill -9 of Python, of Java, or of all, in the middle of micro-batches of all formats."""
    random = chance()
    states = [tmp_path / "state" / kind for kind in SINKS]
    with program_in(tmp_path) as program:

        def lives() -> None:
            before = [batches_of(state) for state in states]
            program.start()

            def new() -> bool:
                return all(batches_of(state) > old for state, old in zip(states, before, strict=True))

            until(lambda: program.failure or new(), "micro-batches of a new life", SPARK_PATIENCE)
            assert program.failure is None, program.failure

        for _ in range(KILLS):
            lives()
            time.sleep(random.uniform(0.0, KILLED_WITHIN))  # a moment is what is drawn, no event
            victim = random.choice(["python", "java", "all"])
            family = program.kill_some(victim)
            print(f"killed {victim}")
            program.process.wait(SPARK_PATIENCE)
            gone(family)
        lives()
        assert program.terminate(SPARK_PATIENCE) == 128 + signal.SIGTERM, program.log_end()
    for kind, state in zip(SINKS, states, strict=True):
        rows = Counter(value for path in committed(tmp_path / f"{kind}.out") for value in READ[kind](path))
        assert rows == Counter(str(number) for number in range(batches_of(state) * ROWS)), kind


@pytest.mark.parametrize(
    ("mode", "moments"),
    [
        ("append", [".out.*/_temporary", "out/_jobpipe_runs/*.attempt"]),  # it writes; it moves files
        pytest.param("overwrite", ["out/_jobpipe_run"], marks=pytest.mark.slow),  # all is in place; it has not said so
    ],
)
def test_a_run(tmp_path: Path, mode: str, moments: list[str]) -> None:
    """kill -9 of all at moments that its files show; the next attempt begins, and the last one comes to its end."""
    with program_in(tmp_path) as program:
        for attempt, moment in enumerate(moments, 1):
            program.start(mode=mode, attempt=attempt)
            while program.alive and not any(tmp_path.glob(moment)):
                time.sleep(0.0005)  # the moment is short
            assert program.alive, program.log_end()
            program.kill()
        program.start(mode=mode, attempt=len(moments) + 1)
        assert program.wait(SPARK_PATIENCE) == 0, program.log_end()
    files = [path for path in (tmp_path / "out").rglob("*.parquet") if not path.name.startswith((".", "_"))]
    assert Counter(row for path in files for row in pq.ParquetFile(path).read()["id"].to_pylist()) == Counter(
        range(KEYS)
    )
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".out.")] == []
