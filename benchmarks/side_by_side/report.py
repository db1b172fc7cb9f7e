"""Writes RESULTS.md and its plots from the newest results of each measure."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from benchmarks.side_by_side import results, summary
from benchmarks.side_by_side.targets import Target, targets

KAFKA = "kafka-json"
COMPARED_TO = {"flows": (KAFKA,)}  # all others to jobpipe too
MISSED = "missed.md"  # beside the published report only
HEADS = {
    "p50": "p50 ms",
    "p99": "p99 ms",
    "first p50": "first minute: p50",
    "first p99": "p99",
    "warm": "warm-up, s",
    "a_seconds": "A s",
    "b_seconds": "B s",
    "cpu a": "CPU: A",
    "cpu between": "between",
    "cpu b": "B",
    "mb a": "peak MB: A",
    "mb between": "between",
    "mb b": "B",
}
HEAD = """\
# Results

Written by `python -m benchmarks.side_by_side report`; [README.md](README.md) says what each measure is and what a
figure means. Every figure is the median of the figures of its runs, ratios are medians of the ratios within a run;
contestants ran interleaved. CPU is processors kept busy where rows come at a rate, seconds per million rows where they
come as fast as they go. Bold: the least, or with throughput the most, of those that link the jobs. A target is kept if
the median is within it; the runs beside it may not all be.

