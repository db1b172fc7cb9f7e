"""Writes the tables of docs/monitoring.md: ``python -m jobpipe.metrics.metrics_page docs/monitoring.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from jobpipe.metrics.alert_rules import RULES
from jobpipe.metrics.metric_table import METRICS, Metric

BEGIN = "<!-- made from jobpipe/metrics by `make docs`; do not edit -->\n"
END = "<!-- end of what is made -->\n"


def metrics_page() -> str:
    """Return the tables of metrics and of alerts."""
    lines = ["| metric | type | labels | what it says |", "|---|---|---|---|"]
    lines += [_row(metric) for metric in METRICS.values()]
    lines += ["", "| alert | severity | lasts | condition |", "|---|---|---|---|"]
    lines += [f"| `{rule.name}` | {rule.severity} | {rule.lasts} | `{rule.condition}` |" for rule in RULES]
    return "\n".join([*lines, ""])


def with_metrics(page: str) -> str:
    """Return a page with the tables in the place of those that it has."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{metrics_page()}\n{END}{after}"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
    states = f" States: {', '.join(metric.states)}." if metric.states else ""
    return f"| `{metric.sample}` | {metric.kind} | {labels} | {metric.about}{states} |"


def main() -> None:
    page = Path(sys.argv[1])
    page.write_text(with_metrics(page.read_text()))


if __name__ == "__main__":
    main()
