"""Good files: what they become."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.loading.spec_checks import needs_bounds
from jobpipe.pipelines.model.graph import graph_of, subscriptions_of
from jobpipe.pipelines.plugins.job_context import with_prefix
from jobpipe.store.reading.boundary import EARLIEST, Boundary
from tests.pipelines.conftest import Write, loaded, problems

FLIGHTS = Path(__file__).parents[1] / "flights.yaml"
RUN = RunValues("r1", datetime(2026, 11, 21, tzinfo=UTC), datetime(2026, 11, 22, tzinfo=UTC))


@pytest.fixture
def flights(write: Write, tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "own.py").touch()
    return write(FLIGHTS.read_bytes())


def test_the_flights(flights: Path) -> None:
    """The example of the design: each section becomes what it says."""
    pipeline = loaded(flights)
    spec = pipeline.spec
    assert (pipeline.name, spec.storage) == ("flights", "file:///data/flights/state")
    assert (spec.restart.delay, spec.restart.max_delay, spec.restart.reset_after) == (5.0, 300.0, 3600.0)
    assert spec.alerts[0].url.reference == "env:ALERT_URL"
    assert pipeline.launcher.type == "local"
    assert list(pipeline.jobs) == ["publish", "delays", "report", "audit", "own"]
    audit = pipeline.jobs["audit"]
    assert audit.mode is Mode.BATCH
    assert audit.spec.schedule is not None
    assert (audit.spec.schedule.delay, audit.spec.schedule.self_depend) == (600.0, True)
    (sink,) = audit.sinks
    assert sink.given["path"] == "/data/flights/audit/${run.lower}"
    assert sink.make(RUN).options.path == "/data/flights/audit/20261121T000000Z"
    assert pipeline.jobs["own"].arguments(RUN) == ["--work", "/data/flights"]
    assert pipeline.configuration(audit) == {"spark.sql.session.timeZone": "UTC"}


def test_who_must_read(flights: Path) -> None:
    """Jobs of the file that run without a schedule: a scheduled one holds rows back in another way."""
    pipeline = loaded(flights)
    assert subscriptions_of(pipeline, "flights") == ("flights.delays",)
    assert subscriptions_of(pipeline, "delays") == ("flights.report",)


def test_a_single_job_as_flink_cdc_has_it(write: Write) -> None:
    """Without jobs: the job is named as the pipeline; a transform has no type."""
    pipeline = load_pipeline(
        write("""
source:
  type: jobpipe
  subscribePattern: orders.*|refunds
transform:
  - source-table: orders.*|refunds
    projection: "*, upper(customer) AS name"
    filter: id > 10
    description: only new ones
route:
  - source-table: orders.eu
    sink-table: ods-orders
    description: sync the table
  - {source-table: orders.us, sink-table: ods-orders}
sink:
  type: jobpipe
  topic: others
pipeline:
  name: sync
execution: {runtime-mode: BATCH}
""")
    )
    (job,) = pipeline.jobs.values()
    assert (job.name, job.mode) == ("sync", Mode.BATCH)
    assert [stage.type for stage in job.stages] == ["jobpipe", "sql", "jobpipe"]
    (node,) = graph_of(pipeline).jobs
    assert node.publishes == ("others", "ods-orders")


def test_an_escaped_star_is_a_star(write: Write) -> None:
    """Flink CDC needs the backslash."""
    text = r"""
source: {type: rate}
transform: [{projection: '\*, a.\*, "\\*" AS b,\*'}]
sink: {type: jobpipe, name: mine, topic: t}
pipeline: {name: x}
"""
    pipeline = loaded(write(text))
    (job,) = pipeline.jobs.values()
    assert job.transforms[0].plugin.options.projection == r'*, a.\*, "\\*" AS b,*'
    assert job.sinks[0].given["name"] == "mine"


def test_keys_with_dots_are_written_whole(write: Write) -> None:
    """Spark's keys, its options, and options of plug-ins whose names have dots."""
    pipeline = loaded(
        write("""
pipeline: {name: x, configuration: {spark.sql.shuffle.partitions: 2}}
jobs:
  a:
    source: {type: jobpipe, subscribe: t, read.timeout: 5s}
    transform: [{type: InsertField, static.field: a, static.value: b}]
    sink: {type: kafka, options: {kafka.bootstrap.servers: "h:1"}}
  b: {source: {type: rate}, sink: {type: jobpipe, topic: t}}
""")
    )
    source, transform, sink = (stage.plugin for stage in pipeline.jobs["a"].stages)
    assert source.texts() == {"subscribe": "t", "jobpipe.read.timeout": "5s"}
    assert (transform.options.static_field, transform.options.static_value) == ("a", "b")
    assert sink.options.options == {"kafka.bootstrap.servers": "h:1"}
    assert pipeline.spec.configuration == {"spark.sql.shuffle.partitions": "2"}


