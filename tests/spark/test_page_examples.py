"""The Python blocks of README.md, docs/kafka.md and docs/deploy.md, run as they stand there, in one session.

Only where they put things is changed: checkpoints go to the test's folder, settings are those of its namespace.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import jobpipe
from jobpipe import JobPipeSink
from jobpipe.publisher.opened import open_publishers
from tests.pages import ROOT, block, shell
from tests.spark.jobs.session import started
from tests.spark.kit import PATIENCE, Place, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

KAFKA = "docs/kafka.md"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def own(place: Place, tmp_path: Path) -> Place:
    """A namespace for this test alone: the pages call their topics by the same names."""
    storage = {"jobpipe.registerserver.topic.storage": f"/page-{uuid.uuid4().hex[:12]}/topics"}
    return Place(tmp_path, {**place.settings, **storage, "jobpipe.spool.dir": str(tmp_path / "spool")})


@pytest.fixture
def page(spark: SparkSession, own: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Return what runs a block with these names; its queries are stopped, and its publishers closed, at the end."""
    known = {f"spark.{key}": value for key, value in own.settings.items()}
    for key, value in known.items():
        spark.conf.set(key, value)
    jobpipe.register(spark)
    for name, value in own.environ().items():
        monkeypatch.setenv(name, value)
    option, start = DataStreamWriter.option, DataStreamWriter.start

    def placed(writer: DataStreamWriter, key: str, value: Any) -> DataStreamWriter:
        return option(writer, key, str(own.folder / str(value).lstrip("/")) if key == "checkpointLocation" else value)

    def patiently(writer: DataStreamWriter) -> StreamingQuery:
        return started(SimpleNamespace(start=lambda: start(writer)))  # type: ignore[arg-type]

    monkeypatch.setattr(DataStreamWriter, "option", placed)
    monkeypatch.setattr(DataStreamWriter, "start", patiently)
    before = {id(each) for each in open_publishers()}

    def run(name: str, where: str = KAFKA, **names: Any) -> dict[str, Any]:
        known = {"spark": spark, "F": F, "JobPipeSink": JobPipeSink, "jobpipe": jobpipe, **names}
        exec(compile(block(where, name), f"{where}:{name}", "exec"), known)  # noqa: S102 - our own page
        return known

    yield run
    for query in spark.streams.active:
        query.stop()
    for each in open_publishers():
        if id(each) not in before:
            each.close()
    for key in known:
        spark.conf.unset(key)
    jobpipe.register(spark)


def orders(spark: SparkSession, folder: Path) -> DataFrame:
    """Return a stream of two orders."""
    folder.mkdir()
    rows = "SELECT 'a' AS customer, 1.5D AS amount, timestamp'2026-11-21 10:00:00' AS at UNION ALL "
    rows += "SELECT 'b', 2.5D, timestamp'2026-11-21 10:00:01'"
    spark.sql(rows).write.parquet(str(folder / "in"))
    return spark.readStream.schema("customer string, amount double, at timestamp").parquet(str(folder / "in"))


def amounts(spark: SparkSession, rows: DataFrame, name: str) -> dict[str, float]:
    """Run a stream until two rows came; return them."""
    query = rows.writeStream.format("memory").queryName(name).start()
    try:
        until(lambda: query.exception() or spark.table(name).count() >= 2, "two rows")
        assert query.exception() is None
        return {row["customer"]: row["amount"] for row in spark.table(name).collect()}
    finally:
        query.stop()


def test_the_first_hour(spark: SparkSession, own: Place, page: Run) -> None:
    """README.md: two jobs, a plain client, a plain publisher, the command line."""
    codes: list[object] = []

    def job(name: str) -> threading.Thread:
        def work() -> None:
            try:
                page(name, "README.md")
            except SystemExit as ended:
                codes.append(ended.code)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    jobs = [job("publish"), job("subscribe")]

    def reads() -> bool:
        """Tell whether the subscriber has had rows; its console is the JVM's."""
        found = [query.lastProgress for query in spark.streams.active]
        return any(
            "jobpipe" in each["sources"][0]["description"].lower() and each["numInputRows"] for each in found if each
        )

    until(reads, "the subscriber gets rows")

    class Enough(Exception):
        pass

    def show(rows: int, names: list[str]) -> None:
        assert rows
        raise Enough(names)

    with pytest.raises(Enough, match=r"\['id', 'customer', 'amount'\]"):
        page("client", "README.md", print=show)
    shown: list[object] = []
    page("publisher", "README.md", print=shown.append)
    assert shown == [2]
    done = shell(block("README.md", "look"), ROOT)
    assert done.returncode == 0, done.stderr
    assert "billing" in done.stdout
    for query in spark.streams.active:
        query.stop()
    for thread in jobs:
        thread.join(PATIENCE)
    assert codes == [0, 0]


