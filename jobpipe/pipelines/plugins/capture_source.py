"""What a source of change data capture is: it publishes the changes of tables as topics by itself, without Spark."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from jobpipe.config import Config
from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.spec import RouteSpec
from jobpipe.pipelines.plugins.api import Source
from jobpipe.pipelines.plugins.job_context import JobContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class CaptureContext:
    """What a capture knows of its job.

    Attributes:
        name: under which it publishes, ``pipeline.job``; what it has captured is known by it.
        routes: each table is matched by one of them, and the first that matches counts; topics by their full names.
        subscribers: of each topic, by its full name, the subscriptions that it must keep rows for.
    """

    name: str
    routes: tuple[RouteSpec, ...]
    subscribers: Mapping[str, tuple[str, ...]]


class CaptureProgress(Protocol):
    """How a capture stands."""

    @property
    def behind_bytes(self) -> int:
        """How much of the database's log is not published yet."""

    @property
    def tables(self) -> Mapping[str, tuple[int, float]]:
        """Rows that were read, and how many there may be, of each table that is still being read."""

    @property
    def rows(self) -> int:
        """Rows published since the process began."""


class Capture(Protocol):
    """What publishes the tables of a database, in this process."""

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Capture until :meth:`stop`; ``ready`` is called once, when changes are followed.

        Raises:
            JobpipeError: it cannot go on; a cut link is made again.
        """

    def stop(self) -> None:
        """Let :meth:`run` return soon. For any thread, or a signal's handler."""

    def status(self) -> CaptureProgress:
        """Return how it stands."""

    def close(self) -> None:
        """Give all topics up. Idempotent."""


class CaptureSource(Source):
    """Where a capture's rows come from; its type ends with ``-cdc``."""

    @property
    @abstractmethod
    def tables(self) -> tuple[str, ...]:
        """The tables: regular expressions of whole names, as routes have them."""

    @abstractmethod
    def capture(self, context: CaptureContext, config: Config) -> Capture:
        """Return what captures them.

        Raises:
            ConfigError: the options do not fit together.
        """

    def load(self, spark: SparkSession, job: JobContext) -> DataFrame:
        """Refuse: its rows are read from its topics."""
        raise ConfigError(f"source {self.type} is read by way of its topics")