NESTED = """
pipeline: {name: x, restart: {delay: 1s}}
jobs:
  a:
    execution: {runtime-mode: STREAMING}
    source: {type: rate, options: {ramp.up: 1}, watermark: {column: timestamp, delay: 1 minute}}
    sink: {type: console}
"""


@pytest.mark.parametrize(
    ("nested", "dotted", "line", "key", "written"),
    [
        ("restart: {delay: 1s}", "restart.delay: 1s", 2, "pipeline.restart.delay", "restart: {delay: ...}"),
        (
            "execution: {runtime-mode: STREAMING}",
            "execution.runtime-mode: STREAMING",
            5,
            "jobs.a.execution.runtime-mode",
            "execution: {runtime-mode: ...}",
        ),
        ("options: {ramp.up: 1}", "options.ramp.up: 1", 6, "jobs.a.source.options.ramp.up", "options: {ramp.up: ...}"),
        (
            "watermark: {column: timestamp, delay: 1 minute}",
            "watermark.delay: 1 minute",
            6,
            "jobs.a.source.watermark.delay",
            "watermark: {delay: ...}",
        ),
        (
            "  sink: {type: console}",
            "  source.type: rate",
            7,
            "jobs.a.source.type",
            "type: ... in section source, line 6",
        ),
        ("  sink: {type: console}", "b.sink: {type: console}", 7, "jobs.b.sink", "b: {sink: ...}"),
        (
            "    sink: {type: console}",
            "jobs.a.trigger.available-now: true",
            7,
            "jobs.a.trigger.available-now",
            "jobs: {a: {trigger: {available-now: ...}}}",
        ),
        (
            "    sink: {type: console}",
            "jobs.b.source.options.a.b: 1",
            7,
            "jobs.b.source.options.a.b",
            "jobs: {b: {source: {options: {a.b: ...}}}}",
        ),
        (
            "    sink: {type: console}",
            "pipeline.configuration.spark.a: 1",
            7,
            "pipeline.configuration.spark.a",
            "pipeline: {configuration: {spark.a: ...}}",
        ),
    ],
)
def test_a_dotted_key_is_told_with_its_section(
    write: Write, nested: str, dotted: str, line: int, key: str, written: str
) -> None:
    assert loaded(write(NESTED)).jobs["a"].mode is Mode.STREAMING
    assert nested in NESTED
    found = problems(write(NESTED.replace(nested, dotted)))
    told = [(problem.line, problem.key) for problem in found if problem.remedy == f"write {written}"]
    assert told == [(line, key)], found


def test_a_dotted_key_of_one_job(write: Write) -> None:
    text = "pipeline: {name: x}\nsource: {type: rate}\nsink.type: console\npipeline.restart.delay: 1s\n"
    told = [(problem.line, problem.key, problem.remedy) for problem in problems(write(text))]
    assert told == [
        (3, "sink.type", "write sink: {type: ...}"),
        (4, "pipeline.restart.delay", "write pipeline: {restart: {delay: ...}}"),
    ]


