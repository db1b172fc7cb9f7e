"""What a plug-in is: a source, transform, sink or launcher, with its options as a pydantic model.

A plug-in is a class that an entry point names, in the group ``jobpipe.sources``, ``jobpipe.transforms``,
``jobpipe.sinks`` or ``jobpipe.launchers``; the entry point's name is its ``type``. Its docstring, and the descriptions
of its options, are what ``jobpipe pipeline plugins explain`` shows::

    class Weather(Source):
        \"\"\"Rows of a weather station.\"\"\"

        type = "weather"

        class Options(PluginOptions):
            station: str = Field(description="Which one.")

        options: Options

        def load(self, spark, job):
            return spark.readStream.format("rate").load().withColumn("station", sf.lit(self.options.station))

One instance is made for each use in a job, of options that were checked. Instances are made when a file is checked,
too: a constructor opens nothing.

Options have any types that pydantic knows; those of :mod:`jobpipe.pipelines.file.field_types` are reported in the same
words as the built-in ones. ``examples/plugin`` is a whole distribution with a transform and a sink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from jobpipe.errors import ConfigError
from jobpipe.own_application import JOB, PIPELINE, RUN
from jobpipe.pipelines.file.field_types import FOLDER
from jobpipe.pipelines.file.file_paths import InputPattern
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.problems import OptionError
from jobpipe.pipelines.file.spec import Mode, kebab
from jobpipe.pipelines.plugins.job_context import JobContext

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = [
    "DEAD",
    "DEAD_TYPE",
    "ORIGIN",
    "ORIGIN_FIELDS",
    "REASON",
    "UNPARSED",
    "Attempt",
    "DeliveryGuarantee",
    "JobContext",
    "LaunchState",
    "LaunchStatus",
    "Launcher",
    "Mode",
    "OptionError",
    "Plugin",
    "PluginOptions",
    "RunValues",
    "Sink",
    "Source",
    "Topics",
    "Transform",
    "column_named",
    "origin",
    "require_columns",
]


class PluginOptions(BaseModel):
    """The options of a plug-in: unknown ones are errors; names are as written here, with ``-`` for ``_``.

    A plug-in whose options have other names gives each an alias.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=kebab)


OptionsModel = type[PluginOptions]

UNPARSED = "_jobpipe_unparsed"
REASON = "_jobpipe_reason"
ORIGIN = "_jobpipe_origin"
"""Where a row comes from, a struct of :data:`ORIGIN_FIELDS`: of sources that know it, in a job with dead letters.

Once a stage has changed columns it may have another field, :data:`SOURCE`."""
SOURCE = "source"
"""Field of column :data:`ORIGIN`: a struct of the columns as the source gave them."""
ORIGIN_FIELDS = "topic: STRING, offset: BIGINT, partition: INT, row_number: BIGINT, published_ms: BIGINT, file: STRING"
DEAD = "_jobpipe_dead"
DEAD_TYPE = f"STRUCT<row: STRING, error_class: STRING, error_message: STRING, {ORIGIN_FIELDS}, source_row: STRING>"
"""The row as it came to the stage, as JSON; the name of the error; what it says; where the row comes from, or nulls;
the row as the source gave it, where :data:`SOURCE` says that."""


@dataclass(frozen=True)
class Topics:
    """Which topics a stage reads or publishes, as the file names them; ``pattern`` matches whole names."""

    names: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True)
class DeliveryGuarantee:
    """What a sink promises of each row, and, in one sentence, why."""

    exactly_once: bool
    why: str

    def __str__(self) -> str:
        return f"{'exactly once' if self.exactly_once else 'at least once'}: {self.why}"


def require_columns(frame: DataFrame, names: Iterable[str], what: str) -> None:
    """Check that the rows have these columns; ``what`` needs them.

    Raises:
        ConfigError: names those that are missing, and those that are there.
    """
    if missing := [name for name in names if name not in frame.columns]:
        raise ConfigError(
            f"{what}: the rows have no column {', '.join(missing)}; there are {', '.join(frame.columns)}",
            columns=missing,
        )


def column_named(name: str) -> Column:
    """Return the column of exactly that name; to ``sf.col`` a dot would be a field of a struct."""
    from pyspark.sql import functions as sf

    return sf.col("`" + name.replace("`", "``") + "`")


def origin(**known: Column) -> Column:
    """Return the value of column :data:`ORIGIN`: the fields that a source knows; the others are null."""
    from pyspark.sql import functions as sf

    fields = (part.split(": ") for part in ORIGIN_FIELDS.split(", "))
    return sf.struct(*(known.get(name, sf.lit(None)).cast(kind).alias(name) for name, kind in fields))


