"""Bodies and replies of REST that are not views of :mod:`jobpipe.control.control_service`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from jobpipe.config.reading.yaml_reader import MAX_DEPTH, MAX_NODES
from jobpipe.control.control_service import PipelineStatus, Submission
from jobpipe.pipelines.file.field_types import JobName
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.plugin_discovery import PlugInKind


def _bounded(tree: dict[str, Any]) -> dict[str, Any]:
    """Refuse a tree that no file within the bounds of :mod:`jobpipe.config.reading.yaml_reader` could have made."""
    level: list[Any] = [tree]
    count = depth = 0
    while level:
        count, depth = count + len(level), depth + 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise ValueError(f"at most {MAX_NODES} values in {MAX_DEPTH} levels are possible")
        level = [
            each
            for value in level
            for each in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        ]
    return tree


def _absolute(path: Path) -> Path:
    if not path.is_absolute() or not str(path).isprintable() or len(str(path)) > 4096:
        raise ValueError("an absolute path of the server's host is expected, of at most 4,096 characters")
    return path


_Tree = Annotated[dict[str, Any], AfterValidator(_bounded)]
_Place = Annotated[Path, AfterValidator(_absolute)]


def _of_our_years(moment: datetime) -> datetime:
    if not 1971 <= moment.year <= 2998:
        raise ValueError("a time between the years 1971 and 2998 is expected")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_of_our_years)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class PlanBody(_Body):
    """A pipeline, as :class:`Submission`."""

    file: _Place = Field(description="Path of the file, for messages.")
    folder: _Place = Field(description="Folder that its relative paths start from, on the server's host.")
    tree: _Tree = Field(description="Contents of the file, with jobs under `jobs` and parameters filled in.")
    new_checkpoint: tuple[JobName, ...] = Field(
        default=(),
        alias="new-checkpoint",
        max_length=1000,
        description="Jobs that start over without their checkpoint.",
    )


class SubmissionBody(PlanBody):
    """A pipeline to submit."""

    base_version: int | None = Field(
        default=None,
        ge=0,
        alias="base-version",
        description="The version that this was planned for, 0 for a new pipeline: the server refuses it if it has "
        "another one by now. Without it any.",
    )
    base_born: float | None = Field(
        default=None,
        alias="base-born",
        description="`born` of the plan: the server refuses it if the pipeline was deleted and submitted again since.",
    )


def plan_body(submission: Submission, new_checkpoint: tuple[str, ...] = ()) -> PlanBody:
    """Return the body that plans a submission."""
    named = {"file": submission.file, "folder": submission.folder, "tree": dict(submission.tree)}
    return PlanBody.model_validate({**named, "new-checkpoint": new_checkpoint})


def submission_body(
    submission: Submission,
    new_checkpoint: tuple[str, ...] = (),
    base: int | None = None,
    born: float | None = None,
) -> SubmissionBody:
    """Return the body that submits a pipeline."""
    planned = plan_body(submission, new_checkpoint).model_dump(by_alias=True)
    return SubmissionBody.model_validate({**planned, "base-version": base, "base-born": born})


class RunBody(_Body):
    """The range of a run."""

    lower: str | int = Field(alias="lowerBoundary", description="A time in ISO 8601, or an offset.")
    upper: str | int = Field(alias="upperBoundary", description="As lowerBoundary; not part of the range.")


class _PlannedBody(_Body):
    expected: str = Field(max_length=100, description="`at` of the plan: where the subscription stands.")


class UndoBody(_PlannedBody):
    """The move to take back, and where it left the subscription."""

    number: int = Field(description="`number` of the move that the plan `undoes`.")


class MoveBody(_PlannedBody):
    """A move."""

    to: int | str = Field(description="`earliest`, `latest`, an offset, or a time in ISO 8601 with its zone.")


class RangeBody(_Body):
    """A range of a schedule's intervals."""

    lower: Moment = Field(alias="from", description="Where it begins, in ISO 8601 with a zone.")
    upper: Moment = Field(alias="to", description="Where it ends, in ISO 8601 with a zone; not part of it.")


class BackfillBody(RangeBody):
    """The range of a backfill."""

    force: bool = Field(default=False, description="Also intervals that have succeeded, or are not known any more.")


class ValidateBody(_Body):
    """Options of a stage to check."""

    config: _Tree = Field(description="The options, as in a file, without `type`.")
    kind: PlugInKind | None = Field(default=None, description="Needed if a source and a sink have that type.")
    mode: Mode = Field(default=Mode.STREAMING, description="Of the job that would have the stage.")


@dataclass(frozen=True, kw_only=True)
class IndexView:
    """The server: its version, and what the caller may do: ``view`` or ``operate``."""

    version: str
    right: str
    openapi: str


@dataclass(frozen=True, kw_only=True)
class HealthView:
    """That the server answers; says nothing about its jobs."""

    ok: bool


@dataclass(frozen=True, kw_only=True)
class SignInCodeView:
    """How a browser signs in, once, within so many seconds: by this path of the server."""

    path: str
    seconds: int


@dataclass(frozen=True, kw_only=True)
class Expanded:
    """A pipeline in a list that was asked for with ``expand=status``."""

    status: PipelineStatus


@dataclass(frozen=True, kw_only=True)
class LogView:
    """The end of a log, control characters escaped."""

    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class OptionView:
    """One option of a plug-in.

    Attributes:
        recommended: values worth offering.
        errors: what is wrong with the value that was given, and what to do.
    """

    name: str
    required: bool
    documentation: str
    expected: str
    default: Any
    recommended: tuple[str, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ValidatedView:
    """What is wrong with the options of a stage.

    Attributes:
        errors: what concerns none of the options: an unknown one, or several together.
        warnings: what is probably not meant.
    """

    type: str
    kind: PlugInKind
    error_count: int
    configs: tuple[OptionView, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GraphJob:
    """A job in the graph of all pipelines; as :class:`jobpipe.pipelines.model.graph.JobNode`."""

    pipeline: str
    name: str
    kind: str
    mode: Mode
    sources: tuple[str, ...]
    transforms: tuple[str, ...]
    sinks: tuple[str, ...]
    reads: tuple[str, ...]
    publishes: tuple[str, ...]
    schedule: str | None


@dataclass(frozen=True, kw_only=True)
class GraphTopic:
    """A topic; its publishers and readers are written ``pipeline/job``."""

    name: str
    publishers: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BrokenPipeline:
    """A pipeline whose submission cannot be read here any more, as when a plug-in was removed."""

    name: str
    error: str


@dataclass(frozen=True, kw_only=True)
class GraphView:
    """Jobs and topics of all pipelines."""

    pipelines: tuple[str, ...]
    jobs: tuple[GraphJob, ...]
    topics: tuple[GraphTopic, ...]
    broken: tuple[BrokenPipeline, ...]