jobpipe runs with TLS and forces each batch to the disk; Kafka does neither, as one broker by default. All Spark
applications run with the settings of [settings.py](side_by_side/settings.py), those of `recommended_conf`
([tuning.md](../docs/tuning.md)) among them: they shorten all micro-batches, and the Python tasks of those that have
some (not `kafka-json`, `kafka-rtm` and `files`). Measures may be of different commits, which stand beside their
settings.
"""
PLATEAU = """\
Figures are of the plateau: of applications that have run until they became no faster, or for as long as their setting
`most` says. What they do in their first minute stands beside it.
"""
STILL_FALLING = """\
"over": in most runs the time for the warm-up was up, and latency was still falling.
"""
FIRST_MINUTE = (
    "**Measured in the first minute, after a short warm-up: {}.** JVMs are still warming up then, and ratios to Kafka "
    "look better than those of a job that has run for a minute; [tuning.md](../docs/tuning.md) has both. Checkpoints "
    "were slower then for all contestants, without the classes that their settings have now."
)
WARMED = ("warm_seconds", "warm_batches")  # of a round on the plateau
TITLES = {
    "latency": "Latency: from the event in job A to the callback in job B",
    "flows": "Flow jobs: from the event to the function",
    "fanout": "Fan-out: several jobs B",
    "throughput": "Throughput and cost: job A to job B",
    "alone": "Each job by itself, beside Spark alone",
    "transport": "Transport alone, without Spark",
    "growth": "How cost grows, plain clients",
}


def lines(measure: str, found: list[dict[str, Any]]) -> list[str]:
    """Return a line for each round, for whoever looks on."""
    said = []
    for each in found:
        names = ("case", "rate", "readers", "shape", "what", "streams", "size")
        which = ", ".join(f"{name} {_words(each[name])}" for name in names if name in each)
        numbers = summary.figures(measure, each)
        said.append(f"{which}: " + ", ".join(f"{name} {_number(value)}" for name, value in numbers.items()))
    return said


def tables(measure: str, rounds: list[dict[str, Any]]) -> list[str]:
    """Return the medians of the runs, and their ratios, as tables of Markdown."""
    return {"growth": _growth, "transport": _transport, "alone": _alone}.get(measure, _spark)(measure, rounds)


def write(folder: Path, output: Path, least: int) -> Path:
    """Write the report from the newest results of each measure with so many runs, which are kept beside it.

    Returns:
        Its path.
    """
    from benchmarks.side_by_side import plots  # matplotlib is of the extra bench

    parts, checked = [], []
    rounds: dict[str, list[dict[str, Any]]] = {}
    for measure, title in TITLES.items():
        found = results.keep_newest(folder, output / "results", measure, least)
        if found is None:
            continue
        rounds[measure] = found["rounds"]
        checked += targets(measure, found["rounds"])
        parts += [f"## {title}\n", _provenance(found)]
        parts += tables(measure, found["rounds"])
        for path in plots.draw(measure, found["rounds"], output / "plots"):
            parts.append(f"![{path.stem}]({path.relative_to(output)})\n")
    if (output / MISSED).exists():
        parts.insert(0, (output / MISSED).read_text())
    path = output / "RESULTS.md"
    path.write_text("\n".join([HEAD, warmth(rounds), "## Targets\n", _targets(checked), *parts]))
    return path


def warmth(rounds: dict[str, list[dict[str, Any]]]) -> str:
    """Return what is to be said of applications that were measured before they had become as fast as they get.

    Args:
        rounds: by measure.
    """
    with_spark = [measure for measure in TITLES if measure in rounds and measure not in ("transport", "growth")]
    short = [name for name in with_spark if not all(any(key in each for key in WARMED) for each in rounds[name])]
    return textwrap.fill(FIRST_MINUTE.format(", ".join(short)), 120) + "\n" if short else PLATEAU


def _targets(checked: list[Target]) -> str:
    """Return the table of those that were measured, each with its least and its greatest run."""
    table = [_row("", "target", "median", "runs", ""), "|" + " --- |" * 5]
    for each in checked:
        bound = f"at {'least' if each.at_least else 'most'} {_number(each.bound)}"
        if each.found is not None:
            found = _number(each.found)
            if found == _number(each.bound):
                found = f"{each.found:.4g}"
            runs = f"{_number(min(each.each))} to {_number(max(each.each))}"
            table.append(_row(each.of, bound, found, runs, "kept" if each.is_kept else "**missed**"))
    return "\n".join(table) + "\n"


def _provenance(found: dict[str, Any]) -> str:
    machine, setting = found["machine"], found["setting"]
    said = ", ".join(f"{key} {_words(value)}" for key, value in setting.items() if key not in ("contestants", "runs"))
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return (
        f"{found['at'][:10]}, commit {found['commit']}; {machine['cores']} cores, {machine['memory_gib']} GiB; "
        f"{versions}; {results.runs(found['rounds'])} runs; {said}.\n"
    )


def _spark(measure: str, rounds: list[dict[str, Any]]) -> list[str]:
    """Return a table for each rate, number of jobs B, or shape."""
    key = {"latency": "rate", "flows": "rate", "fanout": "readers", "throughput": "shape"}[measure]
    best_of, main = (max, "rows/s") if measure == "throughput" else (min, "p50")
    spans = {
        "latency": ["p50", "p99", "first p50", "first p99", "warm"],
        "flows": ["p50", "p99", "first p50", "first p99", "warm"],
        "fanout": ["p50", "p99"],
        "throughput": ["rows/s", "seconds", "a_seconds", "b_seconds"],
    }[measure]
    columns = [*spans, "cpu a", "cpu between", "cpu b", "mb a", "mb between", "mb b"]
    compared = [
        (name, to) for to in COMPARED_TO.get(measure, ("jobpipe", KAFKA)) for name in spans[:2] if name != "seconds"
    ]
    tables = []
    for size in summary.sizes(rounds, key):
        names = summary.sizes(summary.those(rounds, **{key: size}), "contestant")
        firsts = {name: summary.median(measure, rounds, main, contestant=name, **{key: size}) for name in names}
        linked = {name: value for name, value in firsts.items() if value is not None and not name.startswith("floor")}
        best = best_of(linked, key=lambda name: linked[name], default=None)
        ratios = [f"{name} to {to}'s" for name, to in compared]
        table = [_row("", *(HEADS.get(column, column) for column in columns), *ratios)]
        table.append("|" + " --- |" * (len(columns) + len(ratios) + 1))
        for name in names:
            which = {"contestant": name, key: size}
            cells = [_cell(measure, rounds, column, which) for column in columns]
            times = [summary.ratio(measure, rounds, each, {"contestant": to}, **which) for each, to in compared]
            table.append(_row(f"**{name}**" if name == best else name, *cells, *map(_number, times)))
        unit = {"rate": " rows a second", "readers": " job B" if size == 1 else " jobs B", "shape": ""}[key]
        tables += [f"### {_words(size).capitalize()}{unit}\n", "\n".join(table) + "\n"]
        tables += [STILL_FALLING] if any("| over " in row for row in table) else []
    return tables


def _cell(measure: str, rounds: list[dict[str, Any]], column: str, which: dict[str, Any]) -> str:
    told = _number(summary.median(measure, rounds, column, **which))
    chosen = summary.those(rounds, **which)
    falling = sum(not each.get("plateau", True) for each in chosen)
    return f"over {told}" if column == "warm" and falling > len(chosen) / 2 else told


def _alone(measure: str, rounds: list[dict[str, Any]]) -> list[str]:
    columns = ["a_seconds", "b_seconds"]
    table = [_row("", "", "A s", "B s", "A to the floor's", "B to the floor's"), "|" + " --- |" * 6]
    for case in summary.sizes(rounds, "case"):
        for name in summary.sizes(rounds, "contestant"):
            which = {"case": case, "contestant": name}
            cells = [_number(summary.median(measure, rounds, column, **which)) for column in columns]
            times = [summary.ratio(measure, rounds, each, {"contestant": "floor"}, **which) for each in columns]
            table.append(_row(case, name, *cells, *map(_number, times)))
    return ["\n".join(table) + "\n"]


def _transport(measure: str, rounds: list[dict[str, Any]]) -> list[str]:
    news = ["since_call p50", "since_call p99", "since_return p50", "since_return p99"]
    flow = ["gb_per_s", "server_cpu_per_gb", "reader_cpu_per_gb"]
    tables = []
    for what, columns, title in (
        ("news", news, "A batch is known, ms"),
        ("rows", news[:2], "Its rows are there, ms"),
        ("bytes", flow, "Bytes"),
    ):
        table = [_row("", "streams", *columns, f"{columns[0]} to jobpipe's"), "|" + " --- |" * (len(columns) + 3)]
        chosen = [each for each in rounds if each["what"] == what]
        for streams in summary.sizes(chosen, "streams"):
            for name in summary.sizes(chosen, "contestant"):
                which = {"what": what, "streams": streams, "contestant": name}
                cells = [_number(summary.median(measure, rounds, column, **which)) for column in columns]
                to = summary.ratio(measure, rounds, columns[0], {"contestant": "jobpipe"}, **which)
                table.append(_row(name, streams, *cells, _number(to)))
        tables += [f"### {title}\n", "\n".join(table) + "\n"]
    return tables


def _growth(measure: str, rounds: list[dict[str, Any]]) -> list[str]:
    tables = []
    for what in summary.sizes(rounds, "what"):
        chosen = [each for each in rounds if each["what"] == what]
        first = summary.sizes(chosen, "size")[0]
        columns = [name for name in summary.figures(measure, chosen[0]) if not name.endswith(" max")]
        table = [_row(what, *columns), "|" + " --- |" * (len(columns) + 1)]
        for size in summary.sizes(chosen, "size"):
            cells = []
            for column in columns:
                value = summary.median(measure, rounds, column, what=what, size=size)
                times = summary.ratio(measure, rounds, column, {"size": first}, what=what, size=size)
                cells.append(f"{_number(value)} ({_number(times)} ×)" if size != first else _number(value))
            table.append(_row(_words(size), *cells))
        tables.append("\n".join(table) + "\n")
    return tables


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _words(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(_words, value))
    return f"{value:,.15g}" if isinstance(value, int | float) else str(value)


def _number(value: float | None) -> str:
    """Return three digits that count."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
