"""How the cost of jobpipe grows: plain clients, without Spark and its JVM, each size against the smallest.

``topics``: of one coordinator. ``partitions``: of a batch. ``subscribers``: that poll one topic. ``backlog``: gigabytes
that nobody has read. ``catalog``: sealed batches in it, made by copying one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import catalog
from benchmarks.side_by_side.transport import milliseconds, server_and_readers
from benchmarks.side_by_side.transports.rows import BIG, copies

STEP_SECONDS = 3_600.0
PAUSE = 0.005
WARM = 20
PLANS = 200
SIZES = {
    "topics": "1,10,100",
    "partitions": "1,8,64",
    "subscribers": "1,8,64",
    "backlog": "1,10",
    "catalog": "1000,1000000",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what to measure, and up to which size."""
    parser.add_argument("--what", type=lambda text: text.split(","), default=list(SIZES), help=", ".join(SIZES))
    parser.add_argument("--seals", type=int, default=300, help="of each size")
    for name, sizes in SIZES.items():
        parser.add_argument(f"--{name}", default=sizes, help=f"default: {sizes}")


def growth(what: str, work: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure one thing at each of its sizes, small ones first."""
    sizes = [float(size) for size in getattr(options, what).split(",")]
    measure = {
        "topics": _topics,
        "partitions": _partitions,
        "subscribers": _subscribers,
        "backlog": _backlog,
        "catalog": _catalog,
    }[what]
    return [{"what": what, "size": size, **measure(size, work, options.seals)} for size in sizes]


def _topics(size: float, work: Path, seals: int) -> dict[str, Any]:
    with server_and_readers("jobpipe", work, 0) as (run, server, _):
        names = [f"t{number}" for number in range(int(size))]
        starts = [server.ask("topic", STEP_SECONDS, name=name, parts=1) for name in names]
        for name in names:
            server.ask("say", STEP_SECONDS, topic=name, count=1, pause=0.0)
        each = max(1, seals // len(names))
        said = [pair for name in names for pair in server.ask("say", STEP_SECONDS, topic=name, count=each, pause=PAUSE)]
        return {"start": milliseconds(starts), "seal": _lengths(said), "memory_mb": run.cost().peak_mb["server"]}


def _partitions(size: float, work: Path, seals: int) -> dict[str, Any]:
    with server_and_readers("jobpipe", work, 1) as (_, server, (reader,)):
        parts = int(size)
        start = server.ask("topic", STEP_SECONDS, name="many", parts=parts)
        said = server.ask("say", STEP_SECONDS, topic="many", count=WARM + seals, pause=PAUSE, parts=parts)
        plans = reader.ask("plan", STEP_SECONDS, topic="many", count=PLANS)
        return {"start": milliseconds([start]), "seal": _lengths(said[WARM:]), "plan": milliseconds(plans)}


def _subscribers(size: float, work: Path, seals: int) -> dict[str, Any]:
    with server_and_readers("jobpipe", work, 1) as (run, server, (reader,)):
        many = int(size)
        server.ask("say", STEP_SECONDS, count=1, pause=0.0)
        reader.ask("listen", STEP_SECONDS, subscribers=many)
        before = run.cost()
        said = server.ask("say", STEP_SECONDS, count=WARM + seals, pause=PAUSE)
        heard = reader.ask("hear", STEP_SECONDS, count=WARM + seals, subscribers=many)
        cpu = (run.cost().cpu["server"] - before.cpu["server"]) / len(said)
        last = [at - began for at, (began, _) in zip(heard, said, strict=True)]
        return {"seal": _lengths(said[WARM:]), "last_knows": milliseconds(last[WARM:]), "server_cpu_ms": cpu * 1e3}


def _backlog(size: float, work: Path, seals: int) -> dict[str, Any]:
    with server_and_readers("jobpipe", work, 1) as (run, server, (reader,)):
        server.ask("topic", STEP_SECONDS, name="bytes", parts=4)
        batches = max(1, round(size))  # of one gigabyte each
        told = [
            server.ask("fill", STEP_SECONDS, name="bytes", parts=4, gigabytes=size / batches) for _ in range(batches)
        ]
        said = server.ask("say", STEP_SECONDS, topic="bytes", count=WARM + seals, pause=PAUSE)
        plans = reader.ask("plan", STEP_SECONDS, topic="bytes", count=PLANS)
        reader.ask("connect", told=told[0])
        read = reader.ask("read", STEP_SECONDS, part=0, seconds=0.0)
        start = server.ask("restart", STEP_SECONDS, topic="bytes", parts=4)
        return {
            "bytes": copies(size / batches) * BIG.nbytes * batches,
            "start": milliseconds([start]),
            "seal": _lengths(said[WARM:]),
            "plan": milliseconds(plans),
            "oldest_gb_per_s": read["bytes"] / 1e9 / (read["ended"] - read["began"]),
            "memory_mb": run.cost().peak_mb["server"],
        }


def _catalog(size: float, work: Path, seals: int) -> dict[str, Any]:
    work.mkdir(parents=True, exist_ok=True)
    return catalog.run(int(size), work)


def _lengths(said: list[list[float]]) -> dict[str, float]:
    return milliseconds([ended - began for began, ended in said])
