"""No key of a file without a class; and a change of each does what its class says, by a plan of the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from jobpipe.control.control_service import Action, Plan, Submission
from jobpipe.control.revisions.classes_page import classes_page, with_classes
from jobpipe.control.revisions.key_classes import (
    CLASSES,
    ChangeClass,
    class_of_option,
    keeps_state,
    keys,
)
from jobpipe.errors import PipelineError
from jobpipe.pipelines.checkpoints.checkpoint_owner import has_checkpoint, owner_of, part_of
from jobpipe.pipelines.checkpoints.checkpoint_storage import claim
from jobpipe.pipelines.file.error_messages import field_names
from jobpipe.pipelines.file.spec import StageSpec
from jobpipe.pipelines.loading.loader import load_tree
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe.pipelines.model.pipeline import Stage
from jobpipe.pipelines.plugins.api import Plugin
from jobpipe.pipelines.plugins.capture_source import CaptureSource
from jobpipe.pipelines.plugins.plugin_discovery import BUILT_IN, PlugInKind, Plugins
from tests.control.world import NAME, FakePlugins, World, job_of
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "pipelines.md"
Sections = dict[str, Any]
TOPIC = {"type": "jobpipe", "subscribe": "rows"}
OTHERS = {"type": "jobpipe", "topic": "others"}
BATCH = {"source": TOPIC, "sink": {"type": "noop"}, "execution": {"runtime-mode": "BATCH"}}
FLOW = {"type": "flow", "source": TOPIC, "function": "functions:one", "publish": "out", "schema": "a int"}
HOOK = {"type": "webhook", "url": "env:ONE"}
ROUTE = {"source-table": "rows", "sink-table": "to-XY", "replace-symbol": "X", "description": "one"}
DEAD = {"tolerance": "all", "retention": "1d", "max-ratio": 0.5, "dead-letters": "dead"}
SQL = {"type": "sql", "filter": "value > 1"}


def of_job(before: Sections, **changed: Any) -> tuple[Sections, Sections]:
    """Return a job, and what it is changed to."""
    return {"jobs": {"report": before}}, {"jobs": {"report": {**before, **changed}}}


def of_pipeline(before: Sections, after: Sections) -> tuple[Sections, Sections]:
    """Return what section `pipeline` has besides, and what it is changed to."""
    return {"pipeline": before}, {"pipeline": after}


def alert(**changed: Any) -> tuple[Sections, Sections]:
    return of_pipeline({"alerts": [HOOK]}, {"alerts": [{**HOOK, **changed}]})


def restart(**changed: Any) -> tuple[Sections, Sections]:
    return of_pipeline({"restart": {}}, {"restart": {key.replace("_", "-"): value for key, value in changed.items()}})


def watermark(**changed: Any) -> tuple[Sections, Sections]:
    mark = {"column": "timestamp", "delay": "1 minute"}
    sources = [{"type": "rate", "watermark": each} for each in (mark, {**mark, **changed})]
    return of_job(job_of(source=sources[0]), source=sources[1])


def view(**changed: Any) -> tuple[Sections, Sections]:
    def two(left: Sections) -> Sections:
        return {"left": left, "right": {"type": "rate"}}

    mark = {"column": "timestamp", "delay": "1 minute"}
    query = {"type": "sql", "query": "SELECT left.* FROM left JOIN right USING (timestamp)"}
    before = {"type": "rate", "watermark": mark}
    job = {"sources": two(before), "transform": [query], "sink": {"type": "console"}}
    return of_job(job, sources=two({**before, **changed}))


def transform(before: Sections, after: Sections) -> tuple[Sections, Sections]:
    return of_job(job_of(transform=[before]), transform=[after])


def route(**changed: Any) -> tuple[Sections, Sections]:
    job = {"source": TOPIC, "sink": OTHERS, "route": [ROUTE]}
    return of_job(job, route=[{**ROUTE, **{key.replace("_", "-"): value for key, value in changed.items()}}])


def sink(**changed: Any) -> tuple[Sections, Sections]:
    return of_job(job_of(), sink={"type": "console", **{key.replace("_", "-"): each for key, each in changed.items()}})


def sinks(**changed: Any) -> tuple[Sections, Sections]:
    job = {"source": {"type": "rate"}, "sinks": [{"type": "noop"}, OTHERS]}
    more = {key.replace("_", "-"): value for key, value in changed.items()}
    return of_job(job, sinks=[{"type": "noop", **more}, OTHERS])


def schedule(before: Sections, **changed: Any) -> tuple[Sections, Sections]:
    more = {key.replace("_", "-"): value for key, value in changed.items()}
    rules = [{"every": "1 day", **each} for each in (before, {**before, **more})]
    return of_job({**BATCH, "schedule": rules[0]}, schedule=rules[1])


def errors(**changed: Any) -> tuple[Sections, Sections]:
    parse = {"type": "FromJson", "field": "v", "schema": "a int"}
    job = {"source": TOPIC, "sink": OTHERS, "transform": [parse], "errors": DEAD}
    return of_job(job, errors={**DEAD, **changed})


def flow(**changed: Any) -> tuple[Sections, Sections]:
    return of_job(FLOW, **changed)


SAMPLES: dict[str, tuple[Sections, Sections]] = {
    "pipeline.name": of_pipeline({}, {"name": "other"}),
    "pipeline.parameters": of_pipeline({"parameters": {"a": 1}}, {"parameters": {"a": 2}}),
    "pipeline.topic-prefix": of_pipeline({}, {"topic-prefix": "dev."}),
    "pipeline.storage": of_pipeline({}, {"storage": "elsewhere"}),
    "pipeline.configuration": of_pipeline({}, {"configuration": {"spark.ui.enabled": "false"}}),
    "pipeline.libraries[].glob.include": of_pipeline({}, {"libraries": [{"glob": {"include": "functions.py"}}]}),
    "pipeline.launcher.type": of_pipeline({}, {"launcher": {"type": "local"}}),
    "pipeline.restart.policy": restart(policy="never"),
    "pipeline.restart.max-attempts": restart(max_attempts=7),
    "pipeline.restart.delay": restart(delay="7s"),
    "pipeline.restart.max-delay": restart(max_delay="7min"),
    "pipeline.restart.reset-after": restart(reset_after="7min"),
    "pipeline.alerts[].type": of_pipeline({}, {"alerts": [HOOK]}),
    "pipeline.alerts[].url": alert(url="env:TWO"),
    "pipeline.alerts[].on": alert(on=["LOST"]),
    "pipeline.alerts[].lag-rows": alert(**{"lag-rows": 5}),
    "pipeline.alerts[].lag-time": alert(**{"lag-time": "5s"}),
    "jobs.JOB.type": ({"jobs": {"report": {**BATCH, "execution": {}}}}, {"jobs": {"report": FLOW}}),
    "jobs.JOB.source.type": of_job(job_of(), source={"type": "rate-micro-batch", "options": {"rowsPerBatch": 1}}),
    "jobs.JOB.source.watermark.column": watermark(column="value"),
    "jobs.JOB.source.watermark.delay": watermark(delay="2 minutes"),
    "jobs.JOB.sources.VIEW.type": view(type="rate-micro-batch", options={"rowsPerBatch": 1}),
    "jobs.JOB.sources.VIEW.watermark.column": view(watermark={"column": "value", "delay": "1 minute"}),
    "jobs.JOB.sources.VIEW.watermark.delay": view(watermark={"column": "timestamp", "delay": "2 minutes"}),
    "jobs.JOB.transform[].type": transform(SQL, {"type": "Filter", "predicate": "value > 1"}),
    "jobs.JOB.transform[].source-table": of_job(
        {"source": TOPIC, "sink": OTHERS, "transform": [SQL]}, transform=[{**SQL, "source-table": "rows"}]
    ),
    "jobs.JOB.route[].source-table": route(source_table="row."),
    "jobs.JOB.route[].sink-table": route(sink_table="for-XY"),
    "jobs.JOB.route[].replace-symbol": route(replace_symbol="Y"),
    "jobs.JOB.route[].description": route(description="two"),
    "jobs.JOB.sink.type": of_job(job_of(), sink={"type": "noop"}),
    "jobs.JOB.sink.output-mode": sink(output_mode="update"),
    "jobs.JOB.sink.at-least-once": sink(at_least_once=True),
    "jobs.JOB.sinks[].type": sinks(type="console", at_least_once=True),
    "jobs.JOB.sinks[].output-mode": sinks(output_mode="append"),
    "jobs.JOB.sinks[].at-least-once": sinks(at_least_once=True),
    "jobs.JOB.trigger.available-now": of_job(job_of(), trigger={"available-now": True}),
    "jobs.JOB.trigger.processing-time": of_job(job_of(), trigger={"processing-time": "2s"}),
    "jobs.JOB.execution.runtime-mode": of_job({**BATCH, "execution": {}}, execution={"runtime-mode": "BATCH"}),
    "jobs.JOB.configuration": of_job(job_of(), configuration={"spark.ui.enabled": "false"}),
    "jobs.JOB.schedule.crontab": (
        {"jobs": {"report": {**BATCH, "schedule": {"crontab": "0 2 * * *"}}}},
        {"jobs": {"report": {**BATCH, "schedule": {"crontab": "0 3 * * *"}}}},
    ),
    "jobs.JOB.schedule.every": schedule({}, every="2 days"),
    "jobs.JOB.schedule.timezone": schedule({}, timezone="Europe/Berlin"),
    "jobs.JOB.schedule.delay": schedule({}, delay="5min"),
    "jobs.JOB.schedule.start": schedule({}, start="2026-01-01T00:00:00Z"),
    "jobs.JOB.schedule.end": schedule({}, end="2126-01-01T00:00:00Z"),
    "jobs.JOB.schedule.boundaryType": schedule({"catchup": "latest"}, boundaryType="OFFSET"),
    "jobs.JOB.schedule.catchup": schedule({}, catchup="none"),
    "jobs.JOB.schedule.self-depend": schedule({}, self_depend=True),
    "jobs.JOB.schedule.mode": of_job(
        {**BATCH, "schedule": {"every": "1 day"}},
        schedule={"every": "1 day", "mode": "available-now"},
        execution={"runtime-mode": "STREAMING"},
    ),
    "jobs.JOB.schedule.engine.type": schedule({}, engine={"type": "external"}),
    "jobs.JOB.errors.tolerance": errors(tolerance="none", retention=None, **{"dead-letters": None, "max-ratio": None}),
    "jobs.JOB.errors.dead-letters": errors(**{"dead-letters": "bad"}),
    "jobs.JOB.errors.retention": errors(retention="2d"),
    "jobs.JOB.errors.max-ratio": errors(**{"max-ratio": 0.25}),
    "jobs.JOB.application": of_job({"application": "functions.py"}, application="program.py"),
    "jobs.JOB.arguments": of_job({"application": "functions.py"}, arguments=["a"]),
    "jobs.JOB.secrets": of_job(job_of(), secrets={"A": "env:A"}),
    "jobs.JOB.function": flow(function="functions:two"),
    "jobs.JOB.setup": flow(setup="functions:two"),
    "jobs.JOB.publish": flow(publish="out2"),
    "jobs.JOB.schema": flow(schema="a long"),
    "jobs.JOB.partitions": flow(partitions=2),
}
"""For each key a file with one value, and the same with another one; else as `World.submission`."""
DOES = {
    ChangeClass.TAKEN: {Action.UNCHANGED},
    ChangeClass.NEXT_RUN: {Action.STORED},
    ChangeClass.RESTART: {Action.RESTARTED, Action.STARTED},  # whether its run has begun yet
    ChangeClass.READS_AGAIN: {Action.RESTARTED, Action.STARTED},
    ChangeClass.COMPARED: {Action.RESTARTED, Action.STARTED},
    ChangeClass.NEW_CHECKPOINT: {Action.NEEDS_NEW_CHECKPOINT},
}


def test_no_key_without_a_class() -> None:
    assert list(CLASSES) == keys()
    assert list(SAMPLES) == keys()


def filled(world: World, sections: Sections) -> Submission:
    for name in ("functions.py", "program.py"):
        (world.folder / name).write_text("one = two = None\n")
    return world.submission(sections.get("jobs"), **sections.get("pipeline", {}))


def begin_checkpoints(world: World, submission: Submission) -> None:
    """Let the jobs of a file that have checkpoints have begun with them."""
    plugins = FakePlugins(world.cluster)
    pipeline = load_tree(submission.tree, file=submission.file, folder=submission.folder, plugins=plugins)
    for job in filter(has_checkpoint, pipeline.jobs.values()):
        claim(
            PipelinePaths.of(world.config.home, NAME).storage(pipeline, job.name),
            owner_of(world.config.namespace, NAME, job),
        )
        offsets = world.config.home / "pipelines" / NAME / job.name / "offsets"
        offsets.mkdir()
        (offsets / "0").write_text("0")


@pytest.mark.parametrize("key", CLASSES)
def test_a_change_of_each_key_does_what_its_class_says(world: World, key: str) -> None:
    before, after = (filled(world, each) for each in SAMPLES[key])
    server = world.server()
    server.submit(before)
    begin_checkpoints(world, before)
    assert server.plan(before).jobs[0].action is Action.UNCHANGED
    change = CLASSES[key]
    if change is ChangeClass.REFUSED:
        assert is_refused(server.plan, after)
        return
    plan = server.plan(after)
    if change is ChangeClass.ANOTHER_PIPELINE:
        assert (plan.version, plan.pipeline) == (0, "other")
        return
    (job,) = plan.jobs
    assert job.action in DOES[change], job
    assert plan.changed
    assert bool(job.rows_again) is (change in (ChangeClass.READS_AGAIN, ChangeClass.NEW_CHECKPOINT)), job
    told = [each.partition(":")[0] for each in (*job.reasons, *plan.settings)]
    if key != "jobs.JOB.route[].description":  # for people
        assert any(is_about(each, key) for each in told), told


def is_refused(plan: Any, after: Submission) -> bool:
    try:
        return cast(Plan, plan(after)).is_refused
    except PipelineError:
        return True


def is_about(told: str, key: str) -> bool:
    """Whether a reason names a key, or a section that has come with it."""
    named = key.replace("JOB", "report").replace("VIEW", "left").replace("[]", "[0]")
    longer, shorter = sorted((named, told), key=len, reverse=True)
    return longer == shorter or longer.startswith((f"{shorter}.", f"{shorter}["))


def options(kind: PlugInKind) -> Iterator[tuple[str, type[Plugin], str, bool]]:
    """Yield type and class of each built-in plug-in, and its options: its own, and some of Spark's."""
    found = Plugins()
    for each in found.all():
        if each.distribution == BUILT_IN and each.kind is kind:
            plugin = found.find(kind, each.type)
            names = [name for name in field_names(plugin.Options) if name != "options"]
            yield from ((each.type, plugin, name, True) for name in names)
            sparks = {"maxFilesPerTrigger", "kafka.bootstrap.servers", "subscribe", "url", "dbtable", "password", "x"}
            if "options" in field_names(plugin.Options):
                yield from ((each.type, plugin, name, False) for name in sorted(sparks | (plugin.identifying or set())))


