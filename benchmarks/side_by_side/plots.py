"""The plots of RESULTS.md, as SVG: the same for the same figures, whoever draws them when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.side_by_side import summary

mpl.use("svg")
mpl.rcParams.update({"svg.hashsalt": "jobpipe", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                     "axes.spines.right": False})  # fmt: skip
COLOURS = {
    "jobpipe": "#d55e00", "jobpipe-ahead": "#e69f00", "kafka-json": "#0072b2", "kafka-arrow": "#56b4e9",
    "files": "#009e73", "floor": "#999999", "floor-collect": "#cccccc", "flight": "#0072b2", "tls": "#999999",
    "flow": "#882255", "plain": "#cc79a7", "plain-flow": "#aa4499", "plain-flow-8": "#ddaacc",
    "plain-flow-flow": "#661144", "kafka-plain": "#004466", "kafka-rtm": "#88ccee",
}  # fmt: skip
PANELS = {
    "latency": ("rate", [("p50", "p50, ms"), ("p99", "p99, ms"), ("cpu", "processors kept busy, all")]),
    "flows": ("rate", [("p50", "p50, ms"), ("p99", "p99, ms"), ("cpu", "processors kept busy, all")]),
    "fanout": ("readers", [("p50", "p50, ms"), ("p99", "p99, ms"), ("cpu a", "processors kept busy by job A")]),
    "throughput": ("shape", [("rows/s", "rows a second"), ("cpu", "CPU s per million rows")]),
}


def draw(measure: str, rounds: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Draw what a measure found, each run a dot and their median a bar; return the files."""
    if measure not in PANELS or not rounds:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    key, panels = PANELS[measure]
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.2), layout="constrained", squeeze=False)
    for place, (name, title) in zip(axes[0], panels, strict=True):
        _bars(place, measure, rounds, key, name)
        place.set_title(title)
        place.set_xlabel({"rate": "rows a second", "readers": "jobs B", "shape": ""}[key])
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    path = folder / f"{measure}.svg"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    return [path]


def _bars(place: Axes, measure: str, rounds: list[dict[str, Any]], key: str, name: str) -> None:
    sizes, names = summary.sizes(rounds, key), summary.sizes(rounds, "contestant")
    width = 0.8 / len(names)
    for index, contestant in enumerate(names):
        colour = COLOURS.get(contestant, "#000000")
        for at, size in enumerate(sizes):
            chosen = summary.those(rounds, contestant=contestant, **{key: size})
            values = sorted(_value(measure, each, name) for each in chosen)
            if not values:
                continue
            x = at - 0.4 + width * (index + 0.5)
            place.bar(x, values[len(values) // 2], width * 0.9, color=colour, label=contestant if at == 0 else None)
            place.plot([x] * len(values), values, ".", color="black", markersize=2)
    place.set_xticks(range(len(sizes)), [f"{size:,g}" if isinstance(size, int | float) else size for size in sizes])
    place.set_ylim(bottom=0)


def _value(measure: str, found: dict[str, Any], name: str) -> float:
    figures = summary.figures(measure, found)
    if name == "cpu":
        return sum(value for key, value in figures.items() if key.startswith("cpu "))
    return figures[name]
