"""Streams, of which OpenLineage's agent for Spark tells less: it follows Spark's plans, which are of micro-batches."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jobpipe.control.lineage import lineage_reporter
from jobpipe.control.lineage.lineage_reporter import LineageReporter
from tests.control.lineage.lineage_kit import events_of, kinds, made_of, names
from tests.control.world import NAME, World
from tests.pipelines.waiting import eventually

SCHEMA = "order_id BIGINT, customer STRING, amount DECIMAL(10,2), at TIMESTAMP"
KAFKA = {"type": "kafka", "options": {"kafka.bootstrap.servers": "kafka:9092", "subscribe": "orders"}}
TABLE = {"type": "jdbc", "options": {"url": "jdbc:postgresql://db/shop", "dbtable": "public.test"}}
KAFKA_NAME, TABLE_NAME = ("kafka://kafka:9092", "orders"), ("postgres://db:5432", "shop.public.test")


def told(world: World, folder: Path, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the events of a stream that goes on for a while, then finishes."""
    file = folder / "lineage.jsonl"
    monkeypatch.setattr(lineage_reporter, "POLL_SECONDS", 0.02)
    world.config = dataclasses.replace(world.config, server_lineage_file=file)
    name = f"{NAME}.report"
    with closing(world.server()) as server:
        reporter = LineageReporter(server, world.config, environ={}, running_seconds=0.05)
        reporter.start()
        try:
            server.submit(world.submission({"report": job}))
            worker = world.work(1)
            eventually(lambda: kinds(events_of(file), name).count("RUNNING") >= 3)
            worker.end("FINISHED", 0, batches=3, rows=12)
            eventually(lambda: "COMPLETE" in kinds(events_of(file), name))
        finally:
            reporter.close()
    return events_of(file)


def test_a_stream_whose_micro_batches_are_written_by_themselves_is_one_job_and_one_run(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenLineage issue 3398: Kafka and foreachBatch gave two jobs, one with the input, one with the output."""
    events = told(world, tmp_path, {"source": KAFKA, "sink": TABLE}, monkeypatch)
    assert {each["job"]["name"] for each in events} == {f"{NAME}.report"}
    assert len({each["run"]["runId"] for each in events}) == 1
    types = [each["eventType"] for each in events]
    assert types == ["START", *["RUNNING"] * (len(types) - 2), "COMPLETE"]
    for event in events:
        assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
        assert (names(event["inputs"]), names(event["outputs"])) == ([KAFKA_NAME], [TABLE_NAME])


def test_a_streams_input_is_told_whatever_writes_its_micro_batches(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenLineage issue 2867: with foreachBatch, and a batch's writer in it, the Kafka input was missing.

    Several sinks are written in foreachBatch too, whatever they are.
    """
    sinks = [{"type": "parquet", "path": "out", "at-least-once": True}, {**TABLE, "at-least-once": True}]
    events = told(world, tmp_path, {"source": KAFKA, "sinks": sinks}, monkeypatch)
    assert len(events) >= 5
    for event in events:
        assert names(event["inputs"]) == [KAFKA_NAME]
        assert names(event["outputs"]) == [("file", f"{tmp_path}/out"), TABLE_NAME]
    assert events[-1]["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 12


def test_a_stream_has_the_columns_of_its_sql(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenLineage issue 1581: streams had no column lineage."""
    job = {
        "source": {"type": "json", "path": "in", "schema": SCHEMA, "watermark": {"column": "at", "delay": "1 minute"}},
        "transform": [
            {
                "query": "SELECT window.start AS since, customer, sum(amount) AS amount, count(*) AS orders "
                "FROM input WHERE amount > 0 GROUP BY window(at, '1 minute'), customer"
            }
        ],
        "sink": {"type": "jobpipe", "topic": "sums"},
    }
    events = told(world, tmp_path, job, monkeypatch)
    place = f"{tmp_path}/in"
    for event in events:
        (output,) = event["outputs"]
        assert output["name"] == "sums"
        assert [each["name"] for each in output["facets"]["schema"]["fields"]] == [
            "since",
            "customer",
            "amount",
            "orders",
        ]
        assert made_of(output) == {
            "since": [(place, "at", "TRANSFORMATION")],
            "customer": [(place, "customer", "IDENTITY")],
            "amount": [(place, "amount", "AGGREGATION")],
        }
        ways = {
            (each["field"], way["type"], way["subtype"])
            for each in output["facets"]["columnLineage"]["dataset"]
            for way in each["transformations"]
        }
        assert ways == {
            ("amount", "INDIRECT", "FILTER"),
            ("at", "INDIRECT", "GROUP_BY"),
            ("customer", "INDIRECT", "GROUP_BY"),
        }
