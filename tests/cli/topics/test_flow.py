"""``jobpipe topics flows status`` and ``reset``, and the flows in ``describe``, against real flow jobs."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import jobpipe
from jobpipe.config import Config, load
from jobpipe.errors import FlowFailed
from jobpipe.flows.flow_driver import Flow
from tests.cli.conftest import DEADLINE, Run
from tests.docs.troubleshooting import on_page

pytestmark = pytest.mark.zookeeper

SCHEMA = pa.schema([("n", pa.int64())])
FLOW_KEYS = {"flow", "source", "log", "publishes", "state", "since", "head", "cursors"}
CURSOR_KEYS = {"partition", "offset", "record_batches", "lag", "claim", "idle"}


@pytest.fixture
def config(module_settings: dict[str, str]) -> Config:
    return load(overrides=module_settings, environ={})


@pytest.fixture
def file(module_settings: dict[str, str], write: Callable[..., str]) -> str:
    return write(module_settings)


@pytest.fixture
def name() -> str:
    """Of a flow, and the first part of its topics' names."""
    return f"alerts-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def orders(config: Config, name: str) -> Iterator[jobpipe.PlainPublisher]:
    """Publishes the flow's source; four batches of four rows are there."""
    with jobpipe.publisher(f"{name}-orders", schema=SCHEMA, config=config, parallelism=2) as orders:
        for batch in range(4):
            orders.write([{"n": 4 * batch + row} for row in range(4)])
        yield orders


def start(config: Config, name: str, *, found: str | None = None, seen: list[int] | None = None) -> Flow:
    """Start a flow that publishes each row to topic ``found``, or none; ``seen`` gets the offsets that it is given."""

    def function(batch: pa.RecordBatch, context: jobpipe.FlowContext) -> pa.RecordBatch | None:
        if seen is not None:
            seen.append(context.offset)
        return None if found is None else batch

    return jobpipe.flow(
        subscribe=f"{name}-orders",
        name=name,
        function=function,
        publish=found,
        schema=None if found is None else SCHEMA,
        starting="earliest",
        config=config,
    )


def until_done(flow: Flow, offset: int) -> None:
    """Wait until all cursors are at an offset."""
    deadline = time.monotonic() + DEADLINE
    while {line.offset for line in flow.status().partitions} != {offset}:
        assert flow.exception() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_status(run: Run, file: str, config: Config, name: str, orders: jobpipe.PlainPublisher) -> None:
    with start(config, name, found=f"{name}-found") as flow:
        until_done(flow, 4)
        (line,) = json.loads(run("topics", "flows", "status", name, "--json", file=file).stdout)
        assert set(line) == FLOW_KEYS
        assert (line["flow"], line["source"], line["publishes"]) == (name, f"{name}-orders", f"{name}-found")
        assert (line["state"], line["head"]) == ("connected", 4)
        assert [set(cursor) for cursor in line["cursors"]] == [CURSOR_KEYS, CURSOR_KEYS]
        assert [(cursor["partition"], cursor["offset"], cursor["lag"]) for cursor in line["cursors"]] == [
            *((0, 4, 0), (1, 4, 0)),
        ]
        header, *rows = run("topics", "flows", "status", name, file=file).stdout.splitlines()
        assert header.split()[:6] == ["FLOW", "SOURCE", "PUBLISHES", "STATE", "PARTITION", "OFFSET"]
        assert [row.split()[:4] for row in rows] == [[name, f"{name}-orders", f"{name}-found", "connected"]] * 2


def test_status_of_a_flow_that_is_stopped(
    run: Run, file: str, config: Config, name: str, orders: jobpipe.PlainPublisher
) -> None:
    """Its cursors lie in its source: nothing is published."""
    with start(config, name) as flow:
        until_done(flow, 4)
    orders.write([{"n": 16}])
    (line,) = json.loads(run("topics", "flows", "status", name, "--json", file=file).stdout)
    assert (line["publishes"], line["state"], line["head"]) == (None, "absent", 5)
    assert [(cursor["offset"], cursor["lag"]) for cursor in line["cursors"]] == [(4, 1), (4, 1)]
    assert name in run("topics", "flows", "status", file=file).stdout


def test_status_of_a_flow_that_does_not_exist(
    run: Run, file: str, config: Config, name: str, orders: jobpipe.PlainPublisher
) -> None:
    with start(config, name) as flow:
        until_done(flow, 4)
    on_page(run("topics", "flows", "status", "nosuch", file=file).stderr, "flow '…' has no cursors")
    for command in (["status", "nosuch"], ["reset", "nosuch"], ["reset", "nosuch", "--topic", f"{name}-orders"]):
        result = run("topics", "flows", *command, file=file)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "flow 'nosuch' has no cursors in " in result.stderr
        assert name in result.stderr


