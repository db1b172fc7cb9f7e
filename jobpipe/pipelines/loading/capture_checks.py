"""Checks of a job that captures tables: it publishes topics by itself, and has no more than that needs."""

from __future__ import annotations

from collections.abc import Iterator

from jobpipe.config.reading.located_values import Path
from jobpipe.errors import short_repr
from jobpipe.pipelines.file.field_types import SPARK_JOBPIPE
from jobpipe.pipelines.file.interpolation import run_references
from jobpipe.pipelines.file.problems import Severity
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.model.captured_topics import matches_none, named_tables, tables_of, topic_of
from jobpipe.pipelines.model.pipeline import Job, Pipeline, Stage
from jobpipe.pipelines.model.routes import problem_of
from jobpipe.pipelines.plugins.api import Sink
from jobpipe.store.spool.spool_files import is_topic

Finding = tuple[Path, str, str, Severity]
_ACKS = SPARK_JOBPIPE + "acks"
_LEAVE = "leave it out"
_NONE = {
    "type": ("a capture is no flow", "leave it out; let a flow read a topic that the capture publishes"),
    "sources": ("source is given too, and a capture has one source", "leave it out; make each capture a job"),
    "transform": (
        "a capture publishes rows as they are",
        "let the next job transform them: source: {type: jobpipe, subscribe: TOPIC}",
    ),
    "sinks": ("a capture publishes topics", "leave it out, or give sink: {type: jobpipe, topic: OTHERS}"),
    "trigger": ("a capture publishes changes as they come", _LEAVE),
    "schedule": ("a capture runs without end", _LEAVE),
    "errors": (
        "a capture has no dead letters: a value that cannot be published fails it",
        "leave it out; text-columns publishes a column as text",
    ),
    "arguments": ("they are of a program of your own", "give application: FILE, or leave them out"),
    **dict.fromkeys(
        ("function", "setup", "publish", "schema", "partitions"), ("only a flow has it", "let a flow read a topic")
    ),
}


def check_capture(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    """Yield what is wrong with a capture."""
    for key in sorted(set(job.definition) & _NONE.keys()):
        yield (key,), *_NONE[key], "error"
    if job.mode is Mode.BATCH:
        yield ("execution", "runtime-mode"), "a capture runs without end", "leave it out", "error"
    if job.spec.source is not None and job.spec.source.watermark is not None:
        what = "a capture has none"
        yield ("source", "watermark"), what, "leave it out; let the job that reads the topic have it", "error"
    for stage in job.sources.values():
        for name in sorted({*run_references(stage.given)} & {"run.lower", "run.upper"}):
            yield ("source",), f"${{{name}}} has no value in a capture", _LEAVE, "error"
    if pipeline.configuration(job).get(_ACKS, "").strip().lower() == "all":
        what = "a capture publishes with acks: stored: where it goes on is stored with each batch"
        yield ("configuration", _ACKS), what, "give acks: stored, or leave it out", "error"
    if pipeline.launcher.plugin.cluster:
        what = f"a capture needs no Spark, and launcher {pipeline.launcher.type} starts drivers of Spark"
        remedy = "put the job into a pipeline with launcher: {type: local}, or run it by jobpipe cdc run"
        yield ("source", "type"), what, remedy, "error"
    for sink in job.sinks if "sink" in job.definition else ():
        yield from _check_sink(sink)
    yield from _check_routes(job, pipeline.spec.topic_prefix)


def _check_sink(sink: Stage[Sink]) -> Iterator[Finding]:
    if sink.type != "jobpipe":
        what = f"a capture publishes topics, and sink {sink.type} writes rows elsewhere"
        remedy = f"leave it out, and let the next job read the topic and write to {sink.type}"
        yield ("sink", "type"), what, remedy, "error"
        return
    own = {name.replace("_", "-") for name in sink.spec.model_fields_set - {"type"}}
    for key in sorted({*own, *sink.given} - {"topic"}):
        remedy = "leave it out; keys of the bus go into configuration, as spark.jobpipe.spool.max_bytes: 100GB"
        yield ("sink", key), "the topics of a capture have no such option", remedy, "error"


def _check_routes(job: Job, prefix: str) -> Iterator[Finding]:
    for number, route in enumerate(job.spec.route):
        if (found := problem_of(route)) is not None:
            yield ("route", number, "sink-table"), *found, "error"
        elif tables_of(job) and matches_none(job, route):
            what = f"it matches none of the tables {', '.join(tables_of(job))}"
            yield ("route", number, "source-table"), what, "correct it, or leave the route out", "warning"
    for table, path in named_tables(job):
        if not is_topic(topic := prefix + topic_of(job, table)):
            what = f"table {table} would go to {short_repr(topic)}, which cannot name a topic"
            remedy = f"give it one: route: [{{source-table: {table}, sink-table: TOPIC}}]"
            yield path[len(job.path) :], what, remedy, "error"
