"""Checks of what is right by itself and wrong together: within a job, and between a job and its pipeline."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from jobpipe.config.definitions.config_model import KEYS
from jobpipe.config.reading.located_values import Path, dotted
from jobpipe.errors import ConfigError, short_repr
from jobpipe.pipelines.file.error_messages import problem_at
from jobpipe.pipelines.file.field_types import SPARK_JOBPIPE
from jobpipe.pipelines.file.file_paths import EXTENSIONS, local_folder, reads_folder
from jobpipe.pipelines.file.interpolation import run_references
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.file.spec import Mode, is_capture
from jobpipe.pipelines.loading.capture_checks import Finding, check_capture
from jobpipe.pipelines.model.pipeline import Job, Pipeline, Stage
from jobpipe.pipelines.model.routes import fixed_target, matches, problem_of, routes_of
from jobpipe.pipelines.plugins.job_context import INPUT, with_prefix

_FLOW_ONLY = ("function", "setup", "publish", "schema", "partitions")
_QUERY_ONLY = ("sources", "transform", "route", "sink", "sinks", "trigger", "schedule", "errors", "execution")
NOT_FIRED = "jobpipe pipeline run makes no runs of schedules; the control server does"
_PLACEMENT = "spool.placement"
_ACKS = SPARK_JOBPIPE + "acks"
# Spark takes 12, 12L and 1e3 for numbers; every other word of these characters can name a view, select and 1a too.
_VIEW = re.compile(r"(?!\d+(e\d+)?(bd|[dflsy])?\Z)\w+", re.ASCII | re.IGNORECASE)


def check_job(pipeline: Pipeline, job: Job) -> Iterator[Problem]:
    """Yield the problems of one job, all of whose sections are right by themselves."""
    for check in (check_capture,) if job.spec.captures else _CHECKS:
        for path, what, remedy, severity in check(pipeline, job):
            yield problem_at(pipeline.tree, (*job.path, *path), what, remedy, severity)


def check_pipeline(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield the problems of the section ``pipeline``."""
    spec = pipeline.spec
    if spec.restart.max_delay < spec.restart.delay:
        what_ = f"it is shorter than delay, {spec.restart.delay:g} s"
        yield problem_at(pipeline.tree, ("pipeline", "restart", "max-delay"), what_, "give a longer one")
    if pipeline.launcher.plugin.cluster and (spec.storage is None or _is_on_host(spec.storage)):
        where = "the home of one host" if spec.storage is None else spec.storage
        what_ = f"checkpoints are in {where}, and launcher {pipeline.launcher.type} may take another host each time"
        remedy = "name a storage that every host reaches, such as s3a://bucket/pipelines, unless this folder is shared"
        yield problem_at(pipeline.tree, ("pipeline", "storage"), what_, remedy, "warning")


