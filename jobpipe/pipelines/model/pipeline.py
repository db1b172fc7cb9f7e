"""A checked pipeline: its jobs, and the stages of each, ready to be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Generic, TypeVar

from jobpipe.config.reading.located_values import Path, TreeNode
from jobpipe.pipelines.file.interpolation import RunValues, fill
from jobpipe.pipelines.file.problems import Problem
from jobpipe.pipelines.file.spec import JobSpec, Mode, PipelineSpec, StageSpec, TriggerSpec
from jobpipe.pipelines.plugins.api import Launcher, Plugin, Sink, Source, Transform
from jobpipe.pipelines.plugins.schedule_engine import ScheduleEngine

P = TypeVar("P", bound=Plugin)


@dataclass(frozen=True)
class Stage(Generic[P]):
    """One stage of a job: which plug-in, and what it is given.

    Attributes:
        spec: what every stage of its kind has.
        given: its own options, where a run's values still stand as ``${run.lower}``.
        plugin: made of them as they are: for checks and the graph.
        path: where in the file it is.
    """

    spec: StageSpec
    given: Mapping[str, Any]
    plugin: P
    folder: FilePath
    path: Path

    @property
    def type(self) -> str:
        return self.spec.type

    def make(self, run: RunValues) -> P:
        """Return the plug-in for a run, with the run's values in its options.

        Raises:
            pydantic.ValidationError: an option does not fit with them.
            ValueError: it names a bound that the run does not have.
        """
        kind = type(self.plugin)
        return kind(kind.parse(fill(dict(self.given), run), self.folder))


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        sources: by their views; of a single one that is None.
        definition: all that the file says of it, parameters put in: a job whose definition changed has changed.
        path: where in the file it is.
        engine: what fires its schedule; None: as by default.
    """

    name: str
    spec: JobSpec
    sources: Mapping[str | None, Stage[Source]]
    transforms: tuple[Stage[Transform], ...]
    sinks: tuple[Stage[Sink], ...]
    definition: Mapping[str, Any]
    path: Path
    engine: Stage[ScheduleEngine] | None = None

    @property
    def mode(self) -> Mode:
        return self.spec.mode

    @property
    def stages(self) -> tuple[Stage[Any], ...]:
        """All of them, in the order in which rows pass them."""
        return (*self.sources.values(), *self.transforms, *self.sinks)

    @property
    def trigger(self) -> TriggerSpec | None:
        """When its micro-batches begin: as its schedule says, whose runs have an end, else as the job does."""
        schedule = self.spec.schedule
        if schedule is not None and schedule.mode == "available-now":
            return TriggerSpec.model_validate({"available-now": True})
        return self.spec.trigger

    def arguments(self, run: RunValues) -> list[str]:
        """Return the arguments of its own program, for a run."""
        return [fill(argument, run) for argument in self.spec.arguments]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A whole file.

    Attributes:
        folder: of the file; its relative paths start there.
        tree: the file with places, jobs under ``jobs``.
        warnings: what is probably not meant.
    """

    file: FilePath
    folder: FilePath
    spec: PipelineSpec
    launcher: Stage[Launcher]
    jobs: Mapping[str, Job]
    tree: TreeNode
    warnings: tuple[Problem, ...] = ()

    @property
    def name(self) -> str:
        return self.spec.name

    def configuration(self, job: Job) -> dict[str, str]:
        """Return Spark's keys for a job."""
        return {**self.spec.configuration, **job.spec.configuration}
