"""Delta and Iceberg: what they are told of a batch, so that one that comes again is not written twice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sinks.format_sinks import DeltaSink, FormatSink, IcebergSink
from jobpipe.spark.termination.query_stop import QUERY_ID
from tests.pipelines.conftest import Write, loaded, problems


class Writer:
    """Spark's writer, which writes nothing."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def options(self, **options: str) -> Writer:
        self.given.update(options)
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self


def written(sink: type[FormatSink], mode: Mode, batch_id: int, folder: Path, **options: str) -> dict[str, Any]:
    """Return the options with which a sink writes a batch of run r1, or of query q1."""
    context = SimpleNamespace(getLocalProperty={QUERY_ID: "q1"}.get)
    batch: Any = SimpleNamespace(write=Writer(), sparkSession=SimpleNamespace(sparkContext=context))
    job = JobContext(pipeline="shop", job="copy", mode=mode, storage="s", folder=folder, run=RunValues("r1"))
    sink(sink.parse({"path": "out", "options": options}, folder)).write(batch, batch_id, job)
    return dict(batch.write.given)


def test_delta_knows_a_run_that_is_repeated(tmp_path: Path) -> None:
    assert written(DeltaSink, Mode.BATCH, 0, tmp_path, mergeSchema="true") == {
        "mergeSchema": "true",
        "txnAppId": "shop.copy:r1",
        "txnVersion": "0",
    }


def test_delta_knows_a_micro_batch_that_is_repeated(tmp_path: Path) -> None:
    """By the id of the checkpoint: with a new one, micro-batch 0 is another one."""
    assert written(DeltaSink, Mode.STREAMING, 7, tmp_path) == {"txnAppId": "q1", "txnVersion": "7"}


def test_iceberg_promises_no_more_than_it_holds(tmp_path: Path) -> None:
    """Its writer of runs has nothing by which it would know one again."""
    assert written(IcebergSink, Mode.BATCH, 0, tmp_path) == {}
    assert str(IcebergSink.promise).startswith("at least once: a stream with only this sink writes a row once")
    assert str(DeltaSink.promise).startswith("at least once: each commit says which micro-batch or run it is")


A = "path: a, at-least-once: true"
TWO = """
pipeline: {name: shop}
jobs:
  copy:
    source: {type: rate}
    sinks: [{type: delta, path: a}, {type: TYPE, path: b}]
"""


def test_of_several_sinks(write: Write) -> None:
    found = problems(write(TWO.replace("TYPE", "iceberg")))
    assert ["sink delta would write it twice" in found[0].what, "sink iceberg would" in found[1].what] == [True, True]
    loaded(write(TWO.replace("TYPE", "iceberg").replace("path: a", A).replace("path: b", A)))
