"""Captures in a pipeline: the topics of their tables in the graph, and what a capture is told of its job."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.cdc.capture_options import SchemaChange, Startup
from jobpipe.cdc.cdc_sources import PostgresCdcSource
from jobpipe.config.types.secrets import Secret
from jobpipe.pipelines.checkpoints.checkpoint_owner import has_checkpoint, keeps_checkpoint
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.model.captured_topics import routes_of_capture
from jobpipe.pipelines.model.graph import graph_of, subscribers_of, subscriptions_of
from jobpipe.pipelines.model.graph_rendering import as_text
from jobpipe.pipelines.model.routes import target_of
from jobpipe.pipelines.plugins.capture_source import CaptureContext
from tests.pipelines.conftest import Write, loaded, problems

SOURCE = "type: postgres-cdc, hostname: h, database-name: d, username: u"
SHOP = f"""
pipeline: {{name: shop, topic-prefix: dev.}}
jobs:
  changes:
    source: {{{SOURCE}, tables: [public.orders, 'public\\.customers', 'sales\\..*', 'log\\.a_.*']}}
    route:
    - {{source-table: public.orders, sink-table: orders}}
    - {{source-table: 'sales\\.(.*)', sink-table: s.$1}}
    - {{source-table: 'log\\.a_b', sink-table: <>.x, replace-symbol: <>}}
  totals:
    source: {{type: jobpipe, subscribe: [orders, s.x, public.customers, log.a_c, log.a_b.x]}}
    sink: {{type: noop}}