def test_parameters(write: Write) -> None:
    """A whole reference keeps the type; $${ stands for ${; the job knows its name."""
    path = write("""
pipeline: {name: x, parameters: {rows: 5, on: true, folder: /a, day: "2013-01-01"}, storage: "${var.folder}/$${x}"}
jobs:
  a:
    source: {type: rate, options: {rowsPerSecond: "${var.rows}"}}
    transform: [{type: sql, projection: "'${var.day} ${pipeline.name} ${job.name} $${x}' AS a"}]
    sink: {type: jobpipe, topic: t, final: "${var.on}"}
""")
    pipeline = loaded(path)
    (job,) = pipeline.jobs.values()
    assert pipeline.spec.storage == "/a/${x}"
    assert job.definition["source"]["options"]["rowsPerSecond"] == 5
    assert job.sinks[0].plugin.options.final is True
    assert job.transforms[0].plugin.options.projection == "'2013-01-01 x a ${x}' AS a"
    assert job.transforms[0].make(RUN).options.projection == "'2013-01-01 x a ${x}' AS a"
    given = loaded(path, given={"rows": "7", "day": "1", "folder": "/${run.id}"})
    assert given.jobs["a"].definition["source"]["options"]["rowsPerSecond"] == 7
    assert given.spec.parameters == {"rows": 7, "on": True, "folder": "/${run.id}", "day": "1"}
    assert given.spec.storage == "/${run.id}/${x}"


def test_a_parameter_may_hold_what_looks_like_a_reference(write: Write) -> None:
    """In the file ``$${`` stands for ``${``, as anywhere; a value of the command line is as it is."""
    path = write("""
pipeline: {name: x, parameters: {a: "$${x}", b: c}, storage: "${var.a}/${var.b}"}
jobs: {a: {source: {type: rate}, sink: {type: json, path: "${var.a}"}}}
""")
    pipeline = loaded(path, given={"b": "$${y}"})
    assert pipeline.spec.storage == "${x}/$${y}"
    assert pipeline.spec.parameters == {"a": "${x}", "b": "$${y}"}
    assert pipeline.jobs["a"].sinks[0].make(RUN).options.path == "${x}"


@pytest.mark.parametrize(
    "name", ["source", "sink", "options", "configuration", "transform", "sources", "sinks", "jobs"]
)
def test_a_job_may_be_named_like_a_section(write: Write, name: str) -> None:
    text = """
pipeline: {name: x}
jobs:
  NAME: {source: {type: rate, options: {a.b: 1}}, sink: {type: console}, configuration: {spark.a: 1}}
  other: {sources: {NAME: {type: rate, watermark: {column: a, delay: 1 minute}}}, sink: {type: console}}
"""
    pipeline = loaded(write(text.replace("NAME", name)))
    job = pipeline.jobs[name]
    assert job.sources[None].plugin.options.options == {"a.b": "1"}
    assert job.spec.configuration == {"spark.a": "1"}
    assert pipeline.jobs["other"].sources[name].spec.watermark.column == "a"


def test_a_parameter_puts_in_no_reference(write: Write) -> None:
    """What a parameter holds is text, also where a run's values may stand."""
    path = write("""
pipeline: {name: x, parameters: {folder: /a}}
jobs: {a: {source: {type: rate}, sink: {type: json, path: "${var.folder}/b"}}}
""")
    (sink,) = loaded(path, given={"folder": "/${run.id}"}).jobs["a"].sinks
    whole = write(path.read_text().replace("${var.folder}/b", "${var.folder}"), "whole.yaml")
    (other,) = loaded(whole, given={"folder": "/${run.id}"}).jobs["a"].sinks
    assert other.make(RUN).options.path == "/${run.id}"
    assert sink.make(RUN).options.path == "/${run.id}/b"


def test_an_unknown_parameter_is_an_error(write: Write) -> None:
    path = write("""
pipeline: {name: x, parameters: {folder: /a}}
jobs: {a: {source: {type: rate}, sink: {type: console}}}
""")
    (problem,) = problems(path, given={"foldr": "/b"})
    assert (problem.file, problem.line, problem.key) == ("--set", None, "foldr")
    assert problem.remedy == "did you mean folder?"


def test_a_wrong_value_of_the_command_line_is_told_so(write: Write) -> None:
    path = write("""
pipeline: {name: x, parameters: {prefix: ""}, topic-prefix: "${var.prefix}"}
jobs: {a: {source: {type: rate}, sink: {type: console}}}
""")
    (problem,) = problems(path, given={"prefix": "a b"})
    assert (problem.line, problem.key) == (2, "pipeline.topic-prefix")


