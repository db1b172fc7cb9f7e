"""The models of a pipeline's file: what may stand in it, and what each key means.

Names are those of the file (kebab-case, or the names that other systems gave them). The ``description`` of a field is
what the JSON Schema and docs/pipeline-keys.md say of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from jobpipe.pipelines.file.field_types import (
    Count,
    Crontab,
    Duration,
    Flag,
    JobName,
    LibraryPattern,
    ObjectName,
    Parameters,
    PlainText,
    Ratio,
    RegularExpression,
    SecretReference,
    SparkKeys,
    Text,
    TimeZone,
    TopicName,
)

OutputMode = Literal["append", "update", "complete"]


class Mode(StrEnum):
    """How a job runs: without end, or over what is there."""

    STREAMING = "STREAMING"
    BATCH = "BATCH"


def is_capture(source: object) -> bool:
    """Tell whether the type of a source is one of change data capture.

    >>> is_capture("postgres-cdc")
    True
    """
    return isinstance(source, str) and source.endswith("-cdc")


def kebab(name: str) -> str:
    """Return a field's name as files have it.

    >>> kebab("topic_prefix")
    'topic-prefix'
    """
    return name.rstrip("_").replace("_", "-")


class Section(BaseModel):
    """A section of the file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=kebab, validate_default=False)


class StageSpec(Section):
    """A source, transform, sink or launcher: its type, and the options of that type, which the plug-in checks."""

    model_config = ConfigDict(extra="allow")

    type: Text = Field(description="The plug-in; `jobpipe pipeline plugins list` lists them.")

    @property
    def options(self) -> dict[str, Any]:
        """What the plug-in is given."""
        return dict(self.__pydantic_extra__ or {})


class WatermarkSpec(Section):
    """How late rows may be."""

    column: Text = Field(description="The column with each row's time.")
    delay: Text = Field(description="How late a row may be, in Spark's form: `10 minutes`.")


class SourceSpec(StageSpec):
    """Where rows come from."""

    watermark: WatermarkSpec | None = Field(default=None, description="How late rows may be, for joins and windows.")


class SinkSpec(StageSpec):
    """Where rows go."""

    output_mode: OutputMode | None = Field(
        default=None,
        description="Which of the changing rows a micro-batch holds: append (the default), update or complete.",
    )
    at_least_once: Flag = Field(
        default=False, description="With several sinks: this one may see a micro-batch twice after a failure."
    )


class TransformSpec(StageSpec):
    """What is done to the rows; without a type it is `sql`."""

    type: Text = Field(default="sql", description="The plug-in; `jobpipe pipeline plugins list` lists them.")
    source_table: RegularExpression | None = Field(
        default=None,
        description="As in Flink CDC: a regular expression of whole names. It must match all topics of the job, whose "
        "rows are all transformed.",
    )


class RouteSpec(Section):
    """To which topic the rows of a table, or of a topic of several, go."""

    source_table: RegularExpression = Field(description="Which tables or topics: a regular expression of whole names.")
    sink_table: Text = Field(description="The topic. The replace-symbol in it stands for the name of the table.")
    replace_symbol: Text | None = Field(
        default=None, description="What stands for the table's name in sink-table, such as <>."
    )
    description: str | None = Field(default=None, description="For people.")


class TriggerSpec(Section):
    """When micro-batches begin; without it as soon as there are rows."""

    available_now: Flag = Field(
        default=False, description="Read all rows that are available, in several micro-batches, then end."
    )
    processing_time: Duration | None = Field(default=None, description="Time from one start to the next.")


class ExecutionSpec(Section):
    """How the job runs."""

    runtime_mode: Mode = Field(
        default=Mode.STREAMING, description="STREAMING, or BATCH: each run reads a range that has an end."
    )


class EngineSpec(StageSpec):
    """What fires the schedule."""

    type: Text = Field(default="builtin", description="The plug-in; `jobpipe pipeline plugins list` lists them.")


