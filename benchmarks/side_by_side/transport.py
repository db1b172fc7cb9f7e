"""Transport alone, without Spark: when a subscriber knows of a batch, and GB/s; with the CPU that each side spends."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.side_by_side.asking import Child
from benchmarks.side_by_side.pair import path_environ
from benchmarks.side_by_side.processes import Processes, RunFailed

TRANSPORTS = ("jobpipe", "flight", "tls")
STREAMS = 4
PAUSE = 0.005  # seconds between two batches
STREAM_SECONDS = 0.025  # a batch, and its pause, while others stream: more than it takes
ROWS_PAUSE = 0.02  # where each is planned and fetched by itself
WARM = 100  # batches that do not count
STEP_SECONDS = 600.0


@contextmanager
def server_and_readers(name: str, work: Path, readers: int) -> Iterator[tuple[Processes, Child, list[Child]]]:
    """Run the server of a transport and so many readers, each in a process of its own."""
    work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work)).absolute()
    with Processes(folder) as run:

        def start(kind: str, role: str, log: str) -> Child:
            command = [sys.executable, "-m", "benchmarks.side_by_side.transports", name, kind, str(folder)]
            child = Child(
                run.start(command, role, log=log, environ=path_environ()), f"{name} {log}", folder / f"{log}.log"
            )
            child.answer(STEP_SECONDS)
            return child

        server = start("Server", "server", "server")  # first: it makes the certificates
        many = [start("Reader", "reader", f"reader{number}") for number in range(readers)]
        yield run, server, many
        for child in (*many, server):
            child.ask("end", STEP_SECONDS)
    shutil.rmtree(folder)


def transport(name: str, work: Path, *, gigabytes: float, seals: int) -> list[dict[str, Any]]:
    """Measure one run of one transport."""
    with server_and_readers(name, work, STREAMS + 1) as (run, server, readers):
        *streams, listener = readers
        told = server.ask("open", STEP_SECONDS, parts=STREAMS, gigabytes=gigabytes)
        for reader in readers:
            reader.ask("connect", told=told)
        found = [
            {"what": "news", "streams": 0, **_news(server, listener, seals)},
            {"what": "bytes", "streams": 1, **_bytes(run, streams[:1], 0.0)},
            {"what": "bytes", "streams": STREAMS, **_bytes(run, streams, 0.0)},
        ]
        for number, reader in enumerate(streams):
            reader.tell("read", part=number, seconds=STREAM_SECONDS * (WARM + seals))
        found.append({"what": "news", "streams": STREAMS, **_news(server, listener, seals)})
        over = time.time()
        if min(reader.answer(STEP_SECONDS)["ended"] for reader in streams) < over:
            raise RunFailed(f"{name}: a reader had ended before the news had")
        if name == "jobpipe":
            found.append({"what": "rows", "streams": 0, **_rows(server, listener, seals)})
        return found


def _news(server: Child, listener: Child, seals: int) -> dict[str, Any]:
    """Return when the listener knew of a batch: after its seal was called for, and after that had returned."""
    listener.ask("listen")
    listener.tell("hear", count=WARM + seals)
    said = np.array(server.ask("say", STEP_SECONDS, count=WARM + seals, pause=PAUSE))[WARM:]
    heard = np.array(listener.answer(STEP_SECONDS))[WARM:]
    called, returned = heard - said[:, 0], np.maximum(heard - said[:, 1], 0.0)
    return {"since_call": milliseconds(called), "since_return": milliseconds(returned)}


def _rows(server: Child, listener: Child, seals: int) -> dict[str, Any]:
    """Return when the listener had the rows of a batch, planned, fetched and decoded: all of the bus, and no Spark."""
    listener.ask("attend", STEP_SECONDS)
    listener.tell("take", count=WARM + seals)
    said = np.array(server.ask("say", STEP_SECONDS, count=WARM + seals, pause=ROWS_PAUSE))[WARM:]
    return {"since_call": milliseconds(np.array(listener.answer(STEP_SECONDS))[WARM:] - said[:, 0])}


def _bytes(run: Processes, readers: list[Child], seconds: float) -> dict[str, Any]:
    for number, reader in enumerate(readers):  # connections and caches are warm then
        reader.ask("read", STEP_SECONDS, part=number, seconds=seconds)
    before = run.cost()
    for number, reader in enumerate(readers):
        reader.tell("read", part=number, seconds=seconds)
    answers = [reader.answer(STEP_SECONDS) for reader in readers]
    after = run.cost()
    gigabytes = sum(each["bytes"] for each in answers) / 1e9
    wall = max(each["ended"] for each in answers) - min(each["began"] for each in answers)
    cpu = {f"{role}_cpu_per_gb": (after.cpu[role] - before.cpu[role]) / gigabytes for role in ("server", "reader")}
    return {"gb_per_s": gigabytes / wall, **cpu}


def milliseconds(seconds: Any) -> dict[str, float]:
    """Return quantiles in ms."""
    values = np.asarray(seconds) * 1e3
    return {name: float(np.quantile(values, share)) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
