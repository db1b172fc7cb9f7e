"""A file to a checked pipeline: read, parameters interpolated, every section and every plug-in's options checked.

A submitted file is loaded by the client, which knows its lines; by the server, for the plan and for the submission;
and by each attempt, out of its snapshot. All problems are found before any is reported. Nothing of the user's is
imported; plug-ins that the file names are.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, TypeGuard, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from jobpipe.config.definitions.key_names import closest
from jobpipe.config.reading.located_values import FilePlace, Path, TreeNode, dotted, find, node_of, plain
from jobpipe.config.types.value_types import SECRET
from jobpipe.errors import short_repr
from jobpipe.pipelines.file.error_messages import by_name, field_names, nested, problem_at, problems_of
from jobpipe.pipelines.file.field_types import FOLDER, JobName, TopicName, secrets_in_clear
from jobpipe.pipelines.file.file_paths import escaped
from jobpipe.pipelines.file.interpolation import Quote, fill, interpolate
from jobpipe.pipelines.file.overlays import read_files
from jobpipe.pipelines.file.problems import OptionError, Problem, ProblemList, nearest, pipeline_error
from jobpipe.pipelines.file.spec import (
    MAX_JOBS,
    EngineSpec,
    JobSpec,
    Mode,
    PipelineFile,
    PipelineSpec,
    SinkSpec,
    SourceSpec,
    StageSpec,
    TransformSpec,
    is_capture,
)
from jobpipe.pipelines.loading.spec_checks import check_folders, check_job, check_pipeline
from jobpipe.pipelines.model.graph import check_topics
from jobpipe.pipelines.model.pipeline import Job, Pipeline, Stage
from jobpipe.pipelines.plugins.api import Launcher, Plugin, Sink, Source, Transform
from jobpipe.pipelines.plugins.capture_source import CaptureSource
from jobpipe.pipelines.plugins.plugin_discovery import PlugInError, PlugInKind, Plugins
from jobpipe.pipelines.plugins.schedule_engine import fires_nothing

M = TypeVar("M", bound=BaseModel)
_NAME: TypeAdapter[str] = TypeAdapter(JobName)
_TOPIC: TypeAdapter[str] = TypeAdapter(TopicName)
_UNNAMED = "job"  # of a pipeline without a right name, and of its single job: a problem by itself
_TOP = {"pipeline", "jobs"}
JOBPIPE = "jobpipe"  # the type of the source that reads topics
_DECIDING = frozenset({"application", "execution", "type"})  # without them it is not known what a job is
_SPECS: dict[PlugInKind, type[StageSpec]] = {
    PlugInKind.SOURCE: SourceSpec,
    PlugInKind.TRANSFORM: TransformSpec,
    PlugInKind.SINK: SinkSpec,
    PlugInKind.LAUNCHER: StageSpec,
    PlugInKind.ENGINE: EngineSpec,
}


def load_pipeline(
    file: str | os.PathLike[str],
    *,
    overlays: Sequence[str | os.PathLike[str]] = (),
    given: Mapping[str, str] | None = None,
    plugins: Plugins | None = None,
    captures_only: bool = False,
) -> Pipeline:
    """Return what a pipeline's file says; ``warnings`` are what is probably not meant.

    Args:
        overlays: files that are laid over it, in their order.
        given: values for its parameters.
        plugins: by default those that are installed.
        captures_only: of other jobs than captures no more is looked at than which topics they read: so their plug-ins,
            and Spark, need not be here.

    Raises:
        PipelineError: with every problem, warnings too.
    """
    path = FilePath(file)
    report = ProblemList()
    tree = read_files(path, [FilePath(each) for each in overlays], report)
    if tree is None:
        raise pipeline_error(report.problems)
    plugins = plugins or Plugins()
    named = interpolate(tree, given or {}, ProblemList())  # with the types and formats that parameters give
    tree = interpolate(tree, given or {}, report, functools.partial(_quote, named, plugins))
    whole, moved = _with_jobs(tree, report)
    whole = _without_nulls(whole)
    folder = FilePath(os.path.abspath(path)).parent
    pipeline = _Loader(whole, folder, plugins, report, captures_only=captures_only).load(path)
    problems = [_as_written(problem, moved) for problem in report.problems]
    if report.failed or pipeline is None:
        raise pipeline_error(problems)
    return replace(pipeline, warnings=tuple(problems))


def load_tree(tree: Mapping[str, Any], *, file: FilePath, folder: FilePath, plugins: Plugins | None = None) -> Pipeline:
    """Return the pipeline whose ``tree``, as a plain value, :func:`load_pipeline` found right.

    Args:
        file: whose it was; only for messages.
        folder: where its relative paths start.

    Raises:
        PipelineError: it is not right here: a plug-in is missing, for instance.
    """
    report = ProblemList()
    pipeline = _Loader(node_of(tree, FilePlace(str(file))), folder, plugins or Plugins(), report).load(file)
    if report.failed or pipeline is None:
        raise pipeline_error(report.problems)
    return pipeline


def without_engines(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file without what fires schedules: only the server needs these plug-ins."""
    jobs = dict(tree.get("jobs", {}))
    for name, job in jobs.items():
        if isinstance(job, dict) and isinstance(schedule := job.get("schedule"), dict):
            jobs[name] = {**job, "schedule": {key: each for key, each in schedule.items() if key != "engine"}}
    return {**tree, "jobs": jobs}