def with_option(type_: str, plugin: type[Plugin], option: str, value: str, *, is_own: bool) -> Stage[Any]:
    given = {option: value} if is_own else {"options": {option: value}}
    made = plugin(plugin.Options.model_construct())
    return Stage(spec=StageSpec(type=type_), given=given, plugin=made, folder=Path("/"), path=())


@pytest.mark.parametrize("kind", [PlugInKind.SOURCE, PlugInKind.SINK])
def test_the_class_of_each_option_of_a_source_or_sink(kind: PlugInKind) -> None:
    """It needs a new checkpoint if what is noted next to that is another stage."""
    asked = 0
    for type_, plugin, option, is_own in options(kind):
        one, other = (with_option(type_, plugin, option, f"env:{each}", is_own=is_own) for each in "ab")
        is_another = not part_of(one).is_same(part_of(other)) and not issubclass(plugin, CaptureSource)
        change = class_of_option(kind, plugin, option, is_own=is_own)
        assert change is (ChangeClass.NEW_CHECKPOINT if is_another else ChangeClass.RESTART), (type_, option)
        asked += 1
    assert asked > 100


def test_the_classes_of_transforms_and_launchers(world: World) -> None:
    """A stage that keeps state is noted with all its options; others are compared by the query that Spark makes."""
    for type_, plugin, option, _ in options(PlugInKind.TRANSFORM):
        change = class_of_option(PlugInKind.TRANSFORM, plugin, option)
        assert change is (ChangeClass.NEW_CHECKPOINT if type_ == "deduplicate" else ChangeClass.COMPARED)
        assert keeps_state(plugin) is (type_ == "deduplicate")
    for _, plugin, option, _ in options(PlugInKind.LAUNCHER):
        assert class_of_option(PlugInKind.LAUNCHER, plugin, option) is ChangeClass.RESTART
    one, other = ({"type": "deduplicate", "keys": [key]} for key in ("value", "timestamp"))
    before, after = (filled(world, each) for each in transform(one, other))
    server = world.server()
    server.submit(before)
    begin_checkpoints(world, before)
    (job,) = server.plan(after).jobs
    assert job.action is Action.NEEDS_NEW_CHECKPOINT
    assert "stages that keep state" in job.reasons[0]


def test_a_transform_that_keeps_state_comes_or_goes(world: World) -> None:
    """Unlike others, it is noted next to the checkpoint."""
    before, after = (filled(world, each) for each in transform(SQL, {"type": "deduplicate", "keys": ["value"]}))
    server = world.server()
    server.submit(before)
    begin_checkpoints(world, before)
    assert not server.plan(filled(world, SAMPLES["jobs.JOB.transform[].type"][1])).is_refused
    assert server.plan(after).jobs[0].action is Action.NEEDS_NEW_CHECKPOINT


def test_the_page_has_the_tables() -> None:
    text = PAGE.read_text()
    assert classes_page() in text
    assert with_classes(text) == text, "run `make docs`"
