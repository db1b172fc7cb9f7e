"""What Spark Connect cannot do is refused, or said, in words that help. No server is needed here."""

from __future__ import annotations

from typing import Any

import pytest

import jobpipe
from jobpipe import JobPipeSink
from jobpipe.errors import ConfigError
from jobpipe.spark.termination.query_job import QueryJob

REFUSAL = r"needs a classic Spark session, and this process is a client of Spark Connect: .*spark-submit or python"


def test_a_sink_in_a_client_of_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # what SparkSession.builder.remote() sets
    with pytest.raises(ConfigError, match=f"JobPipeSink {REFUSAL}"):
        JobPipeSink("orders")


class RemoteThing:
    """A session, or a DataFrame, of Spark Connect as far as it is looked at."""

    @property
    def sparkSession(self) -> RemoteThing:
        return self


RemoteThing.__module__ = "pyspark.sql.connect.session"


def test_a_session_of_spark_connect_cannot_be_registered() -> None:
    session: Any = RemoteThing()
    with pytest.raises(ConfigError, match=rf"jobpipe.register\(spark\) {REFUSAL}"):
        jobpipe.register(session)


def test_rows_of_spark_connect_are_not_published() -> None:
    sink, rows = object.__new__(JobPipeSink), RemoteThing()
    with pytest.raises(ConfigError, match=f"JobPipeSink {REFUSAL}"):
        sink(rows, 0)  # type: ignore[arg-type]


class RemoteQuery:
    """A query of Spark Connect, as far as it is looked at: it has no object of a JVM."""

    id, name = "e2b1f6a8-2f0c-4c6c-9d43-5f9b6b6d9c11", "totals"

    def __init__(self) -> None:
        self.isActive = True

    def stop(self) -> None:
        self.isActive = False


def test_a_topic_of_spark_connect_is_not_ended_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteQuery, "__module__", "pyspark.sql.connect.streaming.query")
    with pytest.raises(ConfigError, match=r"\.option\('final', 'true'\)"):
        jobpipe.run(RemoteQuery(), final=True)  # type: ignore[arg-type]


def test_a_query_of_spark_connect_is_stopped_now_and_said_to_be_cut_short() -> None:
    """Nobody can see whether it writes a micro-batch: that may be repeated at the next start."""
    query: Any = RemoteQuery()
    job = QueryJob(query)
    job.begin_end()
    assert not job.cut_short
    assert job.has_ended()
    assert job.cut_short
    assert not query.isActive