def _quote(tree: TreeNode, plugins: Plugins, path: Path) -> Quote | None:
    """Return what makes a name of a value in the text at ``path``, if that is a pattern of a source."""
    above = path[:-1]
    stage = above[2:] if above[:1] == ("jobs",) else above
    if stage != ("source",) and (len(stage) != 2 or stage[0] != "sources"):
        return None
    given = plain(find(tree, above))
    try:
        plugin = plugins.find(PlugInKind.SOURCE, str(given.get("type")))
        return escaped if path[-1] in plugin.patterns(given) else None
    except Exception:  # noqa: BLE001 - the loader tells that there is no such plug-in, or that a stranger's fails
        return None


def _with_jobs(tree: TreeNode, report: ProblemList) -> tuple[TreeNode, str]:
    """Return the tree with its jobs under ``jobs``; of a file of one job also the path of the job."""
    sections = dict(tree.value) if isinstance(tree.value, dict) else {}
    own = [key for key in sections if key.partition(".")[0] in field_names(JobSpec).keys() - {"type"}]
    if "jobs" in sections or not own:
        for key in own:
            what = "the file has jobs: as well"
            report.add(problem_at(tree, (key,), what, "put it into a job, or leave out jobs: and have one job"))
            del sections[key]
        return replace(tree, value=sections), ""
    job = {key: node for key, node in sections.items() if key.partition(".")[0] not in _TOP}
    named = find(tree, ("pipeline", "name")).value
    name = named if _is_name(named) else _UNNAMED
    rest = {key: node for key, node in sections.items() if key not in job}
    jobs = TreeNode({name: TreeNode(job, tree.place)}, tree.place)
    return replace(tree, value={**rest, "jobs": jobs}), f"jobs.{name}"


def _is_name(value: object) -> TypeGuard[str]:
    try:
        _NAME.validate_python(value)
    except ValidationError:
        return False
    return True


def _without_nulls(tree: TreeNode) -> TreeNode:
    """Return the tree without the keys of jobs that are null: they are as if they were not there.

    A key that no job has stays, to be refused.
    """
    known = field_names(JobSpec)
    sections = dict(tree.value) if isinstance(tree.value, dict) else {}
    jobs = sections.get("jobs")
    if jobs is None or not isinstance(jobs.value, dict):
        return tree
    kept = {
        name: replace(job, value={k: node for k, node in job.value.items() if node.value is not None or k not in known})
        if isinstance(job.value, dict)
        else job
        for name, job in jobs.value.items()
    }
    return replace(tree, value={**sections, "jobs": replace(jobs, value=kept)})


def _as_written(problem: Problem, moved: str) -> Problem:
    """Return the problem with the key as the file has it, whose one job is at its top."""
    if not moved or not f"{problem.key}.".startswith(f"{moved}."):
        return problem
    return replace(problem, key=problem.key[len(moved) + 1 :])