def test_describe_shows_the_flows_of_a_topic(
    run: Run, file: str, config: Config, name: str, orders: jobpipe.PlainPublisher
) -> None:
    with start(config, name, found=f"{name}-found") as flow:
        until_done(flow, 4)
        lines = run("topics", "describe", f"{name}-found", file=file).stdout.splitlines()
        (at,) = [number for number, line in enumerate(lines) if line.startswith("FLOW ")]
        assert lines[at + 1].split()[:4] == [name, f"{name}-orders", "2", "4"]
    assert "FLOW" not in run("topics", "describe", f"{name}-orders", file=file).stdout


@pytest.mark.slow
def test_reset(run: Run, file: str, config: Config, name: str, orders: jobpipe.PlainPublisher) -> None:
    """The next start begins where the subscription stands, which ``seek`` moves."""
    with start(config, name) as flow:
        until_done(flow, 4)
    dry = run("topics", "flows", "reset", name, "--dry-run", file=file)
    assert dry.exit_code == 0
    assert dry.stdout.startswith(f"would delete 2 cursors of flow {name} in topic {name}-orders: ")
    assert dry.stdout.endswith(f"at offset 4\nthe next start begins at offset 4 of topic {name}-orders\n")
    done = json.loads(run("topics", "flows", "reset", name, "--json", file=file).stdout)
    assert (done["flow"], done["topic"], done["dry_run"]) == (name, f"{name}-orders", False)
    assert done["begins"] == {f"{name}-orders": 4}
    assert [cursor["offset"] for cursor in done["cursors_of"][0]["cursors"]] == [4, 4]
    assert run("topics", "flows", "reset", name, file=file).exit_code == 1
    assert run("subscriptions", "seek", f"{name}-orders", name, "--to", "1", file=file).exit_code == 0
    seen: list[int] = []
    with start(config, name, seen=seen) as flow:
        until_done(flow, 4)
    assert set(seen) == {1, 2, 3}


@pytest.mark.slow
def test_reset_of_a_flow_that_runs(
    run: Run, file: str, config: Config, name: str, orders: jobpipe.PlainPublisher
) -> None:
    """It fails, and says why."""
    with start(config, name, found=f"{name}-found") as flow:
        until_done(flow, 4)
        refused = run("topics", "flows", "reset", name, file=file)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"flow {name} is connected to topic {name}-orders: stop it first" in refused.stderr
        assert run("topics", "flows", "reset", name, "--topic", f"{name}-found", file=file).exit_code == 2
        result = run("topics", "flows", "reset", name, "--force", file=file)
        assert result.stdout.startswith(f"deleted 2 cursors of flow {name} in topic {name}-found: ")
        with pytest.raises(FlowFailed) as error:
            flow.await_end(DEADLINE)
        on_page(error.value, "FlowFailed: flow '…'")


def test_seek_and_drop_of_a_flow(
    run: Run, file: str, config: Config, name: str, orders: jobpipe.PlainPublisher
) -> None:
    """A seek moves nothing of a flow that has cursors. After a reset without a subscription ``starting`` holds."""
    with start(config, name, found=f"{name}-found") as flow:
        until_done(flow, 4)
    refused = run("subscriptions", "seek", f"{name}-orders", name, "--to", "earliest", file=file)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{name} is a flow" in refused.stderr
    assert f"`jobpipe topics flows reset {name}`" in refused.stderr
    assert run("subscriptions", "drop", f"{name}-orders", name, file=file).exit_code == 0
    reset = run("topics", "flows", "reset", name, "--topic", f"{name}-found", file=file)
    assert (reset.exit_code, len(reset.stdout.splitlines())) == (0, 1)
    assert f"topic {name}-orders has no subscription {name}: the next start begins where starting= says" in reset.stderr


@pytest.mark.slow
def test_reset_of_a_name_that_two_topics_keep(
    run: Run, file: str, config: Config, name: str, orders: jobpipe.PlainPublisher
) -> None:
    with start(config, name) as flow:
        until_done(flow, 4)
    with start(config, name, found=f"{name}-found") as flow:
        until_done(flow, 4)
        result = run("topics", "flows", "reset", name, file=file)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"topics {name}-found, {name}-orders keep cursors of flow {name}; give --topic" in result.stderr
        assert run("topics", "flows", "reset", name, "--topic", f"{name}-orders", "--force", file=file).exit_code == 0
        (line,) = json.loads(run("topics", "flows", "status", name, "--json", file=file).stdout)
        assert line["publishes"] == f"{name}-found"