"""


def test_the_topics_of_tables_are_in_the_graph(write: Write) -> None:
    pipeline = loaded(write(SHOP))
    graph = graph_of(pipeline)
    topics = ["dev.log.a_b.x", "dev.log.a_c", "dev.orders", "dev.public.customers", "dev.s.x"]
    assert [(each.name, each.publishers, each.readers) for each in graph.topics] == [
        (topic, ("changes",), ("totals",)) for topic in topics
    ]
    (capture, _) = graph.jobs
    assert capture.kind == "capture"
    assert capture.sources == (r"tables public.orders, public.customers, sales\..*, log\.a_.*",)
    text = as_text(graph)
    assert r"topic dev.orders + topic dev.public.customers + topics dev.s.$1" in text
    assert text.count("(capture)") == 1
    assert subscribers_of(pipeline, pipeline.jobs["changes"]) == {
        "orders": ("shop.totals",),
        "public.customers": ("shop.totals",),
    }


@pytest.mark.parametrize("topic", ["public.orders", "sales.x", "log.b_c", "log.a_b", "t"])
def test_a_topic_that_no_table_goes_to_is_a_warning(write: Write, topic: str) -> None:
    path = write(SHOP.replace("subscribe: [orders, s.x,", f"subscribe: [{topic}, orders, s.x,"))
    (warning,) = load_pipeline(path).warnings
    assert f"no job of this file publishes topic dev.{topic}" in warning.what


def test_a_pattern_that_tables_may_match_is_no_warning(write: Write) -> None:
    pattern = "source: {type: jobpipe, subscribePattern: 'none.*'}"
    path = write(SHOP.replace("source: {type: jobpipe, subscribe: [", "source: {type: jobpipe, subscribe: [t]} # "))
    path.write_text(path.read_text().replace("source: {type: jobpipe, subscribe: [t]}", pattern))
    loaded(path)
    named = write(f"{_job('tables: [public.t]')}\n  b: {{{pattern}, sink: {{type: noop}}}}\n", "named.yaml")
    (warning,) = load_pipeline(named).warnings
    assert "no topic of this file matches none.*" in warning.what


def test_two_captures_have_no_topic_in_common(write: Write) -> None:
    one = f"pipeline: {{name: shop}}\njobs:\n  a: {{source: {{{SOURCE}, tables: [public.t]}}}}\n"
    two = f"  b: {{source: {{{SOURCE}, tables: [public.TABLE]}}}}\n"
    loaded(write(one + two.replace("TABLE", "s")))
    (problem,) = problems(write(one + two.replace("TABLE", "t")))
    assert (problem.line, problem.key) == (4, "jobs.b.source.tables[0]")
    assert "topic public.t has two publishers: job a publishes it too" in problem.what


def test_a_sink_takes_the_tables_that_no_route_matches(write: Write) -> None:
    text = _job("tables: ['public\\..*']", "sink: {type: jobpipe, topic: rest}, route: [ROUTE]")
    job = loaded(write(text.replace("ROUTE", "{source-table: public.t, sink-table: t}"))).jobs["a"]
    routes = routes_of_capture(job, "dev.")
    topics = [next(found for route in routes if (found := target_of(route, table))) for table in ("public.t", "a.b")]
    assert topics == ["dev.t", "dev.rest"]


def test_the_prefix_is_no_part_of_what_a_route_replaces(write: Write) -> None:
    text = _job("tables: [v.d]", "route: [{source-table: v.d, sink-table: x.d, replace-symbol: d}]")
    pipeline = loaded(write(text.replace("name: shop", "name: shop, topic-prefix: d.")))
    assert [topic.name for topic in graph_of(pipeline).topics] == ["d.x.v.d"]
    route, _ = routes_of_capture(pipeline.jobs["a"], "d.")
    assert target_of(route, "v.d") == "d.x.v.d"


def test_what_a_capture_is_told(write: Write, tmp_path: Path) -> None:
    given = """
        port: "5433"
        password: file:secret
        tables: [public.t]
        slot-name: s
        publication-name: p
        scan-startup-mode: latest-offset
        format: flat
        schema-change-behavior: exception
        text-columns: [public.t.c]
        chunk-size: 5
        batch-rows: 6
        heartbeat-interval: 5s
        ssl-mode: verify-full
        ssl-root-cert: ca.pem
        connect-timeout: 2min"""
    lines = "".join(f"\n        {each.strip()}" for each in SOURCE.split(",")) + given
    job = loaded(write(f"pipeline: {{name: shop}}\njobs:\n  a:\n    source:{lines}\n")).jobs["a"]
    source = job.sources[None].plugin
    assert isinstance(source, PostgresCdcSource)
    options = source.capture_options(CaptureContext("shop.a", routes_of_capture(job), {"public.t": ("shop.b",)}))
    assert (options.name, options.hostname, options.port, options.database) == ("shop.a", "h", 5433, "d")
    assert options.password == Secret(f"file:{tmp_path}/secret")
    assert (options.slot, options.publication, options.text_columns) == ("s", "p", ("public.t.c",))
    assert (options.startup, options.schema_change, options.format) == (Startup.LATEST, SchemaChange.EXCEPTION, "flat")
    assert (options.chunk_size, options.batch_rows, options.heartbeat, options.connect_timeout) == (5, 6, 5.0, 120.0)
    assert (options.ssl_mode, options.ssl_root_cert) == ("verify-full", f"{tmp_path}/ca.pem")
    assert options.required_subscribers == {"public.t": ("shop.b",)}
    assert options.topic_of("public", "t") == "public.t"


def test_a_capture_has_no_checkpoint(write: Write) -> None:
    pipeline = loaded(write(SHOP))
    kept = {name: has_checkpoint(job) for name, job in pipeline.jobs.items()}
    assert kept == {"changes": False, "totals": True}
    assert kept == {name: keeps_checkpoint(job.definition) for name, job in pipeline.jobs.items()}


def test_topics_that_a_pattern_reads_are_kept_for_it(write: Write) -> None:
    reader = "  b: {source: {type: jobpipe, subscribePattern: public.*}, sink: {type: noop}}"
    pipeline = loaded(write(_job("tables: ['public\\..*']") + reader))
    assert subscriptions_of(pipeline, "public.any") == ("shop.b",)
    assert subscriptions_of(pipeline, "other.any") == ()


def test_a_capture_is_started_on_this_host(write: Write) -> None:
    text = _job("tables: [public.t]")
    loaded(write(text))
    cluster = (
        "name: shop, storage: 's3a://b/p', launcher: {type: spark-rest, url: 'http://m:6066', master: 'spark://m:7077'}"
    )
    found = problems(write(text.replace("name: shop", cluster)))
    assert ("jobs.a.source.type", True) in [(each.key, "a capture needs no Spark" in each.what) for each in found]


def _job(source: str, more: str = "") -> str:
    return f"pipeline: {{name: shop}}\njobs:\n  a: {{source: {{{SOURCE}, {source}}}{', ' if more else ''}{more}}}\n"
