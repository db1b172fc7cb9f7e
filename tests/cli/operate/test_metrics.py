"""``jobpipe metrics`` over a real topic, and the files that it prints."""

from __future__ import annotations

import json
import signal
import socket
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from jobpipe.config import Config
from jobpipe.publishing.topic_publisher import Publisher
from tests.cli.buskit import publish
from tests.cli.conftest import DEADLINE, Program, Run

Number = dict[tuple[str, str], float]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def ask(url: str, token: str) -> httpx.Response:
    return httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=DEADLINE, trust_env=False)


def samples(answer: httpx.Response) -> Number:
    """The samples of one label or none, by name and that label."""
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if len(sample.labels) < 2
    }


@pytest.mark.processes
@pytest.mark.zookeeper
def test_a_scraper_gets_what_a_topic_has(start: Callable[..., Program], file: str, config: Config) -> None:
    """With the token that may only look; a stranger gets nothing, and SIGTERM ends it well."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    publisher = Publisher(topic, config=config, parallelism=2, min_subscribers=0)
    publish(publisher, 0, 1)
    port = free_port()
    program = start("metrics", "--port", str(port), file=file)
    line = program.line()
    assert f"http://127.0.0.1:{port}/metrics" in line
    token = (config.home / "server" / "view-token").read_text().strip()
    url = f"http://127.0.0.1:{port}/metrics"
    found = samples(ask(url, token))
    assert found["jobpipe_topic_up", topic] == 1
    assert found["jobpipe_topic_rows_total", topic] == 8
    assert found["jobpipe_topic_batches_total", topic] == 2
    assert found["jobpipe_topic_partitions", topic] == 2
    assert found["jobpipe_topic_spool_limit_bytes", topic] == config.spool_max_bytes
    assert found["jobpipe_registry_up", ""] == 1
    assert found["jobpipe_certificate_expiry_timestamp_seconds", "jobpipe.ssl.cert"] > 1.7e9
    assert ask(url, "wrong").status_code == 401
    program.process.send_signal(signal.SIGTERM)
    assert program.end()[0] == 0
    publisher.close()


@pytest.mark.processes
def test_a_registry_that_is_away_is_a_sample(
    start: Callable[..., Program], write: Callable[..., str], tmp_path: Path
) -> None:
    """At its start, too: who is told of outages must not go with them."""
    port, nothing = free_port(), free_port()
    settings = {
        "jobpipe.home": str(tmp_path / "home"),
        "jobpipe.registerserver.connect": f"127.0.0.1:{nothing}",
        "jobpipe.registerserver.connect.timeout": "500ms",
        "jobpipe.ssl.enabled": False,
        "jobpipe.sinkserver.subnet": "127.0.0.0/8",
    }
    program = start("metrics", "--port", str(port), file=write(settings))
    assert "/metrics" in program.line()
    token = (tmp_path / "home" / "server" / "view-token").read_text().strip()
    found = samples(ask(f"http://127.0.0.1:{port}/metrics", token))
    assert found["jobpipe_registry_up", ""] == 0
    assert ("jobpipe_topic_up", "") not in found
    program.process.send_signal(signal.SIGTERM)
    assert program.end()[0] == 0


def test_files_for_other_programs(run: Run) -> None:
    rules = run("metrics", "alert-rules")
    assert rules.exit_code == 0
    assert {group["name"] for group in yaml.safe_load(rules.stdout)["groups"]} == {"jobpipe"}
    dashboard = run("metrics", "grafana-dashboard")
    assert dashboard.exit_code == 0
    assert json.loads(dashboard.stdout)["uid"] == "jobpipe"