def test_options_of_the_bus(write: Write) -> None:
    """Sections are JSON where an option takes that; columns are a list or a name; topics of both sides are known."""
    path = write("""
pipeline: {name: x}
jobs:
  a: {source: {type: rate}, sink: {type: jobpipe, topic: t, partition-by: [value, timestamp], retention.time: 1h}}
  b:
    source: {type: jobpipe, assign: {t: [1, 2]}, startingOffsets: {t: 12}, maxRowsPerTrigger: 5}
    sink: {type: console}
""")
    a, b = loaded(path).jobs.values()
    assert a.sinks[0].plugin.options.partition_by == ("value", "timestamp")
    assert b.stages[0].plugin.topics().names == ("t",)
    assert b.stages[0].plugin.texts() == {
        "assign": '{"t": [1, 2]}',
        "startingOffsets": '{"t": 12}',
        "maxRowsPerTrigger": "5",
    }


def test_overlays(write: Write) -> None:
    """Sections are merged, lists and values replaced, null removes; problems name the file they are in."""
    base = write("""
pipeline: {name: x, storage: /dev, libraries: [{glob: {include: a/**}}], restart: {delay: 1s, max-delay: 2s}}
jobs: {a: {source: {type: rate, options: {rowsPerSecond: 1}}, sink: {type: console}, trigger: {available-now: true}}}
""")
    over = write(
        """
pipeline: {libraries: [{glob: {include: b/**}}], restart: {max-delay: 1h}}
jobs: {a: {source: {options: {numPartitions: 2}}, trigger: null}}
""",
        "prod.yaml",
    )
    pipeline = loaded(base, overlays=[over])
    assert pipeline.spec.storage == "/dev"
    assert [library.glob.include for library in pipeline.spec.libraries] == ["b/**"]
    assert (pipeline.spec.restart.delay, pipeline.spec.restart.max_delay) == (1.0, 3600.0)
    assert pipeline.jobs["a"].spec.trigger is None
    assert pipeline.jobs["a"].definition["source"]["options"] == {"rowsPerSecond": 1, "numPartitions": 2}
    wrong = write("pipeline:\n  storge: /x\n", "wrong.yaml")
    (problem,) = problems(base, overlays=[over, wrong])
    assert (problem.file, problem.line, problem.key) == (str(wrong), 2, "pipeline.storge")


def test_plain_values_are_as_in_yaml_1_2(write: Write) -> None:
    """NO is Norway, on is a key, 10:30 is no number, a date is a text."""
    path = write("""
pipeline: {name: x, parameters: {no: NO, time: 10:30, day: 2013-01-01, octal: 010, yes: yes, null: ~, f: 1e3}}
jobs: {a: {source: {type: rate}, sink: {type: console}}}
""")
    assert loaded(path).spec.parameters == {
        "no": "NO",
        "time": "10:30",
        "day": "2013-01-01",
        "octal": "010",
        "yes": "yes",
        "null": None,
        "f": 1000.0,
    }


def test_anchors(write: Write) -> None:
    """Sections are shared by aliases and <<; own keys win."""
    pipeline = loaded(
        write("""
pipeline: {name: x}
jobs:
  a: &a {source: &rate {type: rate}, sink: {type: console}}
  b: {<<: *a, sink: {type: json, path: x}}
  c: {source: *rate, sink: {type: console}}
""")
    )
    assert [job.sinks[0].type for job in pipeline.jobs.values()] == ["console", "json", "console"]


def test_several_sources_and_sinks(write: Write) -> None:
    pipeline = loaded(
        write("""
pipeline: {name: x}
jobs:
  a:
    sources:
      orders: {type: rate, watermark: {column: timestamp, delay: 1 minute}}
      rates: {type: rate}
    transform: [{type: sql, query: SELECT * FROM orders JOIN rates USING (value)}]
    sinks: [{type: jobpipe, topic: t}, {type: json, path: y, at-least-once: true}]
""")
    )
    job = pipeline.jobs["a"]
    assert list(job.sources) == ["orders", "rates"]
    assert job.sources["orders"].spec.watermark.delay == "1 minute"