class _Loader:
    """Checks one file, section by section, so that a mistake in one hides none in another.

    What is wrong is reported and left out. The rest is checked without it, as far as that is certain.
    """

    def __init__(
        self,
        tree: TreeNode,
        folder: FilePath,
        plugins: Plugins,
        report: ProblemList,
        *,
        captures_only: bool = False,
    ) -> None:
        self._captures_only = captures_only
        self._tree = tree
        self._folder = folder
        self._plugins = plugins
        self._report = report

    def load(self, file: FilePath) -> Pipeline | None:
        """Return the pipeline with what is right of it; None without a launcher."""
        sections = self._section(())
        for key in sections.keys() - _TOP:
            written = nested(PipelineFile, key) if "." in key else None
            self._add((key,), "there is no such key", f"write {written}" if written else nearest(key, _TOP))
        spec, wrong = self._pipeline_spec()
        launcher = self._launcher(spec, wrong)
        named = self._section(("jobs",))
        listed = find(self._tree, ("jobs",)).value
        if "jobs" in self._section(()) and isinstance(listed, list):
            self._add(("jobs",), "it is a list", by_name("jobs", [plain(each) for each in listed]))
        elif not named:
            self._add(("jobs",), "there are no jobs", "name at least one, as in jobs: {NAME: {source: …, sink: …}}")
        if len(named) > MAX_JOBS:
            self._add(("jobs",), f"there are {len(named)} jobs", f"give at most {MAX_JOBS}; make several pipelines")
        found = [found for name in named if (found := self._job(name)) is not None]
        jobs = {job.name: job for job, _ in found}
        whole = not wrong and len(found) == len(named) and not any(unsure for _, unsure in found)
        # A part that is left out was reported: else a file would pass with less than it says.
        assert whole or self._report.failed  # noqa: S101
        if launcher is None:
            return None
        pipeline = Pipeline(file=file, folder=self._folder, spec=spec, launcher=launcher, jobs=jobs, tree=self._tree)
        for job, unsure in found:
            if not (unsure & _DECIDING or self._is_left_out(job.path)):
                self._add_certain(check_job(pipeline, job), job.path, unsure)
        self._add_certain(check_pipeline(pipeline), ("pipeline",), wrong)
        complete = whole and not self._captures_only
        for problem in (*check_topics(pipeline, complete=complete), *check_folders(pipeline)):
            self._report.add(problem)
        return pipeline

    def _add_certain(self, problems: Iterable[Problem], path: Path, unsure: set[str]) -> None:
        """Report problems of the section at ``path``, but for those of keys of which a part was left out."""
        inside = re.compile(re.escape(dotted(path)) + r"\.([^.\[]+)")
        for problem in problems:
            key = inside.match(problem.key)
            if key is None or key[1] not in unsure:
                self._report.add(problem)

    def _pipeline_spec(self) -> tuple[PipelineSpec, set[str]]:
        if "pipeline" not in self._section(()):
            self._add(("pipeline",), "it is missing", "begin the file with pipeline: {name: NAME}")
            return PipelineSpec(name=_UNNAMED), {"name"}
        return self._model(PipelineSpec, ("pipeline",), {"name": _UNNAMED})

    def _launcher(self, spec: PipelineSpec, wrong: set[str]) -> Stage[Launcher] | None:
        """Return the launcher, or the local one, which asks nothing of the rest, if what it goes by is wrong."""
        path: Path = ("pipeline", "launcher")
        if "launcher" in self._section(path[:1]):
            found = self._stage(path, PlugInKind.LAUNCHER)
        else:
            found = self._bind_options(spec.launcher, {}, path, PlugInKind.LAUNCHER)
        if found is None or wrong & {"configuration", "storage"}:
            return self._bind_options(StageSpec(type="local"), {}, path, PlugInKind.LAUNCHER)
        return found

    def _job(self, name: str) -> tuple[Job, set[str]] | None:
        """Return a job with what is right of it, and the keys of which a part was left out."""
        path: Path = ("jobs", name)
        try:
            _NAME.validate_python(name)
        except ValidationError as error:
            expected = error.errors()[0]["ctx"]["expected"]
            written = nested(dict[str, JobSpec], name) if "." in name else None
            remedy = f"write {written}" if written else f"give it another: {expected}"
            self._add(path, f"{short_repr(name)} cannot name a job", remedy)
        if not isinstance(find(self._tree, path).value, dict):
            self._add(path, "it is not a section", "give the job a source and a sink")
            return None
        if self._is_left_out(path):
            return self._reader(name, path)
        sources: dict[str | None, Stage[Source] | None] = {
            view: self._stage((*path, "sources", view), PlugInKind.SOURCE) for view in self._section((*path, "sources"))
        }
        if "source" in self._section(path):
            sources[None] = self._stage((*path, "source"), PlugInKind.SOURCE)
        transforms = [self._stage(at, PlugInKind.TRANSFORM) for at in self._each((*path, "transform"))]
        sinks = [self._stage(at, PlugInKind.SINK) for at in self._each((*path, "sinks"))]
        if "sink" in self._section(path):
            sinks.append(self._stage((*path, "sink"), PlugInKind.SINK))
        engine = None
        if "engine" in self._section((*path, "schedule")):
            engine = self._stage((*path, "schedule", "engine"), PlugInKind.ENGINE)
        spec, unsure = self._model(JobSpec, path, {})
        right_sources = {view: stage for view, stage in sources.items() if stage is not None}
        right_transforms = tuple(stage for stage in transforms if stage is not None)
        right_sinks = tuple(stage for stage in sinks if stage is not None)
        if len(right_sources) < len(sources) or len(right_sinks) < len(sinks):
            unsure |= {"sources", "route"}
        if len(right_transforms) < len(transforms):
            unsure |= {"source", "sources"}
        job = Job(
            name=name,
            spec=spec,
            sources=right_sources,
            transforms=right_transforms,
            sinks=right_sinks,
            engine=engine,
            definition=plain(find(self._tree, path)),
            path=path,
        )
        return job, unsure

    def _is_left_out(self, path: Path) -> bool:
        """Whether no more of a job is looked at than which topics it reads."""
        return self._captures_only and not is_capture(find(self._tree, (*path, "source", "type")).value)

    def _reader(self, name: str, path: Path) -> tuple[Job, set[str]]:
        """Return a job with those of its sources that read topics."""
        places: dict[str | None, Path] = {view: (*path, "sources", view) for view in self._section((*path, "sources"))}
        if "source" in self._section(path):
            places[None] = (*path, "source")
        read = {
            view: stage
            for view, place in places.items()
            if find(self._tree, (*place, "type")).value == JOBPIPE
            and (stage := self._stage(place, PlugInKind.SOURCE)) is not None
        }
        spec, unsure = self._model(JobSpec, path, {})
        definition = plain(find(self._tree, path))
        return Job(
            name=name, spec=spec, sources=read, transforms=(), sinks=(), definition=definition, path=path
        ), unsure

    def _stage(self, path: Path, kind: PlugInKind) -> Stage[Any] | None:
        """Return the stage at ``path``; None if its section, its type, or an option is wrong."""
        model = _SPECS[kind]
        node = find(self._tree, path)
        common = field_names(model)
        if not isinstance(node.value, dict):
            return None  # the model of what holds it tells
        given = {key: plain(each) for key, each in node.value.items() if key not in common}
        try:
            spec = model.model_validate({key: plain(each) for key, each in node.value.items() if key in common})
        except ValidationError:
            return None  # that model tells this too
        return self._bind_options(spec, given, path, kind)

    def _bind_options(self, spec: StageSpec, given: dict[str, Any], path: Path, kind: PlugInKind) -> Stage[Any] | None:
        try:
            plugin = self._plugins.find(kind, spec.type)
        except PlugInError as error:
            self._report.add(problem_at(self._tree, (*path, "type"), error.what, error.remedy))
            return None
        try:
            parsed = plugin.parse(fill(given), self._folder)
            made = plugin(parsed, fires_nothing) if kind is PlugInKind.ENGINE else plugin(parsed)
            complaints = _complaints(made, self._mode(path))
            _probe(made)
        except ValidationError as error:
            for problem in problems_of(error, plugin.Options, self._tree, path, stage=_SPECS[kind]):
                self._report.add(problem)
            return None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's plug-in
            what = f"the plug-in fails: {type(error).__name__}: {error}"
            self._add((*path, "type"), what[:500], "report it to the author of the plug-in")
            return None
        for complaint in complaints:
            at = (*path, complaint.key) if complaint.key else path
            self._report.add(problem_at(self._tree, at, complaint.what, complaint.remedy, complaint.severity))
        for name in secrets_in_clear(plugin.Options, given, self._folder):
            self._add((*path, name), "it is a secret in clear text", f"give {SECRET.expected}")
        return Stage(spec, given, made, self._folder, path)

    def _mode(self, stage: Path) -> Mode:
        """Return the mode of the job that a stage is of, as the file has it."""
        said = find(self._tree, (*stage[:2], "execution", "runtime-mode")).value
        return Mode.BATCH if said == Mode.BATCH else Mode.STREAMING

    def _model(self, model: type[M], path: Path, least: Mapping[str, Any]) -> tuple[M, set[str]]:
        """Return the model of the section at ``path``, and which of its keys are wrong, or were meant by a wrong one.

        The options of stages are not its business.

        Args:
            least: values for keys that must be there.
        """
        value = plain(find(self._tree, path))
        try:
            return model.model_validate(value, context={FOLDER: self._folder}), set()
        except ValidationError as error:
            for problem in problems_of(error, model, self._tree, path):
                self._report.add(problem)
            places = [each["loc"] for each in error.errors()]
        wrong = {str(place[0]).partition(".")[0] if place else "" for place in places}
        wrong |= {meant for key in wrong if (meant := closest(key, field_names(model))) is not None}
        section = value if isinstance(value, dict) else {}
        tops = {place[0] for place in places if place}
        kept = {key: each for key, each in section.items() if key not in tops}
        try:
            partly = functools.reduce(_without, places, section)
            return model.model_validate({**least, **partly}, context={FOLDER: self._folder}), wrong
        except ValidationError:  # what is left of a key is not right by itself
            return model.model_validate({**least, **kept}, context={FOLDER: self._folder}), wrong

    def _section(self, path: Path) -> dict[str, TreeNode]:
        """Return what is in the section at ``path``; nothing if there is none."""
        above = find(self._tree, path[:-1]) if path else self._tree
        node = find(self._tree, path)
        if path and (node is above or not isinstance(above.value, dict)):
            return {}
        return node.value if isinstance(node.value, dict) else {}

    def _each(self, path: Path) -> Iterator[Path]:
        """Yield the paths of the members of the list at ``path``."""
        node = self._section(path[:-1]).get(str(path[-1]))
        if node is not None and isinstance(node.value, list):
            yield from ((*path, number) for number in range(len(node.value)))

    def _add(self, path: Path, what: str, remedy: str) -> None:
        self._report.add(problem_at(self._tree, path, what, remedy))


