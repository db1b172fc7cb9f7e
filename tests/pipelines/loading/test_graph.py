"""The graph of a pipeline, and how it is shown."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from jobpipe.graph.diagram import as_dot
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.model.graph import Graph, JobNode, TopicNode, graph_of, published_again
from jobpipe.pipelines.model.graph_rendering import as_diagram, as_dict, as_text
from tests.pipelines.conftest import Write, loaded

CHAIN = """
pipeline: {name: shop, topic-prefix: dev.}
jobs:
  publish: {source: {type: rate}, sink: {type: jobpipe, topic: orders}}
  totals:
    source: {type: jobpipe, subscribePattern: "order.*"}
    transform: [{projection: "*"}]
    sink: {type: jobpipe, topic: totals}
    errors: {tolerance: all}
  audit:
    execution: {runtime-mode: BATCH}
    source: {type: jobpipe, subscribe: "orders,totals"}
    sink: {type: json, path: x}
    schedule: {every: day}
  own: {application: pipeline.yaml}
"""


@pytest.fixture
def graph(write: Write) -> Graph:
    return graph_of(loaded(write(CHAIN)))


def test_jobs_and_topics(graph: Graph) -> None:
    """By full names; dead letters are a topic too."""
    assert graph.topics == (
        TopicNode("dev.orders", ("publish",), ("totals", "audit")),
        TopicNode("dev.shop.totals.dead-letters", ("totals",), ()),
        TopicNode("dev.totals", ("totals",), ("audit",)),
    )
    assert graph.jobs[1] == JobNode(
        name="totals",
        kind="query",
        mode=Mode.STREAMING,
        sources=("topics order.*",),
        transforms=("sql",),
        sinks=("topic dev.totals", "topic dev.shop.totals.dead-letters"),
        reads=("dev.orders",),
        publishes=("dev.totals", "dev.shop.totals.dead-letters"),
        schedule=None,
    )
    assert graph.cycles == ()


def test_what_topics_get_of_a_job_that_begins_again(write: Write) -> None:
    pipeline = loaded(write(CHAIN))
    both = (
        "topics dev.totals, dev.shop.totals.dead-letters keep their rows, and get those once more that job totals reads"
    )
    assert published_again(pipeline, "totals") == f"{both} again"
    one = "topic dev.orders keeps its rows, and gets those once more that job publish reads again"
    assert published_again(pipeline, "publish") == one
    assert published_again(pipeline, "audit") == ""


def test_as_text(graph: Graph) -> None:
    assert as_text(graph) == (
        "shop: 4 jobs, 3 topics\n"
        "\n"
        "publish  rate → topic dev.orders\n"
        "totals   topics order.* → sql → topic dev.totals + topic dev.shop.totals.dead-letters\n"
        "audit    topic dev.orders, topic dev.totals → json  (BATCH, day)\n"
        "own      pipeline.yaml  (application)\n"
        "\n"
        "topics\n"
        "  dev.orders                    publish → totals, audit\n"
        "  dev.shop.totals.dead-letters  totals → (no job of this file)\n"
        "  dev.totals                    totals → audit"
    )


def test_as_dict(graph: Graph) -> None:
    """Plain values, with stable keys."""
    found = as_dict(graph)
    assert json.loads(json.dumps(found)) == found
    assert list(found) == ["pipeline", "jobs", "topics", "cycles"]
    assert found["topics"][0] == {"name": "dev.orders", "publishers": ["publish"], "readers": ["totals", "audit"]}
    assert {job["name"]: job["mode"] for job in found["jobs"]}["audit"] == "BATCH"


@pytest.mark.processes
def test_as_dot(graph: Graph) -> None:
    text = as_dot(as_diagram(graph))
    assert '  "job publish" -> "topic dev.orders";' in text
    assert '  "topic dev.orders" -> "job totals";' in text
    assert text.count("->") == 3 + 3 + 2  # published, read, rate and json
    if (dot := shutil.which("dot")) is not None:
        subprocess.run([dot, "-Tsvg"], input=text, capture_output=True, text=True, check=True, timeout=30)


def test_names_cannot_break_dot() -> None:
    job = JobNode("a", "query", Mode.STREAMING, ('we"ather\\',), (), (), (), (), None)
    text = as_dot(as_diagram(Graph("x", (job,), (), ())))
    assert 'label="we\\"ather\\\\"' in text


def test_a_type_that_begins_with_topic_is_shown_in_dot() -> None:
    job = JobNode("a", "query", Mode.STREAMING, ("topical",), (), ("topic t",), (), ("t",), None)
    text = as_dot(as_diagram(Graph("x", (job,), (TopicNode("t", ("a",), ()),), ())))
    assert 'label="topical"' in text
    assert 'label="t"' in text
    assert 'label="topic t"' not in text


ROUTED = """
pipeline: {name: shop, topic-prefix: p-}
jobs:
  make: {source: {type: rate}, sink: {type: jobpipe, topic: raw.a.eu}}
  sort:
    source: {type: jobpipe, subscribePattern: 'raw\\..*'}
    route:
      - {source-table: 'raw\\.order.*', sink-table: orders}
      - {source-table: 'raw\\.(.*)\\.eu', sink-table: 'eu-$1'}
      - {source-table: 'raw\\.x.*', sink-table: 'all-<>-<>', replace-symbol: <>}
    sink: {type: jobpipe, topic: others}
  one: {source: {type: jobpipe, subscribe: eu-a}, sink: {type: console}}
  two: {source: {type: jobpipe, subscribe: eu-b}, sink: {type: console}}
  three: {source: {type: jobpipe, subscribe: all-raw.xy-raw.xy}, sink: {type: console}}
  four: {source: {type: jobpipe, subscribe: all-raw.xy-raw.xz}, sink: {type: console}}
  five: {source: {type: jobpipe, subscribe: all-raw.y-raw.y}, sink: {type: console}}
  six: {source: {type: jobpipe, subscribe: us-a}, sink: {type: console}}
  seven: {source: {type: jobpipe, subscribePattern: eu-.*}, sink: {type: console}}
