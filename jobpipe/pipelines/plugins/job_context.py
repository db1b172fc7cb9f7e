"""What a plug-in knows of its job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jobpipe.config.reading.located_values import Scalar
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode, OutputMode, TriggerSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

_FLAGS = re.compile(r"(?:\(\?[aimsux]+\))*")  # at the start of a regular expression, for all of it
_VIEW = "view_"
INPUT = "input"  # the view of the rows that a transform is given


def _allowed() -> None:
    """Allow all."""


def name_of_source(view: str) -> str:
    """Return the name by which Spark knows a source: it takes letters, digits and ``_``, and numbers the nameless ones.

    >>> name_of_source("a-b_c")
    'view_a_db__c'
    """
    return f"{_VIEW}{view.replace('_', '__').replace('-', '_d')}"


def view_of_source(name: str) -> str:
    """Return the view of a source, by its name in Spark; a name that is none of ours as it is.

    >>> view_of_source("view_a_db__c")
    'a-b_c'
    """
    if not name.startswith(_VIEW):
        return name
    return re.sub("_(.)", lambda found: "-" if found[1] == "d" else found[1], name.removeprefix(_VIEW))


def with_prefix(pattern: str, prefix: str) -> str:
    """Return a regular expression of topics' names as one of their full names.

    >>> with_prefix("(?i)raw|in", "dev.")
    'dev\\\\.(?i:raw|in)'
    """
    if not prefix:
        return pattern
    written = _FLAGS.match(pattern)
    assert written is not None  # noqa: S101 - it matches nothing, too
    flags = "".join(sorted(set(written[0]) - set("(?)")))  # of the pattern alone: the prefix is as written
    end = "\n" if "x" in flags else ""  # of a comment
    return f"{re.escape(prefix)}(?{flags}:{pattern[written.end() :]}{end})"


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """One attempt of a job, as its plug-ins see it.

    Attributes:
        storage: folder or URI of this job's checkpoint.
        folder: of the pipeline's file; relative paths start there.
        run: of a BATCH job or a scheduled one its bounds; of every job its id.
        view: the name of the source, where a job has several; the runner sets it for each.
        views: the rows of all sources by their names, where a job has several.
        names_sources: Spark knows the sources by their views, not by their order.
        output_mode, trigger: of the query.
        attempt: its number.
        check: raises, or ends this process, if another attempt has taken this one's place: it must not write any more.
        subscribers: of each topic that the job publishes, without the prefix, the subscriptions of the pipeline's other
            jobs that run without a schedule: what the topic must keep rows for.
    """

    pipeline: str
    job: str
    mode: Mode
    storage: str
    folder: Path
    run: RunValues
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    topic_prefix: str = ""
    view: str | None = None
    views: Mapping[str, DataFrame] = field(default_factory=dict)
    names_sources: bool = False
    output_mode: OutputMode | None = None
    trigger: TriggerSpec | None = None
    subscribers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    attempt: int = 1
    check: Callable[[], None] = _allowed

    @property
    def name(self) -> str:
        """The job with its pipeline, ``pipeline.job``: of its query, and of its subscription."""
        return f"{self.pipeline}.{self.job}"

    @property
    def subscription(self) -> str:
        """The name of this source's subscription."""
        return self.name if self.view is None else f"{self.name}.{self.view}"

    def read_stream(self, spark: SparkSession) -> DataStreamReader:
        """Return what reads a stream of this source, under its name if the query knows its sources by these."""
        reader = spark.readStream
        return reader if self.view is None or not self.names_sources else reader.name(name_of_source(self.view))

    def topic(self, name: str) -> str:
        """Return the full name of a topic."""
        return self.topic_prefix + name
