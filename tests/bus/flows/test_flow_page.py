"""The blocks of docs/flow.md, run as they stand there, and the errors of flow jobs on the page of errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jobpipe
from jobpipe.config import Config, load
from jobpipe.errors import ConfigError, FlowFailed
from tests.docs.pages import block, shell
from tests.docs.troubleshooting import on_page

pytestmark = pytest.mark.zookeeper

PAGE = "docs/flow.md"
DEADLINE = 60.0
ORDERS = pa.schema([("customer", pa.string()), ("amount", pa.float64()), ("note", pa.string())])


@pytest.fixture
def environ(settings_of_test: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of this test, where the blocks look for them."""
    for key, value in settings_of_test.items():
        monkeypatch.setenv(f"JOBPIPE__{key.removeprefix('jobpipe.').replace('.', '__').upper()}", value)


def run(name: str, **names: Any) -> dict[str, Any]:
    """Run a block with these names, to its end; return all names that it knows then."""
    known: dict[str, Any] = {"jobpipe": jobpipe, **names}
    code = compile(block(PAGE, name), f"{PAGE}:{name}", "exec")
    if "sys.exit" not in block(PAGE, name):
        exec(code, known)  # noqa: S102 - our own page
        return known
    with pytest.raises(SystemExit) as ended:
        exec(code, known)  # noqa: S102
    assert ended.value.code == 0
    return known


@pytest.fixture
def orders(config: Config, environ: None) -> Iterator[jobpipe.PlainPublisher]:
    """Publishes the topic that the blocks read: two orders, of which one is large."""
    with jobpipe.publisher("orders", schema=ORDERS, config=config) as orders:
        orders.write([{"customer": "a", "amount": 5.0, "note": "x"}, {"customer": "b", "amount": 500.0, "note": "y"}])
        yield orders


class Reader:
    """Reads a topic to its end, in a thread."""

    def __init__(self, topic: str, config: Config) -> None:
        self._topic = topic
        self._config = config
        self._rows: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with jobpipe.subscribe(self._topic, name="reader", starting="earliest", config=self._config) as batches:
            for batch in batches:
                self._rows += batch.to_pylist()

    def rows(self) -> list[dict[str, Any]]:
        """Wait for the end; return what came."""
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        return self._rows


@pytest.mark.slow
def test_a_flow_in_a_plain_process(config: Config, orders: jobpipe.PlainPublisher) -> None:
    """It publishes what its function returns, and ends with its source."""
    reader = Reader("large-orders", config)
    ending = threading.Timer(1.0, orders.close, kwargs={"final": True})
    ending.start()
    known = run("flow-plain")
    assert reader.rows() == [{"customer": "b", "amount": 500.0}]
    ending.join()
    run("flow-test", **{name: known[name] for name in ("pa", "large", "SCHEMA")})


@pytest.mark.slow
def test_the_block_for_spark_runs_without_it(config: Config, orders: jobpipe.PlainPublisher) -> None:
    """Its function is the same in a plain process."""
    reader = Reader("alerts", config)
    ending = threading.Timer(1.0, orders.close, kwargs={"final": True})
    ending.start()
    run("flow-spark", spark=None)
    assert reader.rows() == [{"customer": "b", "score": pytest.approx(5.0)}]
    ending.join()


@pytest.mark.slow
def test_the_commands(config: Config, orders: jobpipe.PlainPublisher, tmp_path: Path) -> None:
    with jobpipe.flow(subscribe="orders", name="alerts", function=lambda *_: None, starting="earliest", config=config):
        done = shell(block(PAGE, "flow-look"), tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [["FLOW", "SOURCE"], ["alerts", "orders"]] * 2
    assert lines[4].startswith("would delete 1 cursor of flow alerts in topic orders: ")


# -- the page of errors --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_function_that_fails(config: Config, orders: jobpipe.PlainPublisher) -> None:
    def function(batch: pa.RecordBatch, context: jobpipe.FlowContext) -> None:
        raise ValueError("no such customer")

    with jobpipe.flow(subscribe="orders", name="alerts", function=function, starting="earliest", config=config) as flow:
        with pytest.raises(
            FlowFailed, match="offset 0, partition 0, rows 0 to 1: ValueError: no such customer"
        ) as told:
            flow.await_end(DEADLINE)
        on_page(told.value, "FlowFailed: the flow's function")
        assert flow.exception() is told.value


@pytest.mark.slow
def test_a_setup_that_fails(config: Config, orders: jobpipe.PlainPublisher) -> None:
    def setup() -> None:
        raise FileNotFoundError("model.joblib")

    with jobpipe.flow(subscribe="orders", name="alerts", function=lambda *_: None, setup=setup, config=config) as flow:
        with pytest.raises(FlowFailed, match=r"FileNotFoundError: model\.joblib") as told:
            flow.await_end(DEADLINE)
        on_page(told.value, "FlowFailed: the flow's setup")


def test_a_flow_with_acks_all(settings_of_test: dict[str, str]) -> None:
    config = load(overrides={**settings_of_test, "jobpipe.acks": "all"}, environ={})
    with pytest.raises(ConfigError) as told:
        jobpipe.flow(
            subscribe="orders", name="alerts", function=lambda *_: None, publish="alerts", schema=ORDERS, config=config
        )
    on_page(told.value, "ConfigError: a flow")