"""


def test_topics_that_routes_make(write: Write) -> None:
    """By the names of the file's own topics, or as the route's template allows; others are told of."""
    pipeline = load_pipeline(write(ROUTED))
    graph = graph_of(pipeline)
    made = {topic.name: topic.readers for topic in graph.topics if topic.publishers == ("sort",)}
    assert made == {
        "p-all-raw.xy-raw.xy": ("three",),
        "p-eu-a": ("one", "seven"),
        "p-eu-b": ("two", "seven"),
        "p-orders": (),
        "p-others": (),
    }
    assert graph.jobs[1].sinks == ("topic p-others", "topic p-orders", "topics p-eu-$1", "topics p-all-<>-<>")
    assert [warning.key for warning in pipeline.warnings] == [
        f"jobs.{job}.source.subscribe" for job in ("four", "five", "six")
    ]


def test_routes_of_named_topics_make_known_topics(write: Write) -> None:
    path = write("""
pipeline: {name: shop}
jobs:
  sort:
    source: {type: jobpipe, subscribe: raw}
    route: [{source-table: (.*), sink-table: x-$1}]
    sink: {type: jobpipe, topic: others}
  one: {source: {type: jobpipe, subscribe: x-raw}, sink: {type: console}}
  two: {source: {type: jobpipe, subscribe: x-row}, sink: {type: console}}
""")
    assert [warning.key for warning in load_pipeline(path).warnings] == [
        "jobs.sort.source.subscribe",
        "jobs.two.source.subscribe",
    ]


def test_cycles_are_named(write: Write) -> None:
    path = write("""
pipeline: {name: x}
jobs:
  a: {source: {type: jobpipe, subscribe: c}, sink: {type: jobpipe, topic: a}}
  b: {source: {type: jobpipe, subscribe: a}, sink: {type: jobpipe, topic: b}}
  c: {source: {type: jobpipe, subscribe: b}, sink: {type: jobpipe, topic: c}}
  d: {source: {type: jobpipe, subscribe: d}, sink: {type: jobpipe, topic: d}}
""")
    pipeline = load_pipeline(path)
    assert graph_of(pipeline).cycles == (("a", "b", "c"), ("d",))
    assert [warning.what for warning in pipeline.warnings] == [
        "rows go round in a circle: a → b → c → a",
        "rows go round in a circle: d → d",
    ]
    assert "circle: a → b → c → a" in as_text(graph_of(pipeline))


def test_topics_that_come_from_elsewhere(write: Write) -> None:
    path = write("""
pipeline: {name: x}
jobs: {a: {source: {type: jobpipe, subscribe: c}, sink: {type: console}}}
""")
    assert as_text(graph_of(load_pipeline(path))).splitlines()[-1] == "  c  (another pipeline) → a"