def check_folders(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield a problem for each sink that writes files into the folder of another one, unless both are of runs."""
    first: dict[str, tuple[Job, Stage[Any]]] = {}
    for job in pipeline.jobs.values():
        for stage in job.sinks:
            place = stage.plugin.folder(pipeline.folder)
            if place is None:
                continue
            local = local_folder(place)
            key = place.rstrip("/") if local is None else os.path.normpath(local)
            other, there = first.setdefault(key, (job, stage))
            if there is stage or (job is not other and job.mode is other.mode is Mode.BATCH):
                continue
            whose = "another sink of this job" if other is job else f"job {other.name}"
            what = f"{whose} writes its files to {key}, too, and rows would be left out, or be there twice"
            path = (*stage.path, "path")
            yield problem_at(pipeline.tree, path, what, "give it a folder of its own")


def left_out_by_run(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield, as warnings, what the file asks for and ``jobpipe pipeline run`` does not do."""
    for number, alert in enumerate(pipeline.spec.alerts):
        path = ("pipeline", "alerts", number, "on")
        if "GAP" in alert.on:
            what = "GAP is of scheduled intervals, which jobpipe pipeline run does not make"
            yield problem_at(pipeline.tree, path, what, "leave it out", "warning")
        if "DIFFERENCE" in alert.on:
            what = "DIFFERENCE is sent by the control server alone"
            yield problem_at(pipeline.tree, path, what, "leave it out, and call jobpipe ledger", "warning")


def schedules_not_fired(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield a warning for each schedule, of a run in the foreground: only the control server fires schedules."""
    for job in pipeline.jobs.values():
        if job.spec.schedule is not None:
            remedy = f"jobpipe pipeline submit FILE; or run the job once: jobpipe pipeline run FILE --only {job.name}"
            if job.mode is Mode.BATCH:
                remedy += " --lower LOWER --upper UPPER"
            yield problem_at(pipeline.tree, (*job.path, "schedule"), NOT_FIRED, remedy, "warning")


def without_bounds(job: Job) -> str | None:
    """Return why a job cannot run without bounds, and what to do, in one sentence; None: it can."""
    named = needs_bounds(job)
    if named is None:
        return None
    return (
        f"job {job.name} cannot run: its {named}, and this run has no bounds; give them: "
        f"jobpipe pipeline run FILE --only {job.name} --lower LOWER --upper UPPER"
    )


def needs_bounds(job: Job) -> str | None:
    """Return which stage or argument of a job names a bound of its run, in words, so that a run needs bounds.

    >>> needs_bounds(job)
    'sink names ${run.lower}'
    """
    places: list[tuple[Path, Any]] = [(_below(job, stage), stage.given) for stage in job.stages]
    places += [(("arguments", number), argument) for number, argument in enumerate(job.spec.arguments)]
    for path, given in places:
        for name in _bounds_in(given):
            return f"{dotted(path)} names ${{{name}}}"
    return None


def _bounds_in(given: Any) -> list[str]:
    """Return the names of the bounds that options or an argument name."""
    return sorted({*run_references(given)} & {"run.lower", "run.upper"})


def _is_on_host(storage: str) -> bool:
    return storage.startswith(("file:", "/", "~", ".")) or "://" not in storage


def _kind(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    """A job is a query, a flow or a program, and has the keys of that."""
    given = set(job.definition)
    spec = job.spec
    if spec.application is not None:
        for key in sorted(given & {"type", "source", *_FLOW_ONLY, *_QUERY_ONLY}):
            yield (key,), "a job with application: does its own reading and writing", "leave out one of them", "error"
        if not (pipeline.folder / spec.application).is_file():
            what = f"there is no file {short_repr(spec.application)} here"
            yield ("application",), what, "give its path from the folder of this file", "warning"
        return
    if "arguments" in given:
        yield ("arguments",), "they are of a program of your own", "give application: FILE, or leave them out", "error"
    yield from _flow(pipeline, job, given) if spec.type == "flow" else _query(job, given)


def _query(job: Job, given: set[str]) -> Iterator[Finding]:
    for key in sorted(given & set(_FLOW_ONLY)):
        yield (key,), "only a flow has it", "give type: flow as well, or leave it out", "error"
    for one, several in (("source", "sources"), ("sink", "sinks")):
        if {one, several} <= given:
            yield (several,), f"{one} is given too", f"give all under {several}", "error"
        elif not {one, several} & given:
            yield (one,), "it is missing", f"give {one}: {{type: TYPE, …}}, or {several}", "error"
    for view, stage in job.sources.items():
        if view is not None and is_capture(stage.type):
            what = f"source {stage.type} publishes topics by itself, and no query reads it"
            remedy = "make it a job of its own, with source, and read its topics: {type: jobpipe, subscribe: TOPIC}"
            yield ("sources", view, "type"), what, remedy, "error"
    if len(job.sources) > 1 and not (job.transforms and job.transforms[0].plugin.reads_views):
        what = "the job has several sources, and nothing joins them"
        yield ("sources",), what, "let the first transform be {type: sql, query: …} over them", "error"


def _views(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    """A query reads each source as a view. Without a query their names are only parts of subscriptions' names."""
    if not any(stage.type == "sql" and stage.plugin.reads_views for stage in job.transforms):
        return
    first: dict[str, str] = {}
    for view in job.sources:
        if view is None:
            continue
        if view.lower() == INPUT:
            what = f"{INPUT} is the view of the rows that come to the query, so no source can have this name"
            yield ("sources", view), what, "give the source another name", "error"
        elif _VIEW.fullmatch(view) is None:
            what = "a query reads the source as a view, and Spark takes no view of this name"
            yield ("sources", view), what, "use letters, digits and _, and not digits alone: order_lines", "error"
        elif (other := first.setdefault(view.lower(), view)) != view:
            what = f"to a query it is the same view as source {other}: upper and lower case are one"
            yield ("sources", view), what, "give each source a name of its own", "error"


def _flow(pipeline: Pipeline, job: Job, given: set[str]) -> Iterator[Finding]:
    for key in sorted(given & set(_QUERY_ONLY)):
        yield (key,), "a flow has none", "leave it out, or leave out type: flow", "error"
    for key in ("source", "function"):
        if key not in given:
            yield (key,), "a flow needs it", _FLOW_NEEDS[key], "error"
    for stage in job.sources.values():
        if getattr(stage.spec, "watermark", None) is not None:
            what = "a flow has none: its function is called with every row, however late"
            yield ("source", "watermark"), what, "leave it out, or leave out type: flow", "error"
        if len(stage.plugin.topics().names) != 1 or stage.plugin.topics().pattern is not None:
            yield ("source",), "a flow reads one topic", "give source: {type: jobpipe, subscribe: TOPIC}", "error"
            continue
        try:
            stage.plugin.flow_options()
        except ValueError as error:
            yield ("source", str(error)), "a flow has no such option", "leave it out, or leave out type: flow", "error"
        if stage.plugin.topics().names == (job.spec.publish,):
            yield ("publish",), "it is the topic that the flow reads", "publish another one", "error"
    if ("publish" in given) != ("schema" in given):
        missing = "schema" if "publish" in given else "publish"
        yield (missing,), "publish and schema go together", _FLOW_NEEDS[missing], "error"
    if "partitions" in given and "publish" not in given:
        yield ("partitions",), "they are of a topic that the flow publishes", "give publish and schema", "error"
    if "publish" in given:
        yield from _flow_acks(pipeline, job)


def _flow_acks(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    """Refuse what ``jobpipe.flow`` refuses; an option of the source wins over the configuration."""
    options: list[tuple[Path, Any]] = [
        (("source", "acks"), getattr(stage.plugin.options, "acks", None)) for stage in job.sources.values()
    ]
    path, acks = next(
        (option for option in options if option[1] is not None),
        (("configuration", _ACKS), pipeline.configuration(job).get(_ACKS, "")),
    )
    if acks.strip().lower() == "all":
        what = "a flow publishes with acks: stored, since many tasks seal at once"
        yield path, what, "give acks: stored, or leave it out; the topic that it reads may have all", "error"


_FLOW_NEEDS = {
    "source": "give source: {type: jobpipe, subscribe: TOPIC}",
    "function": "give function: module:name",
    "schema": "give the columns of what the function returns, as in 'id bigint, name string'",
    "publish": "give the topic for what the function returns",
}


def _modes(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    """Keys that a bounded run does not accept, and those that only a bounded run accepts."""
    spec = job.spec
    if job.mode is Mode.BATCH:
        if spec.trigger is not None:
            remedy = "leave it out: a run reads all between its bounds"
            yield ("trigger",), "not supported in a BATCH job", remedy, "error"
        for stage in job.sinks:
            if Mode.BATCH not in stage.plugin.modes:
                what = f"sink {stage.type} is for streams, and the job is BATCH"
                yield _below(job, stage), what, "use another sink, or leave out execution.runtime-mode", "error"
            elif "output-mode" in _given(pipeline, stage):
                yield (*_below(job, stage), "output-mode"), "not supported in a BATCH job", "leave it out", "error"
        return
    for stage in job.sinks:
        if Mode.STREAMING not in stage.plugin.modes:
            what = f"sink {stage.type} is for runs with an end, and the job is STREAMING"
            yield _below(job, stage), what, "give execution: {runtime-mode: BATCH}, or use another sink", "error"
    for stage in job.stages:
        for name in _bounds_in(stage.given):
            what = f"${{{name}}} has no value in a STREAMING job"
            yield _below(job, stage), what, "give execution: {runtime-mode: BATCH}, or leave it out", "error"
    trigger = spec.trigger
    if trigger is not None and trigger.available_now and trigger.processing_time is not None:
        yield ("trigger",), "two triggers are given", "give available-now or processing-time", "error"


def _schedule(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    schedule = job.spec.schedule
    if schedule is None:
        return
    if (schedule.crontab is None) == (schedule.every is None):
        yield ("schedule",), "it needs one rule", "give crontab or every", "error"
    times = {key: _time(text) for key, text in (("start", schedule.start), ("end", schedule.end)) if text is not None}
    for key, time in times.items():
        if time is None:
            remedy = "give it in ISO 8601 with its zone, as 2026-11-21T00:00:00Z"
            yield ("schedule", key), f"{short_repr(getattr(schedule, key))} is not a time", remedy, "error"
    start, end = times.get("start"), times.get("end")
    if start is not None and end is not None and end <= start:
        yield ("schedule", "end"), "it is not later than start", "give a later one", "error"
    if schedule.mode == "available-now":
        if job.mode is Mode.BATCH:
            what = "available-now starts a streaming job, and the job is BATCH"
            yield ("schedule", "mode"), what, "leave out execution.runtime-mode, or mode", "error"
        return
    if job.mode is Mode.STREAMING:
        remedy = "give execution: {runtime-mode: BATCH}, or schedule: {mode: available-now}"
        yield ("schedule",), "a schedule makes runs with an end, and the job is STREAMING", remedy, "error"
    if schedule.catchup == "all" and schedule.boundary_type == "OFFSET":
        what = "offsets of intervals that were missed cannot be known afterwards"
        yield ("schedule", "catchup"), what, "give boundaryType: TIME, or catchup: latest", "error"
    filtered = any(_bounds_in(stage.given) for stage in job.transforms)
    for stage in job.sources.values():
        if not (stage.plugin.takes_bounds or filtered or _bounds_in(stage.given)):
            what = f"source {stage.type} knows no bounds: each run would read the same rows"
            remedy = "name the bounds in its options, as in path: data/${run.lower:%Y-%m-%d}"
            yield _below(job, stage), what, remedy, "error"
        for name in sorted(stage.plugin.own_bounds & stage.given.keys()):
            if not _bounds_in(stage.given[name]):
                what = "each run would read by it, and not its own interval"
                yield (*_below(job, stage), name), what, "leave it out, or leave out schedule", "error"


def _time(text: str) -> datetime | None:
    """Return the time that a text stands for; None if it stands for none, or names no zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _several_sinks(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    if len(job.sinks) < 2:
        return
    for stage in job.sinks:
        if not (stage.plugin.idempotent or getattr(stage.spec, "at_least_once", False)):
            what = f"of several sinks each may see a micro-batch twice, and sink {stage.type} would write it twice"
            remedy = "give at-least-once: true if that is acceptable, or make it another job"
            yield _below(job, stage), what, remedy, "error"
    if len({getattr(stage.spec, "output_mode", None) or "append" for stage in job.sinks}) > 1:
        yield ("sinks",), "they have different output modes", "give all the same output-mode", "error"


def _tolerance(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    errors = job.spec.errors
    if errors.tolerance != "all":
        given = {"dead-letters": errors.dead_letters, "retention": errors.retention, "max-ratio": errors.max_ratio}
        for name, value in given.items():
            if value is not None:
                what = "without tolerance: all there are no dead letters: a bad row fails the job"
                yield ("errors", name), what, "give errors: {tolerance: all}, or leave it out", "error"
        return
    for sink in job.sinks if len(job.sinks) == 1 and job.mode is Mode.STREAMING else ():
        if not (sink.plugin.idempotent or getattr(sink.spec, "at_least_once", False)):
            what = f"with dead letters rows are written by micro-batch, and sink {sink.type} would write one twice"
            yield _below(job, sink), what, "give at-least-once: true if that is acceptable, or publish a topic", "error"
    if len(job.sources) > 1:
        yield ("errors",), "a job with dead letters has one source", "let another job join them", "error"
    for source in job.sources.values():
        for found in source.plugin.check_tolerant(job.mode):
            what = f"with errors.tolerance: {found.what}"
            yield (*_below(job, source), *found.key.split(".")), what, found.remedy, found.severity
    for stage in job.transforms:
        path = _below(job, stage)
        if stage.plugin.stateful:
            what = f"{stage.type} keeps state, and dead letters are taken out before it"
            yield path, what, "split the job: let this one publish a topic, and the next one read it", "error"
        elif stage.plugin.stateful is None:
            what = f"errors.tolerance does not cover {stage.type}: it fails as a whole, and must keep no state"
            yield path, what, "give row-function or batch-function of type python for rows that may be bad", "warning"
        elif stage.plugin.may_fail and not stage.plugin.tolerant:
            what = f"errors.tolerance does not cover {stage.type}: a value on which it fails, fails the job"
            remedy = "in SQL use try_cast and the other try_ functions; or FromJson for from_json, or a row-function"
            if stage.type == "Cast":
                what = "errors.tolerance covers no Cast to an array, map or struct: a value in it may fail the job"
                remedy = "give the other columns a Cast of their own, and cast this one in a row-function"
            yield path, what, remedy, "warning"


def _kept_keys(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    """Spark lets go of a key only when its time is past the watermark, so the time must be a part of the key."""
    if job.mode is Mode.BATCH:
        return
    sources = (getattr(stage.spec, "watermark", None) for stage in job.sources.values())
    columns = {watermark.column.lower() for watermark in sources if watermark is not None}
    for stage in job.transforms:
        options: Any = stage.plugin.options
        if stage.type == "watermark":
            columns.add(options.column.lower())
        if stage.type != "deduplicate" or options.within_watermark:
            continue
        if not columns & {key.lower() for key in options.keys}:
            what = "no column with a watermark is among its keys: the stream keeps each key for ever"
            remedy = "give within-watermark: true after a watermark, or add the watermark's column to keys"
            yield _below(job, stage), what, remedy, "warning"


def _route(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    """Routes go by the topic of a row, and lead to topics; transforms are applied to the rows of each."""
    if not job.spec.route:
        return
    if [stage.type for stage in job.sinks] != ["jobpipe"]:
        yield ("route",), "routes lead to topics, of one sink", "give sink: {type: jobpipe, topic: OTHERS}", "error"
    topics = [stage.plugin.topics() for stage in job.sources.values()]
    if len(topics) != 1 or not all(each.names or each.pattern for each in topics):
        remedy = "give source: {type: jobpipe, subscribe: [TOPIC, …]}, or subscribePattern"
        yield ("route",), "routes go by the topics of the rows, of one source", remedy, "error"
    narrower = "publish another one, or give a narrower subscribePattern"
    for number, route in enumerate(job.spec.route):
        if (found := problem_of(route)) is not None:
            yield ("route", number, "sink-table"), *found, "error"
        elif (target := fixed_target(route)) is not None and any(matches(each, target) for each in topics):
            yield ("route", number, "sink-table"), "the job's subscribePattern matches this topic", narrower, "error"
    yield from _circles(job)
    for sink in job.sinks:
        for name in sink.plugin.topics().names:
            if any(matches(each, name) for each in topics):
                yield (*_below(job, sink), "topic"), "the job's subscribePattern matches this topic", narrower, "error"
    if job.spec.errors.tolerance == "all":
        remedy = "split the job: let this one publish a topic, and the next one route it"
        yield ("route",), "a job with dead letters has none", remedy, "error"
    for stage in job.transforms:
        if stage.plugin.stateful:
            remedy = "split the job: let the next one do it"
            yield _below(job, stage), f"{stage.type} keeps state, and each topic is transformed alone", remedy, "error"
        elif stage.plugin.stateful is None:
            what = f"with routes {stage.type} is applied to the rows of each topic in a micro-batch"
            yield _below(job, stage), what, "make sure that it keeps no state", "warning"


def _tables(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    """What Flink CDC transforms by table, a job transforms as a whole."""
    topics = [stage.plugin.topics() for stage in job.sources.values()]
    names = [name for each in topics for name in (*each.names, *([each.pattern] if each.pattern else []))]
    remedy = "leave it out; choose rows by filter, or let a job of its own read these topics"
    for stage in job.transforms:
        table = getattr(stage.spec, "source_table", None)
        if table is None:
            continue
        path = (*_below(job, stage), "source-table")
        if not all(each.names or each.pattern for each in topics):
            yield path, "the job reads no topics that it could match", remedy, "error"
        for name in names:
            if table != name and re.fullmatch(table, name) is None:
                yield path, f"the job also reads {name}, and a transform is for all its rows", remedy, "error"


def _circles(job: Job) -> Iterator[Finding]:
    """What the rows of the topics that are known by name would fail on."""
    if any(problem_of(route) for route in job.spec.route) or len(job.sources) != 1 or len(job.sinks) != 1:
        return
    if len(job.sinks[0].plugin.topics().names) != 1:
        return
    routes = routes_of(job)
    for name in next(iter(job.sources.values())).plugin.topics().names:
        try:
            assert routes is not None  # noqa: S101 - the job has some
            routes.targets(name)
        except ConfigError as error:
            what, _, remedy = str(error).removeprefix("route: ").partition("; ")
            yield ("route",), what, remedy or "give another sink-table", "error"


def _pattern(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    """What is right by itself must be right after the prefix, too."""
    prefix = pipeline.spec.topic_prefix
    for stage in job.sources.values():
        try:
            re.compile(with_prefix(stage.plugin.topics().pattern or "", prefix))
        except re.error as error:
            what = f"after topic-prefix {prefix} it is no regular expression: {error}"
            remedy = "write flags in one group at its start, as in (?ix), or as (?i:…)"
            yield (*_below(job, stage), "subscribePattern"), what, remedy, "error"


def _own_output(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    if job.mode is Mode.BATCH:
        return  # it ends
    for source in job.sources.values():
        read = source.plugin.folders(pipeline.folder)
        for sink in job.sinks if read is not None else ():
            written = sink.plugin.folder(pipeline.folder)
            if written is None or read is None:
                continue
            local = local_folder(written)
            place = written.rstrip("/") if local is None else os.path.normpath(local)
            kind = str(sink.given.get("format", sink.type))
            if reads_folder(read, place, f"part-0.c000.{EXTENSIONS.get(kind.lower(), kind.lower())}"):
                what = f"the source reads what the sink writes to {place}: its rows would go round for ever"
                yield (*_below(job, sink), "path"), what, "give it a folder that the source does not read", "error"


def _launcher(pipeline: Pipeline, job: Job) -> Iterator[Finding]:
    if not pipeline.launcher.plugin.cluster:
        return
    configured = pipeline.configuration(job).get(SPARK_JOBPIPE + _PLACEMENT)
    default = next(about.default for about in KEYS if about.short == _PLACEMENT)
    for stage in job.sinks:
        if not stage.plugin.topics().names:
            continue
        placement = stage.given.get(_PLACEMENT, configured or default)
        if placement == "driver":
            what = f"{_PLACEMENT} is driver, and launcher {pipeline.launcher.type} may take another host each time"
            remedy = f"give {_PLACEMENT}: shared or host, so that the topic keeps the same log"
            yield (*_below(job, stage), _PLACEMENT), what, remedy, "error"


def _below(job: Job, stage: Stage[Any]) -> Path:
    """Return the path of a stage within its job."""
    return stage.path[len(job.path) :]


def _given(pipeline: Pipeline, stage: Stage[Any]) -> set[str]:
    return stage.spec.model_fields_set and {name.replace("_", "-") for name in stage.spec.model_fields_set}


_CHECKS: tuple[Callable[[Pipeline, Job], Iterator[Finding]], ...] = (
    _kind,
    _views,
    _modes,
    _schedule,
    _several_sinks,
    _tolerance,
    _kept_keys,
    _route,
    _tables,
    _pattern,
    _own_output,
    _launcher,
)
