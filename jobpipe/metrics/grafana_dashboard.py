"""A dashboard for Grafana, to be imported: topics, subscriptions, jobs, and what keeps them from going on.

The form is Grafana's JSON model: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobpipe.metrics import metric_table as table

SCHEMA_VERSION = 39  # of Grafana 10 and 11
WIDTH = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_CHOSEN = 'topic=~"$topic"'


@dataclass(frozen=True)
class _Query:
    """PromQL, and the legend of its series."""

    expression: str
    legend: str = ""


@dataclass(frozen=True)
class _Panel:
    """One panel; ``unit`` as Grafana names it."""

    title: str
    kind: str
    queries: tuple[_Query, ...]
    unit: str = "short"
    about: str = ""
    width: int = 12
    height: int = 8
    options: Mapping[str, Any] = field(default_factory=dict)


def _rate(metric: table.Metric) -> str:
    return f"rate({metric.sample}{{{_CHOSEN}}}[$__rate_interval])"


def _of_topics(metric: table.Metric) -> str:
    return f"{metric.sample}{{{_CHOSEN}}}"


_SUBSCRIPTION = "{{topic}} → {{subscription}}"


def _hops(suffix: str) -> str:
    return f"rate({table.HOP_SECONDS.name}{suffix}{{{_CHOSEN}}}[$__rate_interval])"


def _quantile(part: float, name: str) -> _Query:
    return _Query(f"histogram_quantile({part}, {_hops('_bucket')})", f"{_SUBSCRIPTION} {name}")


_JOB = "{{pipeline}}/{{job_name}}"
_LAST = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"}


def _stat(title: str, query: str, unit: str = "short") -> _Panel:
    """Return a panel of one number, six to a row."""
    return _Panel(title, "stat", (_Query(query),), unit=unit, width=WIDTH // 6, height=4, options=_LAST)


ROWS: Mapping[str, Sequence[_Panel]] = {
    "Now": (
        _stat("Registry", f"min({table.REGISTRY_UP.sample})"),
        _stat("Topics served", f"count({table.TOPIC_UP.sample})"),
        _stat("Publishers that wait", f"sum({table.TOPIC_WAITING.sample}) or vector(0)"),
        _stat("Largest lag", f"max({table.LAG_SECONDS.sample})", unit="s"),
        _stat(
            "Jobs that failed",
            f'sum({table.JOB_STATE.sample}{{{table.JOB_STATE.name}=~"FAILED|LOST"}}) or vector(0)',
        ),
        _stat("First certificate ends", f"min({table.CERTIFICATE_EXPIRY.sample}) - time()", unit="s"),
    ),
    "Topics": (
        _Panel("Rows published", "timeseries", (_Query(_rate(table.TOPIC_ROWS), "{{topic}}"),), unit="rowsps"),
        _Panel("Bytes published", "timeseries", (_Query(_rate(table.TOPIC_BYTES), "{{topic}}"),), unit="Bps"),
        _Panel(
            "Lag in time",
            "timeseries",
            (_Query(_of_topics(table.LAG_SECONDS), _SUBSCRIPTION),),
            unit="s",
            about="Since the first batch that a subscription has not acknowledged was published.",
        ),
        _Panel(
            "Hop: from seal to acknowledgement, median and p99",
            "timeseries",
            (_quantile(0.5, "p50"), _quantile(0.99, "p99")),
            unit="s",
            about="An acknowledgement comes when the reader's micro-batch is committed.",
        ),
        _Panel("Batches acknowledged", "timeseries", (_Query(_hops("_count"), _SUBSCRIPTION),), unit="cps"),
        _Panel("Lag in rows", "timeseries", (_Query(_of_topics(table.LAG_ROWS), _SUBSCRIPTION),)),
        _Panel(
            "Spool, of its limit",
            "timeseries",
            (_Query(f"{_of_topics(table.TOPIC_SPOOL)} / {_of_topics(table.TOPIC_SPOOL_LIMIT)}", "{{topic}}"),),
            unit="percentunit",
            about="At 1 the publisher waits.",
        ),
        _Panel(
            "Whom publishers wait for",
            "timeseries",
            (_Query(_of_topics(table.TOPIC_WAITS_FOR), "{{topic}}: {{kind}} {{name}}"),),
        ),
        _Panel(
            "Subscriptions that are not connected",
            "timeseries",
            (
                _Query(
                    f'{table.LINK_STATE.sample}{{{_CHOSEN}, {table.LINK_STATE.name}!="connected"}} == 1',
                    f"{_SUBSCRIPTION}: {{{{{table.LINK_STATE.name}}}}}",
                ),
            ),
        ),
        _Panel(
            "Rows lost or doubled",
            "timeseries",
            (
                _Query(
                    f"increase({_of_topics(table.DIFFERENCE_ROWS)}[$__rate_interval])", f"{_SUBSCRIPTION} {{{{kind}}}}"
                ),
            ),
            about="`jobpipe ledger` names the ranges.",
        ),
        _Panel(
            "Rows committed that are not proven",
            "timeseries",
            (_Query(_rate(table.UNPROVEN_ROWS), _SUBSCRIPTION),),
            unit="rowsps",
            about="A coordinator ended before the acknowledgement, or the reader is an older one.",
        ),
        _Panel("Links that came back", "timeseries", (_Query(_rate(table.RECONNECTS), _SUBSCRIPTION),), unit="cps"),
    ),
    "Captured databases": (
        _Panel(
            "Lag of captures",
            "timeseries",
            (_Query(_of_topics(table.SOURCE_LAG_SECONDS), "{{topic}}"),),
            unit="s",
            about="All that was committed longer ago is published.",
        ),
        _Panel(
            "Log that is not published",
            "timeseries",
            (_Query(_of_topics(table.SOURCE_LAG_BYTES), "{{topic}}"),),
            unit="bytes",
        ),
        _Panel(
            "Log that the database keeps",
            "timeseries",
            (_Query(_of_topics(table.SOURCE_RETAINED), "{{topic}}"),),
            unit="bytes",
        ),
        _Panel(
            "Log until changes are removed",
            "timeseries",
            (_Query(_of_topics(table.SOURCE_SAFE), "{{topic}}"),),
            unit="bytes",
            about="Where the database has a limit (max_slot_wal_keep_size).",
        ),
    ),
    "Jobs of the control server": (
        _Panel(
            "States",
            "state-timeline",
            (_Query(f"{table.JOB_STATE.sample} == 1", f"{_JOB} {{{{{table.JOB_STATE.name}}}}}"),),
            width=WIDTH,
        ),
        _Panel(
            "Rows processed",
            "timeseries",
            (_Query(f"rate({table.JOB_ROWS.sample}[$__rate_interval])", _JOB),),
            unit="rowsps",
        ),
        _Panel(
            "Micro-batch, median and p99",
            "timeseries",
            tuple(
                _Query(
                    f"histogram_quantile({part}, rate({table.BATCH_SECONDS.sample}[$__rate_interval]))",
                    f"{_JOB} {name}",
                )
                for part, name in ((0.5, "p50"), (0.99, "p99"))
            ),
            unit="s",
        ),
        _Panel(
            "Dead letters",
            "timeseries",
            (_Query(f"increase({table.DEAD_LETTERS.sample}[$__rate_interval])", _JOB),),
        ),
        _Panel("Attempts in 15 minutes", "timeseries", (_Query(f"increase({table.JOB_ATTEMPTS.sample}[15m])", _JOB),)),
        _Panel(
            "Intervals that wait, run, or have failed",
            "timeseries",
            (_Query(table.SCHEDULE_INTERVALS.sample, f"{_JOB} {{{{state}}}}"),),
        ),
        _Panel(
            "Next interval is due in", "timeseries", (_Query(f"{table.SCHEDULE_DUE.sample} - time()", _JOB),), unit="s"
        ),
    ),
}


def dashboard_file() -> str:
    """Return the JSON that Grafana's *Import dashboard* takes; it asks for the data source."""
    return json.dumps(_dashboard(), indent=2, ensure_ascii=False) + "\n"


def _dashboard() -> dict[str, Any]:
    return {
        "title": "jobpipe",
        "uid": "jobpipe",
        "tags": ["jobpipe"],
        "timezone": "browser",
        "schemaVersion": SCHEMA_VERSION,
        "refresh": "10s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "topic",
                    "label": "Topic",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": f"label_values({table.TOPIC_UP.sample}, topic)",
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    number = top = 0
    for title, panels in ROWS.items():
        number += 1
        place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        left = height = 0
        for panel in panels:
            if left + panel.width > WIDTH:
                left, top, height = 0, top + height, 0
            number += 1
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": panel.height})
            left, height = left + panel.width, max(height, panel.height)
        top += height


def _panel(panel: _Panel, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": dict(panel.options),
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
            }
            for index, query in enumerate(panel.queries)
        ],
    }