class ScheduleSpec(Section):
    """When bounded runs are made; each reads the interval since the one before."""

    crontab: Crontab | None = Field(default=None, description="When an interval ends: five fields, as in 0 2 * * *.")
    every: Annotated[str, Field(pattern=r"^([1-9][0-9]{0,3} )?(second|minute|hour|day|week|month|year)s?$")] | None = (
        Field(default=None, description="Instead of crontab, a period of the calendar: hour, 15 minutes, month.")
    )
    timezone: TimeZone = Field(default="UTC", description="Time zone of crontab, and of days and months.")
    delay: Duration = Field(
        default=0.0, description="How long after an interval's end its run begins, for rows that are late."
    )
    start: Text | None = Field(default=None, description="When the first interval begins, in ISO 8601 with a zone.")
    end: Text | None = Field(
        default=None, description="No interval begins at this time or later, in ISO 8601 with a zone."
    )
    boundary_type: Literal["TIME", "OFFSET"] = Field(
        default="TIME", alias="boundaryType", description="What the bounds of a run are: publish times, or offsets."
    )
    catchup: Literal["all", "latest", "none"] = Field(
        default="all",
        description="How missed intervals are made up for: all = a run for each, latest = one run over all of them, "
        "none = only the last one.",
    )
    self_depend: Flag = Field(default=False, description="Wait until the run of the previous interval has succeeded.")
    mode: Literal["bounded", "available-now"] = Field(
        default="bounded", description="available-now = start the streaming job with that trigger, without bounds."
    )
    engine: EngineSpec = Field(default_factory=EngineSpec, description="What fires it; the server itself by default.")


class ErrorsSpec(Section):
    """What happens to a row that a stage cannot process."""

    tolerance: Literal["none", "all"] = Field(
        default="none",
        description="none = the job fails, and names the file, or the topics and offsets of its micro-batch; "
        "all = the row goes to the dead letters, with its place.",
    )
    dead_letters: TopicName | None = Field(
        default=None,
        description="The topic of dead letters; by default <pipeline>.<job>.dead-letters.",
    )
    retention: Duration | None = Field(
        default=None,
        description="How long dead letters are kept after the jobs of the file that read them have done so; 7d if none "
        "does.",
    )
    max_ratio: Ratio | None = Field(
        default=None,
        description="The job fails if more than this part of a micro-batch is dead; of a stream, smaller ones are "
        "counted together until they have 100 rows.",
    )


class JobSpec(Section):
    """One job: a query (source, transforms, sink), a flow (`type: flow`), a capture, or a program of your own."""

    type: Literal["flow"] | None = Field(default=None, description="flow: a function of each record batch of a topic.")
    source: SourceSpec | None = Field(default=None, description="Where rows come from.")
    sources: dict[JobName, SourceSpec] | None = Field(
        default=None,
        min_length=1,
        max_length=20,
        description="Several sources, each a view that `sql` can query by its name.",
    )
    transform: tuple[TransformSpec, ...] = Field(
        default=(), max_length=200, description="What is done to the rows, in order."
    )
    route: tuple[RouteSpec, ...] = Field(default=(), max_length=1000, description="Which rows go to which topic.")
    sink: SinkSpec | None = Field(default=None, description="Where rows go.")
    sinks: tuple[SinkSpec, ...] | None = Field(
        default=None, min_length=1, max_length=20, description="Several sinks; each gets the same micro-batches."
    )
    trigger: TriggerSpec | None = Field(default=None, description="When micro-batches begin.")
    execution: ExecutionSpec = Field(default_factory=lambda: ExecutionSpec(), description="How it runs.")
    configuration: SparkKeys = Field(default_factory=dict, description="Spark's keys, only for this job.")
    schedule: ScheduleSpec | None = Field(default=None, description="When bounded runs are made.")
    errors: ErrorsSpec = Field(default_factory=lambda: ErrorsSpec(), description="What happens to bad rows.")
    application: Text | None = Field(default=None, description="A Python program of your own, run as the job.")
    arguments: tuple[PlainText, ...] = Field(default=(), max_length=1000, description="Its arguments.")
    secrets: dict[Text, SecretReference] = Field(
        default_factory=dict,
        max_length=100,
        description='References to what jobpipe.secret("NAME") returns to your own code in the driver.',
    )
    function: ObjectName | None = Field(default=None, description="Of a flow: called with each record batch.")
    setup: ObjectName | None = Field(
        default=None, description="Of a flow: called once in each task, before the first batch."
    )
    publish: TopicName | None = Field(
        default=None, description="Of a flow: the topic for the rows that its function returns."
    )
    schema_: Text | None = Field(
        default=None, alias="schema", description="Of a flow: the columns of the topic that it publishes."
    )
    partitions: Count | None = Field(
        default=None, description="Of a flow: the partitions of the topic that it publishes."
    )

    @property
    def mode(self) -> Mode:
        """How it runs."""
        return self.execution.runtime_mode

    @property
    def captures(self) -> bool:
        """Whether it is a capture: it publishes the changes of tables by itself, without Spark."""
        return self.application is None and self.source is not None and is_capture(self.source.type)