def _complaints(plugin: Plugin, mode: Mode) -> list[OptionError]:
    found = list(plugin.check(mode))
    for each in found:
        if not isinstance(each, OptionError):
            raise TypeError(f"check() yields {type(each).__name__}, and not OptionError")
    return found


def _probe(plugin: Plugin) -> None:
    """Ask a plug-in once all that the checks and the graph ask it, so that they need not expect it to fail."""
    list(plugin.imports())
    if isinstance(plugin, Source | Sink):
        topics = plugin.topics()
        re.compile(topics.pattern or "")
        for name in topics.names:
            _TOPIC.validate_python(name)
    if isinstance(plugin, Source):
        plugin.folders(FilePath())
    if isinstance(plugin, CaptureSource):
        for table in plugin.tables:
            re.compile(table)
    if isinstance(plugin, Sink):
        plugin.folder(FilePath())
    if isinstance(plugin, Transform):
        _ = plugin.stateful, plugin.reads_views


def _without(value: Any, place: tuple[int | str, ...]) -> Any:
    """Return sections without the key at ``place``, or without the last one on the way that is there."""
    if not isinstance(value, dict) or not place or place[0] not in value:
        return value
    inside = value[place[0]]
    left = _without(inside, place[1:])
    kept = {key: each for key, each in value.items() if key != place[0]}
    return kept if left is inside else {**kept, place[0]: left}