@pytest.mark.parametrize("name", ["order-lines", "input", "12"])
def test_a_source_that_no_query_reads_has_any_name(write: Write, name: str) -> None:
    """It is a part of the subscription's name."""
    path = write(f"""
pipeline: {{name: x}}
jobs:
  a:
    sources: {{"{name}": {{type: jobpipe, subscribe: t}}}}
    transform: [{{filter: id > 1}}]
    sink: {{type: console}}
  b: {{source: {{type: rate}}, sink: {{type: jobpipe, topic: t}}}}
""")
    assert subscriptions_of(loaded(path), "t") == (f"x.a.{name}",)


def test_a_flow(write: Write) -> None:
    pipeline = loaded(
        write("""
pipeline: {name: x}
jobs:
  orders: {source: {type: rate}, sink: {type: jobpipe, topic: orders}}
  alerts:
    type: flow
    source: {type: jobpipe, subscribe: orders, startingOffsets: earliest}
    function: alerts:check
    setup: alerts:load
    publish: alerts
    schema: id bigint
    partitions: 2
""")
    )
    spec = pipeline.jobs["alerts"].spec
    assert (spec.function, spec.setup, spec.publish, spec.partitions) == ("alerts:check", "alerts:load", "alerts", 2)
    assert subscriptions_of(pipeline, "orders") == ("x.alerts",)


@pytest.mark.parametrize(
    ("options", "starting"),
    [
        ("startingOffsets: earliest", EARLIEST),
        ("startingOffsets: '{\"orders\": 12}'", Boundary("offset", 12)),
        ("startingOffsets: '{\"orders\": -2}'", EARLIEST),
        ("startingTimestamp: '1970-01-01T00:00:01Z'", Boundary("time", 1000)),
        (
            "startingOffsetsByTimestamp: '{\"orders\": 1000}', startingOffsetsByTimestampStrategy: latest",
            Boundary("time", 1000, "latest"),
        ),
    ],
)
def test_where_a_flow_starts(write: Write, options: str, starting: Boundary) -> None:
    """``jobpipe.flow`` reads one topic, and takes no mapping."""
    path = write(f"""
pipeline: {{name: x, topic-prefix: dev.}}
jobs:
  make: {{source: {{type: rate}}, sink: {{type: jobpipe, topic: orders}}}}
  alerts: {{type: flow, source: {{type: jobpipe, subscribe: orders, {options}}}, function: alerts:check}}
""")
    (stage,) = loaded(path).jobs["alerts"].sources.values()
    assert stage.plugin.flow_options() == {"starting": starting}


def test_warnings_alone_are_no_error(write: Write) -> None:
    path = write("""
pipeline: {name: x}
jobs: {a: {source: {type: jobpipe, subscribe: elsewhere}, sink: {type: console}}}
""")
    (warning,) = load_pipeline(path).warnings
    assert (warning.line, warning.key, warning.severity) == (3, "jobs.a.source.subscribe", "warning")
    assert "no job of this file publishes topic elsewhere" in warning.what


def test_the_definition_of_a_job(flights: Path) -> None:
    """It changes with what the job does, and with nothing else of the file."""
    before = loaded(flights)
    flights.write_text(FLIGHTS.read_text().replace("carrier IS NOT NULL", "carrier = 'AA'"))
    after = loaded(flights, given={"day": "2"})
    changed = [name for name in before.jobs if before.jobs[name].definition != after.jobs[name].definition]
    assert changed == ["delays"]
    assert asdict(before.jobs["delays"].sinks[0].plugin.topics()) == {"names": ("delays",), "pattern": None}


COVERED = """
pipeline: {name: shop}
jobs:
  a:
    source: {type: rate}
    transform: [%s]
    sink: {type: jobpipe, topic: t}
    errors: {tolerance: all}
"""