class Glob(Section):
    """Files of the user's, relative to the pipeline's file."""

    include: LibraryPattern = Field(description="A Python file, or a folder such as folder/**.")


class LibrarySpec(Section):
    """Code that jobs import."""

    glob: Glob


class RestartSpec(Section):
    """What happens when a job's attempt ends by itself, with an error."""

    policy: Literal["on-failure", "never"] = Field(
        default="on-failure", description="Whether the job is started again."
    )
    max_attempts: Count | None = Field(
        default=5, description="After this many attempts the job stays FAILED; null = never."
    )
    delay: Duration = Field(default=5.0, description="Time before the second attempt. It doubles for each further one.")
    max_delay: Duration = Field(default=300.0, description="The longest delay.")
    reset_after: Duration = Field(default=3600.0, description="An attempt that ran this long counts as the first one.")


class AlertSpec(Section):
    """Whom to tell."""

    type: Literal["webhook"] = Field(description="webhook: a POST request.")
    url: SecretReference = Field(
        description="Its address, as a reference: it is a secret. Read where the alert is sent from."
    )
    on: tuple[Literal["FAILED", "LOST", "BLOCKED", "LAGGING", "GAP", "DIFFERENCE"], ...] = Field(
        default=("FAILED", "LOST"), min_length=1, description="Which events to report."
    )
    lag_rows: Count = Field(
        default=100_000, description="LAGGING: a job lags that has not read so many rows of its topics."
    )
    lag_time: Duration = Field(default=300.0, description="LAGGING: how long without a break.")


class PipelineSpec(Section):
    """What holds for all jobs."""

    name: JobName = Field(description="Begins the names of its subscriptions.")
    parameters: Parameters = Field(
        default_factory=dict, max_length=1000, description="Values for ${var.NAME}; --set NAME=VALUE sets another."
    )
    topic_prefix: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$")] = Field(
        default="", description="Prefix of the names of all topics, to keep two environments apart."
    )
    storage: Text | None = Field(
        default=None,
        description="Where checkpoints are: <storage>/<job>. Default: pipelines/<name> under jobpipe.home.",
    )
    configuration: SparkKeys = Field(default_factory=dict, description="Spark's keys, for every job.")
    libraries: tuple[LibrarySpec, ...] = Field(default=(), max_length=100, description="Code that jobs import.")
    launcher: StageSpec = Field(default_factory=lambda: StageSpec(type="local"), description="What starts jobs.")
    restart: RestartSpec = Field(default_factory=lambda: RestartSpec(), description="What happens after a failure.")
    alerts: tuple[AlertSpec, ...] = Field(default=(), max_length=20, description="Whom to tell.")


MAX_JOBS = 1000


class PipelineFile(Section):
    """A whole file."""

    pipeline: PipelineSpec
    jobs: dict[JobName, JobSpec] = Field(min_length=1, max_length=MAX_JOBS, description="The jobs, by name.")
