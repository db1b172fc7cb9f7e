"""What is measured over time, and the line that comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Measure(StrEnum):
    """What a series has; the values are in files."""

    PUBLISHED = "published"  # rows a second
    LAG_ROWS = "lag-rows"
    LAG_SECONDS = "lag-seconds"
    READ = "read"  # rows a second
    BATCH_SECONDS = "batch-seconds"  # how long a micro-batch takes


HIGHEST = frozenset({Measure.LAG_ROWS, Measure.LAG_SECONDS, Measure.BATCH_SECONDS})
"""Of these a slot keeps the highest value, so that a short peak is seen in a whole day; of the others the mean."""


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """Tells series apart.

    Attributes:
        owner: the topic, or the pipeline.
        name: the subscription, or the job; "" for a topic.
    """

    measure: Measure
    owner: str
    name: str = ""

    @classmethod
    def published(cls, topic: str) -> SeriesKey:
        """Return that of the rows a second that are published."""
        return cls(Measure.PUBLISHED, topic)

    @classmethod
    def lag_rows(cls, topic: str, subscription: str) -> SeriesKey:
        """Return that of the rows which a subscription has not acknowledged."""
        return cls(Measure.LAG_ROWS, topic, subscription)

    @classmethod
    def lag_seconds(cls, topic: str, subscription: str) -> SeriesKey:
        """Return that of the time for which a subscription has not acknowledged some rows."""
        return cls(Measure.LAG_SECONDS, topic, subscription)

    @classmethod
    def read(cls, pipeline: str, job: str) -> SeriesKey:
        """Return that of the rows a second that a job's present attempt reads."""
        return cls(Measure.READ, pipeline, job)

    @classmethod
    def batch_seconds(cls, pipeline: str, job: str) -> SeriesKey:
        """Return that of the time that a job's micro-batches take."""
        return cls(Measure.BATCH_SECONDS, pipeline, job)


@dataclass(frozen=True)
class Line:
    """Values over time, the newest last.

    Attributes:
        start: of the first slot, in seconds since 1970.
        step: seconds of a slot.
        values: one for each slot; None where nothing is known.
    """

    start: float
    step: float
    values: tuple[float | None, ...]
