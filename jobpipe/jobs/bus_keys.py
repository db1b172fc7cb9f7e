"""The keys of jobpipe with which a job works, whether it has a Spark session or not."""

from __future__ import annotations

from jobpipe.pipelines.file.field_types import SPARK_JOBPIPE
from jobpipe.pipelines.model.pipeline import Job, Pipeline

JOB_TIMES = {
    "spark.jobpipe.discovery.timeout": "5min",  # the jobs of a pipeline start at once, and a publisher takes its time
    "spark.jobpipe.acks.timeout": "3650d",  # that a topic has no room is no failure: the job is BLOCKED
}


def bus_keys(pipeline: Pipeline, job: Job) -> dict[str, str]:
    """Return the keys of jobpipe for a job without Spark, by Spark's names: those of the file come last."""
    given = pipeline.configuration(job)
    return {**JOB_TIMES, **{key: value for key, value in given.items() if key.startswith(SPARK_JOBPIPE)}}
