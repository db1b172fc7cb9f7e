"""What ``jobpipe.flow``, ``flow_test`` and ``subscribe`` refuse before they look for a topic."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jobpipe
from jobpipe.config import Config, load
from jobpipe.errors import ConfigError, FlowFailed
from jobpipe.flows.flow_settings import FlowOptions

SCHEMA = pa.schema([("n", pa.int64())])
BATCH = pa.record_batch([[1, 2]], schema=SCHEMA)


class Taken(Exception):
    """The arguments fit; raised instead of running a flow."""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load(overrides={"jobpipe.home": str(tmp_path)}, environ={})


@pytest.fixture(autouse=True)
def no_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(options: FlowOptions, _runner: object) -> None:
        raise Taken(options)

    monkeypatch.setattr("jobpipe.spark.flow.spark_flow.Flow", taken)


def same(batch: pa.RecordBatch, context: object) -> pa.RecordBatch:
    return batch


def yielding(batch: pa.RecordBatch, context: object) -> Iterator[pa.RecordBatch]:
    yield batch
    yield batch


async def waiting(*_: object) -> None:
    pass


async def streaming(*_: object) -> Any:
    yield None


class Waiting:
    async def __call__(self, *_: object) -> None:
        pass


def begin(config: Any, spark: Any = None, **given: Any) -> Any:
    arguments = {"subscribe": "orders", "name": "found", "function": same, "publish": "found", "schema": SCHEMA}
    return jobpipe.flow(spark, config=config, **{**arguments, **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": None}, "name: "),
        ({"subscribe": None}, "subscribe: "),
        ({"required_subscribers": [None]}, "required_subscribers: "),
        ({"required_subscribers": None}, "required_subscribers=None, expected a name, or a list"),
        ({"required_subscribers": 5}, "required_subscribers=5, expected a name, or a list"),
        ({"partitions": 2.5}, "partitions=2.5, .* whole number from 1"),
        ({"partitions": True}, "partitions=True, .* whole number from 1"),
        ({"partitions": "3"}, "partitions='3', .* whole number from 1"),
        ({"fail_on_data_loss": None}, "fail_on_data_loss=None, expected True or False"),
        ({"fail_on_data_loss": "false"}, "fail_on_data_loss='false', expected True or False"),
        ({"schema": "n bigint"}, "schema='n bigint', expected a pyarrow.Schema"),
        ({"schema": {"n": pa.int64()}}, "expected a pyarrow.Schema"),
        ({"schema": [("n", pa.int64())]}, "expected a pyarrow.Schema"),
        ({"spark": "orders"}, "a Spark session, got str; the topic is subscribe="),
        ({"spark": False}, "a Spark session, got bool"),
        ({"function": 5}, "function must be callable, got int"),
        ({"setup": 5}, "setup must be callable, got int"),
        ({"function": waiting}, "function is asynchronous"),
        ({"function": streaming}, "function is asynchronous"),
        ({"function": Waiting()}, "function is asynchronous"),
        ({"function": functools.partial(waiting, 1)}, "function is asynchronous"),
        ({"setup": waiting}, "setup is asynchronous"),
        ({"startng": "earliest"}, "(?s)jobpipe.flow.*startng.*no settings besides a loaded configuration"),
        ({"read_timeout": 5}, "no settings besides a loaded configuration"),
        ({"ssl_key_password": "canary"}, r"(?s)\A((?!canary).)*\Z"),
        ({"config": 5}, "a file, or a loaded configuration"),
    ],
)
def test_what_does_not_fit(config: Config, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        begin(**{"config": config, **given})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"publish": None, "schema": None},
        {"function": yielding, "partitions": 3, "required_subscribers": ["a", "b"]},
        {"required_subscribers": "a", "fail_on_data_loss": False},
    ],
)
def test_what_fits(config: Config, given: dict[str, Any]) -> None:
    with pytest.raises(Taken):
        begin(config, **given)


def test_a_configuration_for_subscribe(config: Config) -> None:
    with pytest.raises(ConfigError, match=r"(?s)jobpipe.subscribe.*startng.*no settings besides"):
        jobpipe.subscribe("orders", name="reader", config=config, startng="earliest")
    wrong: Any = 5
    with pytest.raises(ConfigError, match="a file, or a loaded configuration"):
        jobpipe.subscribe("orders", name="reader", config=wrong)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schema": "n bigint"}, "expected a pyarrow.Schema"),
        ({"function": waiting}, "function is asynchronous"),
        ({"batches": [{"n": 1}]}, "a list of record batches, got dict"),
        ({"batches": BATCH}, "a list of record batches, got Int64Array"),
    ],
)
def test_what_does_not_fit_a_test(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        jobpipe.flow_test(**{"function": same, "batches": [BATCH], "schema": SCHEMA, **given})


def test_a_setup_that_fails_in_a_test() -> None:
    with pytest.raises(FlowFailed, match="the flow's setup failed: ZeroDivisionError"):
        jobpipe.flow_test(same, [BATCH], setup=lambda: 1 / 0, schema=SCHEMA)
    assert jobpipe.flow_test(yielding, [BATCH], schema=SCHEMA) == [BATCH, BATCH]


def test_the_status_is_public() -> None:
    """For annotations and comparisons."""
    assert jobpipe.FlowState.ENDED.value == "ended"
    assert {"state", "partitions"} <= {*jobpipe.FlowStatus.__dataclass_fields__}
    assert "lag" in jobpipe.PartitionStatus.__dataclass_fields__
