"""The Python blocks of the pages publish, subscribe, end, kafka, flow and deploy, run as they stand, in one session.

Only where they put things is changed: `/data` is the test's folder, settings are those of its namespace. Those of
README.md are programs: test_first_hour.py.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import jobpipe
from jobpipe import JobPipeSink
from jobpipe.publishing.open_publishers import open_publishers
from jobpipe.publishing.serving.shared_coordinator import end_shared
from tests.docs.pages import ROOT, block
from tests.spark.jobs.session import started
from tests.spark.kit import PATIENCE, Place, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PUBLISH = "docs/publish.md"
SUBSCRIBE = "docs/subscribe.md"
END = "docs/end.md"
KAFKA = "docs/kafka.md"
FLOW = "docs/flow.md"
Run = Callable[..., dict[str, Any]]
Found = TypeVar("Found")


@pytest.fixture
def own(place: Place, tmp_path: Path) -> Place:
    """A namespace for this test alone: the pages call their topics by the same names."""
    storage = {"jobpipe.registerserver.topic.storage": f"/page-{uuid.uuid4().hex[:12]}/topics"}
    return Place(tmp_path, {**place.settings, **storage, "jobpipe.spool.dir": str(tmp_path / "spool")})


@pytest.fixture
def page(spark: SparkSession, own: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Return what runs a block with these names and returns its names; queries and publishers end with the test."""
    known = {f"spark.{key}": value for key, value in own.settings.items()}
    for key, value in known.items():
        spark.conf.set(key, value)
    jobpipe.register(spark)
    for name, value in own.environ().items():
        monkeypatch.setenv(name, value)
    before = {id(each) for each in open_publishers()}

    def run(name: str, where: str = KAFKA, **names: Any) -> dict[str, Any]:
        known = {"spark": spark, "F": F, "JobPipeSink": JobPipeSink, "jobpipe": jobpipe, "sys": sys, **names}
        text = block(where, name).replace("/data/", f"{own.folder}/")
        exec(compile(text, f"{where}:{name}", "exec"), known)  # noqa: S102 - our own page
        return known

    yield run
    for query in spark.streams.active:
        query.stop()
    for each in open_publishers():
        if id(each) not in before:
            each.close()
    end_shared(own.config())
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


def while_it_runs(spark: SparkSession, job: Callable[[], object], look: Callable[[], Found]) -> Found:
    """Run a block that ends by ``jobpipe.run``; look at what it publishes, then let its query end."""

    def work() -> Found:
        try:
            return look()
        finally:
            for query in spark.streams.active:
                query.stop()

    with ThreadPoolExecutor(1) as pool:  # signals, and so jobpipe.run, are of the main thread
        found = pool.submit(work)
        with pytest.raises(SystemExit) as ended:
            job()
    assert ended.value.code == 0
    return found.result()


def test_publishing_and_subscribing(spark: SparkSession, page: Run, tmp_path: Path) -> None:
    """docs/publish.md and docs/subscribe.md: their first blocks, a job each."""
    found = while_it_runs(
        spark,
        lambda: page("publish", PUBLISH, orders=orders(spark, tmp_path / "published")),
        lambda: amounts(spark, page("subscribe", SUBSCRIBE)["orders"], "subscribed"),
    )
    assert found == {"a": 1.5, "b": 2.5}


def test_the_end_of_a_topic(spark: SparkSession, page: Run, tmp_path: Path) -> None:
    """docs/end.md: the publisher's end mark, and the subscriber that ends by it."""
    sink = JobPipeSink("orders", required_subscribers=["billing"], **{"coordinator.linger": "5min"})
    writer = orders(spark, tmp_path / "ended").writeStream.foreachBatch(sink).trigger(availableNow=True)
    with pytest.raises(SystemExit) as published:
        page("end-publisher", END, query=started(writer))
    assert published.value.code == 0
    rows = spark.readStream.format("jobpipe").option("subscribe", "orders").option("name", "billing")
    rows = rows.option("startingOffsets", "earliest")
    query = started(rows.load().writeStream.format("memory").queryName("ended"))
    with pytest.raises(SystemExit) as read:
        page("end-subscriber", END, query=query)
    assert read.value.code == 0
    assert spark.table("ended").count() == 2


def test_publishing_without_spark(spark: SparkSession, own: Place, page: Run) -> None:
    """docs/publish.md: exactly once, also when the program runs again."""
    for _ in range(2):
        page("publish-plain", PUBLISH)
    with jobpipe.publisher("payments", name="importer", config=own.config()) as payments:
        assert payments.last_batch_id == 2
        rows = own.read(spark, "payments", startingOffsets="earliest").collect()
    assert sorted((row["customer"], row["amount"]) for row in rows) == [
        *(("a", 1.0) for _ in range(3)),
        *(("b", float(batch_id)) for batch_id in range(3)),
    ]


