"""Source ``jobpipe``: topics of the bus."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from jobpipe.config.definitions.config_model import KEYS
from jobpipe.config.definitions.definition import Key
from jobpipe.config.definitions.source_options import SOURCE_OPTIONS
from jobpipe.pipelines.file.problems import OptionError
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.api import ORIGIN, Source, Topics, origin
from jobpipe.pipelines.plugins.job_context import JobContext, with_prefix
from jobpipe.pipelines.plugins.option_models import options_model

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DEFINED = tuple(about for about in SOURCE_OPTIONS if about.name != "name")  # which is the job's
_BOUNDS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "boundaryType", "lowerBound")
_FLOW_STARTS = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)
_FLOW_OPTIONS = {"failOnDataLoss": "fail_on_data_loss", "schemaEvolution": "schema_evolution"}
_OPTIONS = options_model(
    "JobpipeSourceOptions",
    (*_DEFINED, *KEYS),
    lambda about: about.name.removeprefix("jobpipe."),
)


class JobpipeSource(Source):
    """Rows of topics, with the columns that their publisher gave them, each row once.

    The subscription is named PIPELINE.JOB, or PIPELINE.JOB.VIEW of a job with several sources. Options are those of
    format("jobpipe"); keys of the configuration may be given too.
    """

    type = "jobpipe"
    identifying: ClassVar[frozenset[str] | None] = frozenset(
        {"subscribe", "subscribepattern", "assign", "topic", "registerserver.topic.storage"}
    )
    takes_bounds: ClassVar[bool] = True
    has_name: ClassVar[bool] = True
    own_bounds: ClassVar[frozenset[str]] = frozenset(
        {"startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "lowerBound"}
        | {"endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "upperBound"}
    )
    Options = _OPTIONS

    def texts(self) -> dict[str, str]:
        """Return the options that were given, as Spark takes them."""
        found = {}
        for about in (*_DEFINED, *KEYS):
            name = getattr(about, "attribute", about.name)
            if name in self.options.model_fields_set and (value := getattr(self.options, name)) is not None:
                found[about.name] = about.format(value)
        return found

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """Yield what is wrong between the options."""
        from jobpipe.spark.options.read_options import find_problems

        given = self.texts()
        for problem in find_problems(given):
            key = problem.key.removeprefix("jobpipe.")
            if problem.value is None:
                yield OptionError(key, "it is missing", f"give {problem.expected}")
            else:
                yield OptionError(key, "it does not go with the other options", f"give {problem.expected}")
        if mode is Mode.BATCH and given.get("readAhead") == "true":
            yield OptionError("readAhead", "a BATCH job has none", "leave it out")

    def topics(self) -> Topics:
        given: Any = self.options
        return Topics(tuple(given.subscribe or sorted(given.assign or ())), given.subscribePattern)

    def load_tolerant(self, spark: SparkSession, job: JobContext) -> DataFrame:
        """Return the rows, each with where it comes from."""
        options = self.texts()
        keep = options.get("includeMetadata") == "true"
        return _with_origin(self._load(spark, job, {**options, "includeMetadata": "true"}), keep=keep)

    def load(self, spark: SparkSession, job: JobContext) -> DataFrame:
        """Return the rows of the topics; of a run those between its bounds, unless the options say where to start."""
        return self._load(spark, job, self.texts())

    def flow_options(self) -> dict[str, Any]:
        """Return the arguments of ``jobpipe.flow``."""
        from jobpipe.spark.options.starting_ending_offsets import ends

        given = self.options
        found: dict[str, Any] = {}
        starts: dict[str, Any] = {}
        for about in (*_DEFINED, *KEYS):
            name = getattr(about, "attribute", about.name)
            if name not in given.model_fields_set or (value := getattr(given, name)) is None:
                continue
            if isinstance(about, Key):
                found[name] = about.format(value)
            elif about.name in _FLOW_STARTS:
                starts[about.name] = value
            elif about.name in _FLOW_OPTIONS:
                found[_FLOW_OPTIONS[about.name]] = value
            elif about.name != "subscribe":
                raise ValueError(about.name)
        (topic,) = self.topics().names
        start, _ = ends(starts, (topic,), None, lambda *_: None)  # what is wrong with them, check() says
        if (boundary := start.of(topic)) is not None:
            found["starting"] = boundary
        return found

    def _load(self, spark: SparkSession, job: JobContext, texts: dict[str, str]) -> DataFrame:
        options = _with_prefixes(texts, job.topic_prefix)
        if job.mode is Mode.STREAMING:
            return job.read_stream(spark).format("jobpipe").options(**options, name=job.subscription).load()
        if not any(name in options for name in _BOUNDS):
            options |= _bounds(job)
        return spark.read.format("jobpipe").options(**options).load()


def _with_origin(frame: DataFrame, *, keep: bool) -> DataFrame:
    """Return the rows with column ORIGIN made of their metadata column, which goes unless the user asked for it."""
    from pyspark.sql import functions as sf

    from jobpipe.spark.schema.metadata_columns import METADATA

    known = {name: sf.col(f"{METADATA}.{field}") for field, name in _ORIGIN.items()}
    published = sf.unix_millis(sf.col(f"{METADATA}.published"))
    marked = frame.withColumn(ORIGIN, origin(**known, published_ms=published))
    return marked if keep else marked.drop(METADATA)


_ORIGIN = {"topic": "topic", "offset": "offset", "partition": "partition", "row": "row_number"}


def _bounds(job: JobContext) -> dict[str, str]:
    lower, upper = job.run.lower, job.run.upper
    kind = "TIME" if isinstance(lower if lower is not None else upper, datetime) else "OFFSET"
    found = {
        name: bound.isoformat() if isinstance(bound, datetime) else str(bound)
        for name, bound in (("lowerBound", lower), ("upperBound", upper))
        if bound is not None
    }
    if kind == "TIME" and "lowerBound" in found:  # a range in which nothing was published is empty
        found["startingOffsetsByTimestampStrategy"] = "latest"
    return {"boundaryType": kind, **found} if found else {}


def _with_prefixes(options: dict[str, str], prefix: str) -> dict[str, str]:
    """Return the options with full names of topics."""
    if not prefix:
        return options
    found = dict(options)
    for name, value in options.items():
        if name == "subscribe":
            found[name] = ",".join(prefix + topic for topic in value.split(","))
        elif name == "subscribePattern":
            found[name] = with_prefix(value, prefix)
        elif value.startswith("{") and not name.startswith(("jobpipe.", "security.")):
            found[name] = json.dumps({prefix + topic: each for topic, each in json.loads(value).items()})
    return found
