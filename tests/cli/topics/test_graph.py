"""``jobpipe topics graph`` against real publishers and readers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobpipe.config import Config, load
from jobpipe.publishing.topic_publisher import Publisher
from tests.cli.buskit import publish
from tests.cli.conftest import DEADLINE, Program, Run

pytestmark = pytest.mark.zookeeper

Start = Callable[..., Program]


@pytest.fixture
def publisher(config: Config) -> Iterator[Publisher]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBPIPE_PIPELINE", "shop")
        patch.setenv("JOBPIPE_JOB", "import")
        made = Publisher("orders", config=config, name="till", parallelism=2)
    yield made
    made.close()


def graph(run: Run, file: str, *args: str) -> dict[str, Any]:
    result = run("topics", "graph", "--format", "json", *args, file=file)
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_an_empty_namespace(run: Run, file: str, config: Config) -> None:
    result = run("topics", "graph", file=file)
    assert (result.exit_code, result.stdout) == (0, f"namespace {config.namespace} has no topics\n")


def test_a_job_a_program_and_what_is_between_them(
    run: Run, file: str, config: Config, publisher: Publisher, start: Start
) -> None:
    publish(publisher, 0, 1)
    reader = start("topics", "tail", "orders", "--name", "billing", "--from", "earliest", "--json", file=file)
    for _ in range(8):
        assert reader.line()
    found = graph(run, file, "--interval", "0.1")
    job, program = found["applications"][1], found["applications"][0]
    assert (job["name"], job["pipeline"], job["job"], job["state"]) == ("shop.import", "shop", "import", "connected")
    assert (program["name"], program["pipeline"], program["job"]) == ("jobpipe.cli.main", "", "")
    assert f"-{reader.process.pid}-" in program["id"]
    (topic,) = found["topics"]
    assert (topic["name"], topic["state"], topic["rows"], topic["rows_per_second"]) == ("orders", "published", 8, 0.0)
    assert [(edge["application"], edge["kind"], edge["name"], edge["state"]) for edge in found["edges"]] == [
        (job["key"], "publishes", "till", "connected"),
        (program["key"], "reads", "billing", "connected"),
    ]
    assert graph(run, file, "--interval", "0")["topics"][0]["rows_per_second"] is None
    lines = run("graph", "--interval", "0", file=file).stdout.splitlines()
    assert lines[2:4] == ["[shop.import]", "└─ orders  8 rows · 2 partitions"]
    assert lines[4].startswith("   └─ [jobpipe.cli.main]  ")
    reader.close()
    until_absent(run, file)
    (edge,) = (edge for edge in graph(run, file)["edges"] if edge["kind"] == "reads")
    assert edge["application"] == program["key"]  # who it was is kept with the subscription


def until_absent(run: Run, file: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while any(edge["state"] == "connected" for edge in graph(run, file, "--interval", "0")["edges"][1:]):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_who_blocks_whom(run: Run, file: str, config: Config, settings_of_test: dict[str, str]) -> None:
    waits = load(overrides={**settings_of_test, "acks": "all", "acks.timeout": "60s"}, environ={})
    publisher = Publisher("orders", config=waits, name="till", required_subscribers=["billing"])
    sealing = threading.Thread(target=lambda: publish(publisher, 0), daemon=True)
    sealing.start()
    try:
        deadline = time.monotonic() + DEADLINE
        while not (found := graph(run, file, "--interval", "0"))["blocks"]:
            assert time.monotonic() < deadline
        (block,) = found["blocks"]
        keys = {each["key"]: each["name"] for each in found["applications"]}
        assert (block["topic"], keys[block["by"]]) == ("orders", "billing")
        for shape, said in (("text", "BLOCKS"), ("dot", "color=red"), ("mermaid", "linkStyle")):
            result = run("topics", "graph", "--interval", "0", "--format", shape, file=file)
            assert (result.exit_code, said in result.stdout) == (0, True)
        run("topics", "tail", "orders", "--name", "billing", "--from", "earliest", "--timeout", "0", file=file)
        sealing.join(DEADLINE)
        assert not sealing.is_alive()
    finally:
        publisher.close()