@pytest.mark.parametrize(
    ("stage", "warned"),
    [
        ("{type: Cast, spec: 'value:int'}", False),
        ("{type: Cast, spec: 'value:int,a:ARRAY<INT>'}", True),
        ("{type: Cast, spec: 'a:map<string,int>'}", True),
        ("{type: FromJson, field: value, schema: 'id INT'}", False),
        ("{projection: 'from_json(value, \"id INT\") AS value'}", True),
        ("{projection: '* EXCEPT (value), value AS n, `timestamp`', filter: value IS NOT NULL}", False),
        ("{projection: CAST(value AS INT) AS value}", True),
        ("{filter: 1 / value > 2}", True),
        ("{type: Filter, predicate: 1 / value > 2}", True),
        ("{type: MaskField, fields: [value]}", False),
        ("{type: MaskField, fields: [value], predicate: 1 / value > 2}", True),
        ("{type: TimestampConverter, field: timestamp, target.type: Date}", True),
    ],
)
def test_what_tolerance_does_not_cover(write: Write, stage: str, warned: bool) -> None:
    """What computes may fail on a row, and then the job does: it is said beforehand."""
    found = load_pipeline(write(COVERED % stage)).warnings
    assert [problem.key for problem in found] == (["jobs.a.transform[0]"] if warned else [])
    assert all(re.search("fails? the job", problem.what) for problem in found)


@pytest.mark.parametrize(
    ("mode", "watermark", "stages", "warned"),
    [
        ("STREAMING", "", "{type: deduplicate, keys: [value]}", True),
        ("STREAMING", "", "{type: watermark, column: timestamp, delay: 1m}, {type: deduplicate, keys: [value]}", True),
        ("STREAMING", "timestamp", "{type: deduplicate, keys: [value]}", True),
        ("STREAMING", "timestamp", "{type: deduplicate, keys: [value, Timestamp]}", False),
        ("STREAMING", "timestamp", "{type: deduplicate, keys: [value], within-watermark: true}", False),
        (
            "STREAMING",
            "",
            "{type: watermark, column: timestamp, delay: 1m}, {type: deduplicate, keys: 'value,timestamp'}",
            False,
        ),
        (
            "STREAMING",
            "",
            "{type: deduplicate, keys: 'value,timestamp'}, {type: watermark, column: timestamp, delay: 1m}",
            True,
        ),
        ("BATCH", "", "{type: deduplicate, keys: [value]}", False),
    ],
)
def test_a_stream_that_keeps_each_key(write: Write, mode: str, watermark: str, stages: str, warned: bool) -> None:
    """Spark drops a key's state only where the watermark's column is a part of the key."""
    of_source = f", watermark: {{column: {watermark}, delay: 1m}}" if watermark else ""
    path = write(f"""
pipeline: {{name: x}}
jobs:
  a:
    execution: {{runtime-mode: {mode}}}
    source: {{type: json, path: x, schema: value bigint{of_source}}}
    transform: [{stages}]
    sink: {{type: json, path: y}}
""")
    found = load_pipeline(path).warnings
    assert ["the stream keeps each key for ever" in problem.what for problem in found] == [True] * warned


@pytest.mark.parametrize(
    ("pattern", "matched", "other"),
    [
        ("raw.*|in", ("dev.raw.a", "dev.in"), ("in", "devXin", "dev.RAW")),
        ("(?i)raw.*", ("dev.raw.a", "dev.RAW.a"), ("DEV.raw.a", "RAW.a")),
        ("(?i)(?s)raw.*", ("dev.RAW.a",), ("raw",)),
        ("(?x)raw \\. .* # of all shops", ("dev.raw.a",), ("raw.a", "dev.raw . a")),
        (r"(?i:raw)\.(\w+)-\1", ("dev.RAW.a-a",), ("dev.raw.a-b",)),
        ("", ("dev.",), ("dev", "")),
    ],
)
def test_a_pattern_after_a_prefix(pattern: str, matched: tuple[str, ...], other: tuple[str, ...]) -> None:
    """The pattern's flags stay its own, and the prefix is as it is written."""
    expression = re.compile(with_prefix(pattern, "dev."))
    assert all(expression.fullmatch(topic) for topic in matched)
    assert not any(expression.fullmatch(topic) for topic in other)
    assert with_prefix(pattern, "") == pattern


