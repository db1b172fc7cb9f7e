"""The dashboard: its queries name metrics that there are, in PromQL that Prometheus takes; panels do not overlap."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobpipe.metrics.grafana_dashboard import WIDTH, dashboard_file
from jobpipe.metrics.metric_table import METRICS, MetricKind

PROMTOOL = shutil.which("promtool")


@pytest.fixture
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dashboard_file())
    return found


def queries(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_its_queries_name_metrics_that_there_are(dashboard: dict[str, Any]) -> None:
    known = {metric.sample for metric in METRICS.values()}
    known |= {f"{metric.name}_count" for metric in METRICS.values() if metric.kind is MetricKind.HISTOGRAM}
    named = set()
    for query in queries(dashboard):
        words = set(re.findall(r"jobpipe_\w+", query))
        labels = set(re.findall(r"(jobpipe_\w+)[=!]", query))  # a state set has a label of its own name
        assert words - labels <= known, query
        assert labels <= METRICS.keys()
        named |= words
    assert {"jobpipe_topic_rows_total", "jobpipe_subscription_lag_seconds", "jobpipe_job_state"} <= named


def test_its_legends_name_labels_that_there_are(dashboard: dict[str, Any]) -> None:
    known = {label for metric in METRICS.values() for label in metric.labels} | METRICS.keys()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known


def test_no_panel_lies_on_another(dashboard: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    for place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= WIDTH
    for a, b in itertools.combinations(places, 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)


@pytest.mark.processes
@pytest.mark.skipif(PROMTOOL is None, reason="NOT TESTED: PromQL of the dashboard; promtool is not here")
def test_prometheus_takes_its_queries(dashboard: dict[str, Any], tmp_path: Path) -> None:
    assert PROMTOOL is not None
    written = [query.replace("$__rate_interval", "1m").replace("$topic", ".*") for query in queries(dashboard)]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(written)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [PROMTOOL, "check", "rules", "rules.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