def test_the_moved_job(spark: SparkSession, page: Run, tmp_path: Path) -> None:
    """docs/kafka.md: publisher and subscriber, after."""
    page("writer-after", KAFKA, orders=orders(spark, tmp_path / "moved"))["query"].processAllAvailable()
    assert amounts(spark, page("reader-after")["orders"], "moved") == {"a": 1.5, "b": 2.5}


def test_a_value_column_is_kept(spark: SparkSession, page: Run, tmp_path: Path) -> None:
    """U13: a JSON value column, on both sides."""
    page("keep-value-writer", KAFKA, orders=orders(spark, tmp_path / "kept"))["query"].processAllAvailable()
    assert amounts(spark, page("keep-value-reader")["orders"], "kept") == {"a": 1.5, "b": 2.5}


def test_one_query_for_several_topics(spark: SparkSession, page: Run, own: Place, tmp_path: Path) -> None:
    """docs/kafka.md: Kafka's column `topic`."""
    df = orders(spark, tmp_path / "kinds").withColumn("kind", F.when(F.col("customer") == "a", "new").otherwise("paid"))
    query = page("by-kind", df=df)["query"]
    query.processAllAvailable()
    found = {topic: own.read(spark, topic).collect() for topic in ("orders-new", "orders-paid")}
    assert {topic: [row["customer"] for row in rows] for topic, rows in found.items()} == {
        "orders-new": ["a"],
        "orders-paid": ["b"],
    }


def test_a_partitioner_of_ones_own(spark: SparkSession, page: Run, own: Place) -> None:
    """docs/kafka.md: a function that chooses the partition."""
    sink = page("by-region")["sink"]
    sink(spark.sql("SELECT 'EU' AS region UNION ALL SELECT 'US'"), 0)
    rows = own.read(spark, "orders", includeMetadata=True).collect()
    assert {row["region"]: row["_jobpipe"]["partition"] for row in rows} == {"EU": 0, "US": 3}


def test_a_consumer_that_is_away(spark: SparkSession, page: Run, own: Place) -> None:
    """U13: how long it may be away: what is unread stays in the spool, and `jobpipe serve` serves it."""
    sink = page("long-linger")["sink"]
    sink(spark.sql("SELECT 1 AS id"), 0)
    assert sink._config.linger == 24 * 3600
    sink.close()
    command = [str(Path(sys.executable).with_name("jobpipe")), *block(KAFKA, "serve").split()[1:]]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        with jobpipe.subscribe("orders-kept", name="billing", config=own.config()) as billing:
            (batch,) = billing.batches(timeout=1.0)
        assert batch.to_pylist() == [{"id": 1}]
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE)


def test_a_batch_job_that_runs_twice(spark: SparkSession, page: Run) -> None:
    """U13: deduplication across processes is the plain publisher's."""
    shown: list[str] = []
    for _ in range(2):
        page("batch-once", df=spark.range(3), print=shown.append)
    assert shown == ["published", "was published before"]


def test_settings_after_the_launch(spark: SparkSession, page: Run) -> None:
    """docs/deploy.md: the session's settings reach the source after `jobpipe.register`."""
    key = "spark.jobpipe.registerserver.connect"
    before = spark.conf.get(key, "embedded")
    assert before is not None
    try:
        page("register", "docs/deploy.md", SparkSession=SparkSession)
        assert spark.conf.get(key) == "zk1:2181"
        with contextlib.suppress(Exception):
            spark.conf.unset(key)
    finally:
        spark.conf.set(key, before)


def test_the_hash_is_sparks(spark: SparkSession) -> None:
    """A plain publisher's ``partition_by`` chooses the partition that a sink's does, for every type that it takes."""
    from jobpipe.publisher.numbering import hash_numbers

    df = spark.sql(
        "SELECT * FROM VALUES "
        "('ABC', 1Y, -2S, 3, -4L, true, 1.5F, -0.0D, date'1969-12-31', timestamp'1969-12-31 23:59:59.5', 12.345BD, "
        "cast(-123456789012345678901234567.89 as decimal(38,2)), X'00FF80', timestamp_ntz'2026-11-21 10:00:00'), "
        "('grüße, 日本', null, 2S, -3, 4L, false, cast('nan' as float), cast('nan' as double), date'2026-11-21', "
        "timestamp'2026-11-21 10:00:00.000001', -0.001BD, cast(1 as decimal(38,2)), X'', null), "
        "('', 1Y, null, null, null, null, -0.0F, 1e300D, null, null, null, null, null, null) AS t"
    )
    table = df.toArrow().combine_chunks()
    for columns in [[name] for name in df.columns] + [df.columns]:
        wanted = [row[0] for row in df.select(F.pmod(F.hash(*columns), F.lit(1000))).collect()]
        (batch,) = table.to_batches()
        assert hash_numbers(batch, columns, 1000).to_pylist() == wanted, columns
    assert isinstance(table, pa.Table)
