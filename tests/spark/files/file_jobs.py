"""Jobs from files to files, in the session of the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import SparkSession

from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.model.pipeline import Pipeline
from jobpipe.pipelines.plugins.job_context import JobContext
from tests.spark.kit import PATIENCE

CSV: Mapping[str, Any] = {"type": "csv", "path": "in", "schema": "id BIGINT, name STRING"}
JSON: Mapping[str, Any] = {"type": "json", "path": "out"}


@dataclass
class FileJob:
    """A job of a pipeline's file in ``folder``; it reads what is there, and ends."""

    spark: SparkSession
    folder: Path
    source: Mapping[str, Any] = field(default_factory=lambda: CSV)
    sink: Mapping[str, Any] = field(default_factory=lambda: JSON)
    parameters: Mapping[str, str] = field(default_factory=dict)
    mode: str = "STREAMING"
    name: str = "copy"

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir(parents=True, exist_ok=True)

    def write(self, file: str, text: str | bytes) -> Path:
        """Write a file of the input."""
        path = self.folder / "in" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def load(self) -> Pipeline:
        """Return the pipeline."""
        stream = self.mode == "STREAMING"
        text: dict[str, Any] = {
            "pipeline": {"name": self.name, **({"parameters": dict(self.parameters)} if self.parameters else {})},
            "source": dict(self.source),
            "sink": dict(self.sink),
            **({"trigger": {"available-now": True}} if stream else {"execution": {"runtime-mode": "BATCH"}}),
        }
        file = self.folder / "p.yaml"
        file.write_text(yaml.safe_dump(text))
        return load_pipeline(file)

    def context(self, pipeline: Pipeline, storage: str = "state", run: str = "r1") -> JobContext:
        """Return what the plug-ins of the job are told."""
        (job,) = pipeline.jobs.values()
        return JobContext(
            pipeline=pipeline.name,
            job=job.name,
            mode=job.mode,
            storage=str(self.folder / storage),
            folder=pipeline.folder,
            run=RunValues(run),
            trigger=job.spec.trigger,
        )

    def run(self, storage: str = "state", run: str = "r1") -> None:
        """Run the job to its end."""
        pipeline = self.load()
        (job,) = pipeline.jobs.values()
        context = self.context(pipeline, storage, run)
        (source,), (stage,) = job.sources.values(), job.sinks
        frame, sink = source.make(context.run).load(self.spark, context), stage.make(context.run)
        if not frame.isStreaming:
            sink.write(frame, 0, context)
            return
        query = sink.start(frame, context)
        try:
            assert query.awaitTermination(PATIENCE), "the job did not end"
        finally:
            query.stop()

    def ids(self, out: str = "out") -> list[int]:
        """Return the ids of all rows in the files of the output, whether they count for Spark or not."""
        files = (path for path in (self.folder / out).rglob("*.json") if not path.name.startswith((".", "_")))
        return sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())
