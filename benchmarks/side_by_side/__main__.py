"""The commands: a measure (``latency``, ``throughput``, ``alone``, ``fanout``, ``transport``, ``growth``, ``flows``),
``report``, ``fetch``.

    python -m benchmarks.side_by_side latency --contestants floor,jobpipe,kafka-json --rates 20,1000 --runs 5

Each measure runs its contestants interleaved: all of them once, in turn, then all again; a failed run is named, and the
others go on. The exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.side_by_side import alone, growth, latency, report, results, throughput, transport
from benchmarks.side_by_side.contestants import CHAINS, CONTESTANTS, JOBS
from benchmarks.side_by_side.contestants.broker import fetch_jars
from benchmarks.side_by_side.feed import LINES
from benchmarks.side_by_side.pair import Setting
from benchmarks.side_by_side.processes import RunFailed
from benchmarks.side_by_side.shapes import SHAPES

HOME = Path(__file__).parents[2] / ".bench"
QUIET = 0.2  # processors that others may keep busy

Round = Callable[[], list[dict[str, Any]]]


def words(text: str) -> list[str]:
    """Split at commas."""
    return [word for word in text.split(",") if word]


def numbers(text: str) -> list[int]:
    """Split at commas, into numbers."""
    return [int(word) for word in words(text)]


def positive(text: str) -> float:
    """Return a number above 0."""
    value = float(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def turned(things: Sequence[Any], run: int) -> list[Any]:
    """Return them beginning with another one in each run: what comes first meets a young JVM."""
    return [*things[run % len(things) :], *things[: run % len(things)]]


def run_rounds(
    measure: str, options: argparse.Namespace, contestants: Sequence[str], one: Callable[[str, int], Any]
) -> int:
    """Run every contestant ``--runs`` times, interleaved, and save what they measured after each."""
    busy = results.load_now()
    if busy > QUIET:
        print(f"others keep {busy:.1f} processors busy: these figures will mean nothing", file=sys.stderr)
    setting = {key: value for key, value in vars(options).items() if key not in ("home", "go", "measure")}
    saved = results.Results(options.home / "results", measure, setting)
    failed = 0
    for run in range(options.runs):
        for contestant in turned(contestants, run):
            began = time.monotonic()
            try:
                found = one(contestant, run)
            except Exception as error:  # noqa: BLE001 - hours of other runs are not to be lost
                failed += 1
                kind = "" if isinstance(error, RunFailed) else f"{type(error).__name__}: "
                print(f"run {run + 1} of {contestant} failed: {kind}{error}", file=sys.stderr, flush=True)
                continue
            saved.add([{"run": run, "contestant": contestant, **each} for each in found])
            print(f"{measure}: run {run + 1} of {contestant}, {time.monotonic() - began:.0f} s", flush=True)
            for line in report.lines(measure, found):
                print(f"    {line}", flush=True)
    if not saved.rounds:
        print("nothing was measured")
        return 1
    print(*report.tables(measure, saved.rounds), saved.path, sep="\n")
    return 1 if failed else 0


def setting_of(options: argparse.Namespace, purpose: str) -> Setting:
    """Return what is the same for all contestants."""
    return Setting(purpose, options.cores, options.home / "work", options.home / "jars")


def go_latency(options: argparse.Namespace) -> int:
    """Measure 1."""
    return run_latency("latency", options)


def go_flows(options: argparse.Namespace) -> int:
    """Measure 8: latency, of chains with flow jobs."""
    return run_latency("flows", options)


def run_latency(measure: str, options: argparse.Namespace) -> int:
    """Measure 1 or 8: they differ in their contestants."""
    setting = replace(setting_of(options, "latency"), bursts=options.bursts)

    def one(name: str, run: int) -> list[dict[str, Any]]:
        rates = [float(rate) for rate in turned(options.rates, run)]
        return latency.latency(
            name,
            setting,
            rates=rates,
            first=options.first,
            most=options.most,
            seconds=options.seconds,
            trigger=options.trigger,
        )

    return run_rounds(measure, options, options.contestants, one)


def go_throughput(options: argparse.Namespace) -> int:
    """Measure 2, and 6 with it."""
    setting = setting_of(options, "throughput")

    def one(name: str, run: int) -> list[dict[str, Any]]:
        shapes = turned(options.shapes, run)
        return throughput.throughput(name, setting, shapes=shapes, batches=options.batches)

    return run_rounds("throughput", options, options.contestants, one)


def go_alone(options: argparse.Namespace) -> int:
    """Measure 3."""
    setting = Setting("alone", 1, options.home / "work", options.home / "jars")

    def one(name: str, run: int) -> list[dict[str, Any]]:
        shapes = turned(options.shapes, run)
        return alone.alone(name, setting, cores=options.cores, shapes=shapes, batches=options.batches)

    return run_rounds("alone", options, options.contestants, one)


def go_fanout(options: argparse.Namespace) -> int:
    """Measure 4."""
    setting = setting_of(options, "latency")
    window = {name: float(getattr(options, name)) for name in ("rate", "trigger", "most", "seconds")}

    def one(name: str, _: int) -> list[dict[str, Any]]:
        return [line for n in options.subscribers for line in latency.fanout(name, setting, readers=n, **window)]

    return run_rounds("fanout", options, options.contestants, one)


def go_transport(options: argparse.Namespace) -> int:
    """Measure 5."""
    work = options.home / "work"
    how = {"gigabytes": options.gigabytes, "seals": options.seals}
    return run_rounds("transport", options, options.contestants, lambda name, _: transport.transport(name, work, **how))


def go_growth(options: argparse.Namespace) -> int:
    """Measure 7: jobpipe alone, against itself when it is small."""
    work = options.home / "work"
    return run_rounds("growth", options, options.what, lambda name, _: growth.growth(name, work, options))


def go_report(options: argparse.Namespace) -> int:
    """Write RESULTS.md and its plots from the newest results of each measure, which are kept in benchmarks/results."""
    print(report.write(options.home / "results", options.output, options.least))
    return 0


def go_fetch(options: argparse.Namespace) -> int:
    """Fetch the jars of Kafka."""
    fetch_jars(options.home / "jars")
    print(options.home / "jars")
    return 0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.side_by_side", description=__doc__)
    parser.add_argument("--home", type=Path, default=HOME, help="for jars, folders of runs, and results")
    commands = parser.add_subparsers(dest="measure", required=True)

    def command(name: str, go: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=go.__doc__, description=go.__doc__)
        made.set_defaults(go=go)
        return made

    def measure(
        name: str, go: Callable[[argparse.Namespace], int], contestants: Sequence[str]
    ) -> argparse.ArgumentParser:
        made = command(name, go)
        made.add_argument("--runs", type=int, default=5)
        if contestants:
            made.add_argument("--contestants", type=words, default=list(contestants))
        return made

    names = [kind.name for kind in JOBS if kind.name != "jobpipe-plain"]
    spark = [measure("latency", go_latency, names), measure("throughput", go_throughput, names)]
    spark.append(measure("fanout", go_fanout, [name for name in names if CONTESTANTS[name].chained]))
    spark.append(measure("flows", go_flows, [*(kind.name for kind in CHAINS), "kafka-json"]))
    for each in spark:
        each.add_argument("--cores", type=int, default=1, help="of each job: local[n]; also its partitions")
    for each in (spark[0], spark[2], spark[3]):
        each.add_argument("--most", type=float, default=420.0, help="seconds to wait for the plateau, at most")
        each.add_argument("--seconds", type=float, default=20.0, help="of each rate")
    for each in (spark[0], spark[3]):
        each.add_argument("--first", type=float, default=60.0, help="seconds of young applications, told separately")
        each.add_argument("--trigger", type=float, default=0.0, help="of job A, in seconds; 0: as fast as it can")
        each.add_argument("--bursts", type=positive, default=float(LINES), help="a second, at most, in which rows come")
    spark[0].add_argument("--rates", type=numbers, default=[20, 1_000, 20_000], help="rows a second")
    spark[3].add_argument("--rates", type=numbers, default=[1_000], help="rows a second")
    spark[3].set_defaults(bursts=20.0)
    by_itself = measure("alone", go_alone, ["floor", "jobpipe", "jobpipe-plain"])
    by_itself.add_argument("--cores", type=numbers, default=[1, 2], help="of the job that runs: local[n]")
    for each in (spark[1], by_itself):
        each.add_argument("--shapes", type=words, default=list(SHAPES))
        each.add_argument("--batches", type=int, default=5)
    spark[2].add_argument("--subscribers", type=numbers, default=[1, 2, 4])
    spark[2].add_argument("--rate", type=int, default=5_000, help="rows a second")
    spark[2].add_argument("--trigger", type=float, default=1.0, help="of job A, in seconds")
    raw = measure("transport", go_transport, list(transport.TRANSPORTS))
    raw.add_argument("--gigabytes", type=float, default=2.0)
    raw.add_argument("--seals", type=int, default=1_000)
    growth.add_options(measure("growth", go_growth, []))
    told = command("report", go_report)
    told.add_argument("--output", type=Path, default=Path(__file__).parents[1], help="the folder of the report")
    told.add_argument("--least", type=int, default=5, help="runs that results must have; fewer are trials")
    command("fetch", go_fetch)
    return parser.parse_args(arguments)


def main() -> int:
    """Run one command."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # as an error: all children end
    try:
        return int(options.go(options))
    except RunFailed as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