def test_which_jobs_need_bounds(write: Write, tmp_path: Path) -> None:
    """Those of which a stage or an argument names one: a run without bounds cannot fill it in."""
    (tmp_path / "own.py").touch()
    path = write("""
pipeline: {name: x}
jobs:
  no:
    execution: {runtime-mode: BATCH}
    source: {type: jobpipe, subscribe: t}
    transform: [{filter: "day = '$${run.lower}'"}]
    sink: {type: json, path: "a/${run.id}"}
  by-sink:
    execution: {runtime-mode: BATCH}
    source: {type: jobpipe, subscribe: t}
    sink: {type: json, path: "a/${run.lower:%Y}-${run.upper:%Y}"}
  by-transform:
    execution: {runtime-mode: BATCH}
    source: {type: jobpipe, subscribe: t}
    transform: [{filter: id > 1}, {type: python, function: "a:b", options: {end: "${run.upper}"}}]
    sink: {type: json, path: "a/${run.lower}"}
  stream: {source: {type: rate}, sink: {type: jobpipe, topic: t}}
  own: {application: own.py, arguments: [--day, "${run.upper:%Y-%m-%d}", "${run.id}"]}
""")
    found = {name: needs_bounds(job) for name, job in loaded(path).jobs.items()}
    assert found == {
        "no": None,
        "by-sink": "sink names ${run.lower}",
        "by-transform": "transform[1] names ${run.upper}",
        "stream": None,
        "own": "arguments[1] names ${run.upper}",
    }


def test_names_of_inserted_columns(write: Write) -> None:
    """Kafka Connect's ! and ? say whether a column may be null; they are no part of its name."""
    path = write("""
pipeline: {name: x}
source: {type: rate}
transform:
  - {type: InsertField, static.field: "origin!", static.value: shop!, topic.field: "topic?", offset.field: "a?b!!"}
sink: {type: console}
""")
    (job,) = loaded(path).jobs.values()
    options = job.transforms[0].plugin.options
    assert (options.static_field, options.static_value, options.topic_field) == ("origin", "shop!", "topic")
    assert options.offset_field == "a?b!"


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("{type: csv, schema: x int, path: '${var.data}/*.csv'}", "a \\[1\\]\\*/*.csv"),
        ("{type: text, path: '${var.data}'}", "a \\[1\\]\\*"),
        ("{type: spark, format: Text, path: '${var.data}'}", "a \\[1\\]\\*"),
        ("{type: spark, format: acme, path: '${var.data}'}", "a [1]*"),
        ("{type: delta, path: '${var.data}'}", "a [1]*"),
        ("{type: '${var.kind}', path: '${var.data}'}", "a \\[1\\]\\*"),
        ("{type: spark, format: '${var.kind}', path: '${var.data}'}", "a \\[1\\]\\*"),
        ("{type: text, path: '${var.data}/$${x}', options: {x: '${var.data}'}}", "a \\[1\\]\\*/${x}"),
    ],
)
@pytest.mark.parametrize("shape", ["one job", "a job", "a view"])
def test_a_parameter_in_a_pattern_is_a_name(write: Write, source: str, path: str, shape: str) -> None:
    """Only where Spark takes the path for a pattern, and in the path alone."""
    head = "pipeline: {name: shop, parameters: {data: 'a [1]*', kind: text}}\n"
    job = f"source: {source}, sink: {{type: console}}"
    if shape == "a view":
        job = f"sources: {{x: {source}}}, sink: {{type: console}}"
    text = f"{head}jobs: {{a: {{{job}}}}}\n" if shape != "one job" else head + job.replace(", sink:", "\nsink:") + "\n"
    (found,) = loaded(write(text)).jobs.values()
    (stage,) = found.sources.values()
    made = stage.make(RUN).options
    assert made.path == path
    assert made.options == ({"x": "a [1]*"} if "options" in source else {})


def test_a_format_of_others_has_the_options_that_it_has(write: Write) -> None:
    """Only of files the path has a key of its own."""
    source = "{type: spark, format: rest, options: {path: v1/orders, paths: x}}"
    pipeline = loaded(write(f"pipeline: {{name: shop}}\nsource: {source}\nsink: {{type: console}}\n"))
    (stage,) = pipeline.jobs["shop"].sources.values()
    assert stage.make(RUN).options.options == {"path": "v1/orders", "paths": "x"}
