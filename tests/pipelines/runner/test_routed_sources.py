"""Topics that had rows in an attempt before are served by the next one, whatever it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobpipe.errors import ConfigError
from jobpipe.jobs.workloads import routed_sources
from jobpipe.jobs.workloads.routed_sink import RoutedSink
from jobpipe.jobs.workloads.routed_sources import RoutedSources
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode, RouteSpec
from jobpipe.pipelines.model.routes import Routes
from jobpipe.pipelines.plugins.api import Topics
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sinks.topic_sink import JobpipeSink

SPARK = cast("SparkSession", None)  # a folder of this host needs none


def test_names_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed_sources, "SOURCES_MOST", 2)
    kept = RoutedSources(SPARK, (tmp_path / "a").as_uri())
    assert kept.names() == ()
    for name in ("orders", "../b", "orders"):
        kept.add(name)
    assert RoutedSources(SPARK, str(tmp_path / "a")).names() == ("../b", "orders")
    with pytest.raises(ConfigError, match="more than 2 topics"):
        kept.add("more")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_the_next_attempt_opens_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the routes as they are; of a source that the job reads no more, none; each for the jobs that read it."""
    opened: dict[str, Any] = {}

    def opening(sink: JobpipeSink, frame: DataFrame, job: JobContext) -> None:
        opened[sink.topics().names[0]] = sink.arguments(job)["required_subscribers"]

    monkeypatch.setattr(JobpipeSink, "open", opening)
    for name in ("orders", "gone"):
        RoutedSources(SPARK, str(tmp_path)).add(name)
    route = RouteSpec.model_validate({"source-table": "(.*)", "sink-table": "eu-$1"})
    job = JobContext(
        pipeline="p", job="a", mode=Mode.STREAMING, storage=str(tmp_path), folder=tmp_path, run=RunValues("r1")
    )
    options = JobpipeSink.Options.model_validate({"topic": "others"})
    sink = RoutedSink(options, Routes([route], "others", Topics(("orders",))), [], lambda topic: (f"p.{topic}",))
    sink.open(cast("DataFrame", MagicMock()), job)
    assert opened == {"others": ("p.others",), "eu-orders": ("p.eu-orders",)}