class Plugin(ABC):
    """What all plug-ins have in common.

    Attributes:
        identifying: the options, in small letters, that say which rows a source reads, or where a sink's go: with
            others a job must not go on from its checkpoint. None: all but those that are known to tune.
    """

    type: ClassVar[str]
    identifying: ClassVar[frozenset[str] | None] = None

    Options: ClassVar[OptionsModel] = PluginOptions
    options: PluginOptions

    def __init__(self, options: Any) -> None:
        """Keep the options, an instance of this class's ``Options``."""
        self.options = options

    @classmethod
    def parse(cls, given: Mapping[str, Any], folder: Path) -> Any:
        """Return the checked options; relative paths start from ``folder``.

        Raises:
            pydantic.ValidationError: names everything that is wrong.
        """
        return cls.Options.model_validate(dict(given), context={FOLDER: folder})

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """Yield what is wrong with the options in a job of that mode, beyond each by itself. Opens nothing."""
        return ()

    def imports(self) -> Iterable[str]:
        """Yield the user's objects that it will import, as ``module:name``; for ``validate --import``."""
        return ()


class Source(Plugin):
    """Where a job's rows come from.

    Attributes:
        takes_bounds: whether a scheduled run's bounds reach it by themselves; else its options must name them.
        own_bounds: the options that would take their place.
        has_name: its streams are read by ``job.read_stream``, which names them: then a job may gain and lose it without
            a new checkpoint.
    """

    takes_bounds: ClassVar[bool] = False
    has_name: ClassVar[bool] = False
    own_bounds: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def load(self, spark: SparkSession, job: JobContext) -> DataFrame:
        """Return the rows: a stream if ``job.mode`` is STREAMING, else what is between the run's bounds."""

    @classmethod
    def patterns(cls, given: Mapping[str, Any]) -> Collection[str]:
        """Return the options that are patterns of paths: what ``${…}`` puts into one is a name.

        Args:
            given: all options, as the file has them.
        """
        return ()

    def folders(self, base: Path) -> InputPattern | None:
        """Return the files that it reads; None if it reads none.

        Args:
            base: where relative paths start.
        """
        return None

    def topics(self) -> Topics:
        """Return the topics it reads."""
        return Topics()

    def load_tolerant(self, spark: SparkSession, job: JobContext) -> DataFrame | None:
        """Return the rows with those that cannot be parsed among them, or None if it knows no such rows.

        In a row that cannot be parsed column :data:`UNPARSED`, if there is one, is its text; in all others it is null.
        Column :data:`REASON`, if there is one, says why it cannot be parsed, or is null.
        Column :data:`ORIGIN`, if there is one, says where each row comes from.
        """
        return None

    def check_tolerant(self, mode: Mode) -> Iterable[OptionError]:
        """Yield what is wrong with the options in a job with dead letters: why a bad row would pass, or be lost."""
        return ()

    def flow_options(self) -> Mapping[str, Any]:
        """Return the arguments of ``jobpipe.flow`` that its options stand for; of a source of one topic.

        Raises:
            ValueError: a flow has no such option; the text names it.
        """
        raise ValueError("type")


class Transform(Plugin):
    """What is done to a job's rows."""

    @abstractmethod
    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        """Return the changed rows."""

    def apply_tolerant(self, frame: DataFrame, job: JobContext) -> DataFrame | None:
        """Return the changed rows, and those that it cannot take, or None if it fails as a whole.

        The rows have all columns of :meth:`apply`, and column :data:`DEAD`, of type :data:`DEAD_TYPE`: null, or why
        the row is dead; of such a row the other columns do not matter. Rows that come may have column :data:`ORIGIN`;
        those that are returned may.
        """
        return None

    @property
    def tolerant(self) -> bool:
        """Whether it has :meth:`apply_tolerant`."""
        return False

    @property
    def may_fail(self) -> bool:
        """Whether values of a row may make :meth:`apply` fail, and with it the whole micro-batch."""
        return False

    @property
    def stateful(self) -> bool | None:
        """Whether it keeps state from one micro-batch to the next; None if that is unknown before it runs."""
        return False

    @property
    def reads_views(self) -> bool:
        """Whether it takes the rows of several sources, each by its view."""
        return False