def test_following_without_spark(own: Place, page: Run) -> None:
    """docs/subscribe.md: a new name begins with what comes next."""

    class Enough(Exception):
        pass

    def show(rows: int) -> None:
        raise Enough(rows)

    stop = threading.Event()

    def publish() -> None:
        with jobpipe.publisher("orders", config=own.config()) as publisher:
            while not stop.wait(0.1):
                publisher.write(pa.table({"id": [1, 2]}))

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        with pytest.raises(Enough, match="2"):
            page("follow", SUBSCRIBE, print=show)
    finally:
        stop.set()
        publisher.join()


def test_a_flow_on_spark(own: Place, page: Run) -> None:
    """docs/flow.md: a model in the executors; the flow ends with its source, and its topic with it."""
    schema = pa.schema([("customer", pa.string()), ("amount", pa.float64())])
    found: list[dict[str, Any]] = []

    def read() -> None:
        with jobpipe.subscribe("alerts", name="reader", starting="earliest", config=own.config()) as alerts:
            for batch in alerts:
                found.extend(batch.to_pylist())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    patient = own.config(**{"jobpipe.coordinator.linger": "120s"})  # until the flow has come, on a busy machine too
    with jobpipe.publisher("orders", schema=schema, config=patient, required_subscribers=["alerts"]) as orders:
        orders.write([{"customer": "a", "amount": 5.0}, {"customer": "b", "amount": 500.0}])
        orders.close(final=True)
        with pytest.raises(SystemExit) as ended:
            page("flow-spark", FLOW)
    assert ended.value.code == 0
    reader.join(PATIENCE)
    assert found == [{"customer": "b", "score": pytest.approx(5.0)}]


@pytest.mark.core
def test_the_moved_job(spark: SparkSession, page: Run, tmp_path: Path) -> None:
    """docs/kafka.md: publisher and subscriber, after."""
    found = while_it_runs(
        spark,
        lambda: page("writer-after", KAFKA, orders=orders(spark, tmp_path / "moved")),
        lambda: amounts(spark, page("reader-after")["orders"], "moved"),
    )
    assert found == {"a": 1.5, "b": 2.5}


def test_the_moved_job_by_format(spark: SparkSession, page: Run, tmp_path: Path) -> None:
    """docs/kafka.md: the publisher, after, with the format alone changed; and a batch job."""
    moved = orders(spark, tmp_path / "by-format")
    found = while_it_runs(
        spark,
        lambda: page("writer-by-format", KAFKA, orders=moved),
        lambda: amounts(spark, page("reader-after")["orders"], "by_format"),
    )
    assert found == {"a": 1.5, "b": 2.5}
    for _ in range(2):
        page("batch-by-format", df=spark.sql("SELECT 'c' AS customer, 3.5D AS amount"))
    read = spark.read.format("jobpipe").option("subscribe", "payments").load()
    assert [row["customer"] for row in read.collect()] == ["c"]


def test_a_value_column_is_kept(spark: SparkSession, page: Run, tmp_path: Path) -> None:
    """U13: a JSON value column, on both sides."""
    found = while_it_runs(
        spark,
        lambda: page("keep-value-writer", KAFKA, orders=orders(spark, tmp_path / "kept")),
        lambda: amounts(spark, page("keep-value-reader")["orders"], "kept"),
    )
    assert found == {"a": 1.5, "b": 2.5}


def test_one_query_for_several_topics(spark: SparkSession, page: Run, own: Place, tmp_path: Path) -> None:
    """docs/kafka.md: Kafka's column `topic`."""
    df = orders(spark, tmp_path / "kinds").withColumn("kind", F.when(F.col("customer") == "a", "new").otherwise("paid"))

    def customers(topic: str) -> list[str]:
        rows = until(lambda: own.read(spark, topic).collect(), f"a row of {topic}")
        return [row["customer"] for row in rows]

    found = while_it_runs(
        spark,
        lambda: page("by-kind", df=df),
        lambda: {topic: customers(topic) for topic in ("orders-new", "orders-paid")},
    )
    assert found == {"orders-new": ["a"], "orders-paid": ["b"]}


def test_a_partitioner_of_ones_own(spark: SparkSession, page: Run, own: Place) -> None:
    """docs/kafka.md: a function that chooses the partition."""
    sink = page("by-region")["sink"]
    sink(spark.sql("SELECT 'EU' AS region UNION ALL SELECT 'US'"), 0)
    rows = own.read(spark, "orders", includeMetadata=True).collect()
    assert {row["region"]: row["_jobpipe"]["partition"] for row in rows} == {"EU": 0, "US": 3}


def test_a_consumer_that_is_away(spark: SparkSession, page: Run, own: Place) -> None:
    """U13: how long it may be away: what is unread stays in the spool, and `jobpipe topics serve` serves it."""
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
    from jobpipe.arrow.hash_partitioner import hash_numbers

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
