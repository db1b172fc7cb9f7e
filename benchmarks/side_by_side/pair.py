"""One run of one contestant: a carrier, job A and its jobs B, started, told what to do, and ended."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.side_by_side.asking import Child, read_line
from benchmarks.side_by_side.contestants import kind_of
from benchmarks.side_by_side.feed import LINES
from benchmarks.side_by_side.processes import Cost, Processes, RunFailed

ROOT = Path(__file__).parents[2]
START_SECONDS = 300.0  # until the first row has come; a cold machine starts three JVMs
STEP_SECONDS = 120.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Setting:
    """What is the same for all contestants of a measure."""

    purpose: str  # latency or throughput
    cores: int  # of each job
    work: Path  # for the folders of runs
    cache: Path  # of jars
    bursts: float = LINES  # a second, at most, in which rows come at a rate


class Pair:
    """The jobs of one run."""

    def __init__(self, run: Processes, contestant: str, bursts: float, a: Child, readers: dict[str, Child]) -> None:
        self.run = run
        self._bursts = bursts
        self.contestant = contestant
        self.chained = kind_of(contestant).chained
        self.a = a
        self.readers = readers

    def all(self, do: str, timeout: float = STEP_SECONDS, **args: Any) -> list[Any]:
        """Let all jobs B do something, at the same time; return their answers."""
        for reader in self.readers.values():
            reader.tell(do, **args)
        return [reader.answer(timeout) for reader in self.readers.values()]

    @contextmanager
    def flowing(self, stream: str, shape: str, rate: float, trigger: float = 0.0) -> Iterator[None]:
        """Let rows flow at a rate, from a feed to job A to all jobs B; on entry the first have come.

        Args:
            trigger: Seconds from one micro-batch of job A to the next; 0 for as fast as they go.
        """
        self.a.ask("prepare", STEP_SECONDS, stream=stream, shape=shape)
        self.all("paced", stream=stream, shape=shape, pace={"rate": rate})
        feed = self.run.start(
            [sys.executable, "-m", "benchmarks.side_by_side.feed", str(rate), str(self._bursts)],
            "feed",
            log="feed",
            environ=path_environ(),
        )
        port = int(read_line(feed, START_SECONDS, "the feed"))
        self.a.ask("paced", STEP_SECONDS, stream=stream, shape=shape, port=port, trigger=trigger)
        self.arrived(0, START_SECONDS)
        yield
        assert feed.stdin is not None
        feed.stdin.close()
        feed.wait(STEP_SECONDS)
        self.a.ask("stop", STEP_SECONDS, stream=stream)
        self.all("stop", stream=stream)

    def arrived(self, made: int, timeout: float = STEP_SECONDS) -> None:
        """Wait until all jobs B have a row that was made later than then (µs); and job A, where it keeps its own."""
        deadline = time.monotonic() + timeout
        while min(seen["newest"] for seen in self._seen()) <= made:
            if time.monotonic() > deadline:
                raise RunFailed(f"{self.contestant}: no row arrived within {timeout:g} s")
            time.sleep(POLL_SECONDS)

    def slowest(self, since: int, until: int) -> dict[str, float]:
        """Return p50 and p99 (ms) of the rows made in a window: those of the slowest job."""
        each = self.all("latencies", since=since, until=until)
        each += [] if self.chained else [self.a.ask("latencies", since=since, until=until)]
        if not all(found["rows"] for found in each):
            raise RunFailed(f"{self.contestant}: no row of a window arrived")
        return {name: max(found[name] for found in each) for name in ("p50", "p99")}

    def _seen(self) -> list[dict[str, int]]:
        return self.all("seen") if self.chained else [*self.all("seen"), self.a.ask("seen")]

    def cost(self) -> Cost:
        """Return CPU and memory by role."""
        return self.run.cost()


@contextmanager
def pair(contestant: str, setting: Setting, readers: int = 1) -> Iterator[Pair]:
    """Run job A and so many jobs B of a contestant; all has ended on return.

    Raises:
        RunFailed: something did not come in time, or failed. The folder of the run is kept then.
    """
    setting.work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{contestant.partition(':')[0]}-", dir=setting.work)).absolute()
    told = {
        "folder": str(folder),
        "cores": setting.cores,
        "purpose": setting.purpose,
        "cache": str(setting.cache.absolute()),
    }
    kind = kind_of(contestant)
    with Processes(folder) as run, kind(told).carrier(run) as more:
        told |= more
        environ = {**path_environ(), **kind(told).environ()}

        def start(side: str, role: str) -> Child:
            command = [sys.executable, "-m", "benchmarks.side_by_side.job", side, contestant, json.dumps(told)]
            return Child(run.start(command, role, log=role, environ=environ), f"job {role}", folder / f"{role}.log")

        a = start("a", "a")
        jobs = {role: start("b", role) for role in (f"b{number + 1}" for number in range(readers))}
        for job in (a, *jobs.values()):
            job.answer(START_SECONDS)
        yield Pair(run, contestant, setting.bursts, a, jobs)
        for job in (*jobs.values(), a):
            job.ask("end", STEP_SECONDS)
    shutil.rmtree(folder)


def path_environ() -> dict[str, str]:
    """Return where children find this package, and Spark its Python."""
    return {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