class Sink(Plugin):
    """Where a job's rows go.

    The runner calls :meth:`open`, then :meth:`start` for a query that has this sink alone. Of several sinks, and of a
    BATCH job, it calls :meth:`write` instead: for a micro-batch each in turn, for a run once, with batch id 0. Then
    :meth:`close`.

    Attributes:
        promise: what holds of a query that has this sink alone.
        modes: which jobs may have it.
        idempotent: whether :meth:`write` may be called again for a batch, with the same effect as once. Of several
            sinks each must be, or say ``at-least-once: true``.
    """

    promise: ClassVar[DeliveryGuarantee]
    modes: ClassVar[frozenset[Mode]] = frozenset(Mode)
    idempotent: ClassVar[bool] = False

    def topics(self) -> Topics:
        """Return the topics it publishes."""
        return Topics()

    def folder(self, base: Path) -> str | None:
        """Return the folder that it fills with files, or its URI; None if it writes none.

        Args:
            base: where relative paths start.
        """
        return None

    def check_columns(self, frame: DataFrame, job: JobContext) -> None:
        """See, without opening anything, that rows with the columns of ``frame`` can be written; for ``pipeline try``.

        Raises:
            JobpipeError: what :meth:`open` or :meth:`write` would raise because of the columns.
        """
        return

    def open(self, frame: DataFrame, job: JobContext) -> None:
        """Make ready to write rows as those of ``frame``; called once, before all else."""
        return

    @abstractmethod
    def write(self, batch: DataFrame, batch_id: int, job: JobContext) -> None:
        """Write one micro-batch, or all rows of a run; returns when they are durable."""

    def start(self, frame: DataFrame, job: JobContext) -> StreamingQuery:
        """Start the query that writes the stream ``frame``; by default with :meth:`write`, by ``foreachBatch``."""
        from jobpipe.pipelines.plugins.start_query import start_for_each_batch

        return start_for_each_batch(frame, job, lambda batch, batch_id: self.write(batch, batch_id, job))

    def close(self, *, ended: bool) -> None:
        """Let go of what :meth:`open` took; ``ended`` if the job finished by itself, without an error."""
        return


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt of a job's run, as a launcher starts it: ``python -m jobpipe.jobs.runner SNAPSHOT``.

    Attributes:
        number: from 1; the order in the registry names it.
        snapshot: the file that says all that the runner needs; no secrets.
        log: where what it prints goes, if that is a file of this host.
        folder: of the pipeline's file; the process works there.
        environment: what is added to that of this process.
        configuration: Spark's keys as the file gives them, secrets as references; the runner gives all of them to the
            session, too. For launchers that start the JVM.

    :attr:`variables` are for the environment of what the launcher starts.
    """

    pipeline: str
    job: str
    run: str
    number: int
    snapshot: Path
    log: Path
    folder: Path
    environment: Mapping[str, str]
    configuration: Mapping[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that say of all its processes whose they are; for the driver's JVM, too."""
        return {PIPELINE: self.pipeline, JOB: self.job, RUN: self.run}


class LaunchState(StrEnum):
    """How an attempt stands, as its launcher knows it."""

    RUNNING = "RUNNING"
    ENDED = "ENDED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class LaunchStatus:
    """What a launcher says of an attempt.

    Attributes:
        exit_code: None if it is not known; negative for a signal.
        detail: where it runs, or why nothing is known, for people; "" if there is no more to say.
    """

    state: LaunchState
    exit_code: int | None = None
    detail: str = ""


class Launcher(Plugin):
    """What makes an attempt of a job a process.

    Attributes:
        cluster: whether the job's driver may run on another host than this one, and on another one at each attempt.
            Such an attempt is no child of this process, has the configuration of its own host, and stops by its order.
        poll_seconds: how often :meth:`status` is asked at most.
    """

    cluster: ClassVar[bool] = False
    poll_seconds: ClassVar[float] = 0.0

    @abstractmethod
    def submit(self, attempt: Attempt) -> str:
        """Start an attempt; return the id by which :meth:`status` and :meth:`cancel` know it, also in another process.

        Raises:
            ConfigError, NotAuthorized: it cannot be started; another attempt would not be either.
            LauncherUnavailable: nothing can be started now. Tried again, it is no failed attempt; under another number
                if this one may have been started.
            OSError: this attempt cannot be started.
        """

    @abstractmethod
    def status(self, launched: str) -> LaunchStatus:
        """Return how an attempt stands; UNKNOWN, soon, if that cannot be known now.

        ENDED is certain: the attempt does nothing any more.
        """

    @abstractmethod
    def cancel(self, launched: str) -> None:
        """End an attempt at once, with all its processes, but for a coordinator, which lingers by design.

        Returns when they have ended, after 10 s at most. Nothing happens if it has ended.

        Raises:
            JobpipeError: it cannot be told to end now; tried again.
        """

    def ask_to_stop(self, launched: str) -> None:
        """Ask an attempt to stop after its micro-batch, where the registry is away and its order cannot be changed.

        Raises:
            JobpipeError, OSError: it cannot be asked.
        """

    def spark_keys(self) -> Mapping[str, str]:
        """Return the keys with which the attempt makes its Spark session."""
        return {}
