"""A capture as its pipeline's file says it, ready to run. Knows no Spark."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping

from jobpipe.config import Config
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.model.captured_topics import routes_of_capture
from jobpipe.pipelines.model.graph import subscribers_of, subscriptions_of
from jobpipe.pipelines.model.pipeline import Job, Pipeline
from jobpipe.pipelines.plugins.capture_source import Capture, CaptureContext, CaptureSource


class _Subscribers(Mapping[str, tuple[str, ...]]):
    """The subscriptions of each topic, also of one whose name is known only once its table is found."""

    def __init__(self, pipeline: Pipeline, job: Job) -> None:
        self._pipeline = pipeline
        self._known = subscribers_of(pipeline, job)

    def __getitem__(self, topic: str) -> tuple[str, ...]:
        return subscriptions_of(self._pipeline, topic)

    def __iter__(self) -> Iterator[str]:
        return (self._pipeline.spec.topic_prefix + topic for topic in self._known)

    def __len__(self) -> int:
        return len(self._known)


def collect_rarely() -> None:
    """Let a process that only captures look for garbage rarely: changes are many objects, without circles.

    A capture of MariaDB is a fifth faster by it.
    """
    gc.set_threshold(50_000, 50, 100)


def capture_name(pipeline: Pipeline, job: Job) -> str:
    """Return the name under which a capture publishes."""
    return f"{pipeline.name}.{job.name}"


def context_of(pipeline: Pipeline, job: Job) -> CaptureContext:
    """Return what a capture knows of its job."""
    return CaptureContext(
        name=capture_name(pipeline, job),
        routes=routes_of_capture(job, pipeline.spec.topic_prefix),
        subscribers=_Subscribers(pipeline, job),
    )


def source_of(job: Job, run: RunValues) -> CaptureSource:
    """Return the source of a capture, for a run."""
    (stage,) = job.sources.values()
    source = stage.make(run)
    assert isinstance(source, CaptureSource)  # noqa: S101 - the loader found it right
    return source


def open_capture(pipeline: Pipeline, job: Job, run: RunValues, config: Config) -> Capture:
    """Return the capture of a job.

    Raises:
        ConfigError: its options do not fit together.
    """
    return source_of(job, run).capture(context_of(pipeline, job), config)
