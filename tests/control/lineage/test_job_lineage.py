"""What a job reads and writes, by its pipeline's file alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobpipe.control.lineage.job_lineage import DatasetLineage, JobLineage, PipelineLineage
from tests.control.lineage.lineage_kit import config_of, pipeline_of

TOPICS = "jobpipe://zk1:2181/chroot/jobpipe/topics"
CSV = {"type": "csv", "path": "in", "schema": "id BIGINT, name STRING"}
CONSOLE = {"type": "console"}


def described(folder: Path, job: str, jobs: dict[str, Any], **section: Any) -> JobLineage:
    found = PipelineLineage(config_of(folder), pipeline_of(folder, jobs, **section)).job(job)
    assert found is not None
    return found


def named(datasets: tuple[DatasetLineage, ...]) -> list[tuple[str, str]]:
    return [(each.dataset.namespace, each.dataset.name) for each in datasets]


def made(dataset: DatasetLineage) -> dict[str, list[str]]:
    return {
        name: sorted(f"{each.column} {each.use}{' masked' * each.masked}" for each in origins)
        for name, origins in (dataset.made_of or {}).items()
    }


def through(folder: Path, *transforms: dict[str, Any], source: dict[str, Any] | None = None) -> DatasetLineage:
    """Return the topic that a job writes whose rows pass transforms."""
    job = {"source": source or CSV, "transform": list(transforms), "sink": {"type": "jobpipe", "topic": "out"}}
    (found,) = described(folder, "job", {"job": job}).outputs
    return found


def test_a_topic_is_one_dataset_for_who_publishes_it_and_who_reads_it(tmp_path: Path) -> None:
    """With the prefix; and its columns are those that its publisher's rows have."""
    jobs = {
        "publish": {"source": CSV, "sink": {"type": "jobpipe", "topic": "orders"}},
        "read": {"source": {"type": "jobpipe", "subscribe": "orders"}, "sink": {"type": "json", "path": "out"}},
    }
    publish = described(tmp_path, "publish", jobs, **{"topic-prefix": "test."})
    read = described(tmp_path, "read", jobs, **{"topic-prefix": "test."})
    assert named(publish.inputs) == [("file", f"{tmp_path}/in")]
    assert named(publish.outputs) == named(read.inputs) == [(TOPICS, "test.orders")]
    assert named(read.outputs) == [("file", f"{tmp_path}/out")]
    columns = (("id", "bigint"), ("name", "string"))
    assert publish.outputs[0].columns == read.inputs[0].columns == read.outputs[0].columns == columns
    assert made(read.outputs[0]) == {"id": ["id IDENTITY"], "name": ["name IDENTITY"]}


def test_a_job_that_says_another_registry_names_other_topics(tmp_path: Path) -> None:
    source = {"type": "jobpipe", "subscribe": "orders"}
    plain = {"job": {"source": source, "sink": CONSOLE}}
    assert named(described(tmp_path, "job", plain).inputs) == [(TOPICS, "orders")]
    other = {"job": {"source": {**source, "registerserver.topic.storage": "/other"}, "sink": CONSOLE}}
    assert named(described(tmp_path, "job", other).inputs) == [("jobpipe://zk1:2181/chroot/other", "orders")]
    publish = {"publish": {"source": CSV, "sink": {"type": "jobpipe", "topic": "orders"}}}
    assert described(tmp_path, "job", {**publish, **plain}).inputs[0].columns
    assert not described(tmp_path, "job", {**publish, **other}).inputs[0].columns, "that is another topic"


def test_tables_files_and_topics_of_kafka_are_named_as_others_name_them(tmp_path: Path) -> None:
    kafka = {"type": "kafka", "options": {"kafka.bootstrap.servers": "k:9092", "subscribe": "a,b"}}
    table = {"type": "jdbc", "options": {"url": "jdbc:postgresql://db/shop", "dbtable": "orders"}}
    upsert = {"type": "jdbc-upsert", "url": "jdbc:mysql://db/shop", "table": "orders", "keys": ["id"]}
    jobs: dict[str, Any] = {
        "stream": {"source": kafka, "sink": table},
        "batch": {
            "source": table,
            "sink": {"type": "parquet", "path": "s3a://b/x"},
            "execution": {"runtime-mode": "BATCH"},
        },
        "upsert": {"source": kafka, "sink": upsert},
        "none": {"source": {"type": "rate"}, "sink": CONSOLE},
    }
    stream = described(tmp_path, "stream", jobs)
    assert (named(stream.inputs), named(stream.outputs)) == (
        [("kafka://k:9092", "a"), ("kafka://k:9092", "b")],
        [("postgres://db:5432", "shop.public.orders")],
    )
    batch = described(tmp_path, "batch", jobs)
    assert (named(batch.inputs), named(batch.outputs)) == (
        [("postgres://db:5432", "shop.public.orders")],
        [("s3://b", "x")],
    )
    assert (stream.is_stream, batch.is_stream) == (True, False)
    assert named(described(tmp_path, "upsert", jobs).outputs) == [("mysql://db:3306", "shop.orders")]
    none = described(tmp_path, "none", jobs)
    assert (none.inputs, none.outputs) == ((), ())


def test_what_a_secret_names_has_no_name(tmp_path: Path) -> None:
    def read(servers: str) -> list[tuple[str, str]]:
        kafka = {"type": "kafka", "options": {"kafka.bootstrap.servers": servers, "subscribe": "a,"}}
        return named(described(tmp_path, "job", {"job": {"source": kafka, "sink": CONSOLE}}).inputs)

    assert read("k:9092") == [("kafka://k:9092", "a")]
    assert read("env:SERVERS") == []


def test_a_topic_has_its_columns_in_the_order_of_its_schema(tmp_path: Path) -> None:
    sink = {"type": "jobpipe", "topic": "out", "schema": "name STRING, id INT"}
    (found,) = described(tmp_path, "job", {"job": {"source": CSV, "sink": sink}}).outputs
    assert found.columns == (("name", "string"), ("id", "int"))
    assert made(found) == {"name": ["name IDENTITY"], "id": ["id IDENTITY"]}


def test_a_stream_that_ends_by_itself_is_a_batch(tmp_path: Path) -> None:
    jobs = {
        "on": {"source": CSV, "sink": CONSOLE},
        "ends": {"source": CSV, "sink": CONSOLE, "trigger": {"available-now": True}},
    }
    assert [described(tmp_path, job, jobs).is_stream for job in jobs] == [True, False]


def test_dead_letters_are_a_dataset_whose_columns_are_not_the_rows(tmp_path: Path) -> None:
    jobs = {"job": {"source": CSV, "sink": {"type": "jobpipe", "topic": "out"}, "errors": {"tolerance": "all"}}}
    rows, dead = described(tmp_path, "job", jobs).outputs
    assert (rows.topic, dead.topic) == ("out", "shop.job.dead-letters")
    assert rows.columns
    assert not dead.columns
    assert not dead.made_of


def test_a_flow_reads_and_publishes_topics_and_its_function_says_nothing_of_columns(tmp_path: Path) -> None:
    flow = {
        "type": "flow",
        "source": {"type": "jobpipe", "subscribe": "orders"},
        "function": "m:f",
        "publish": "checked",
        "schema": "id BIGINT",
    }
    found = described(tmp_path, "job", {"job": flow})
    assert (named(found.inputs), named(found.outputs)) == ([(TOPICS, "orders")], [(TOPICS, "checked")])
    assert found.outputs[0].columns == (("id", "bigint"),)
    assert not found.outputs[0].made_of


def test_an_application_is_a_job_without_datasets(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("")
    assert described(tmp_path, "job", {"job": {"application": "own.py"}}) == JobLineage(is_stream=True)


def test_sql_is_told_in_order(tmp_path: Path) -> None:
    transforms = [{"projection": "*, 1 AS one", "filter": "id > 1"}, {"query": "SELECT id FROM input\n"}]
    found = described(tmp_path, "job", {"job": {"source": CSV, "transform": transforms, "sink": CONSOLE}})
    assert found.sql == "SELECT *, 1 AS one FROM input WHERE id > 1;\nSELECT id FROM input"


def test_columns_are_followed_through_transforms_of_columns(tmp_path: Path) -> None:
    found = through(
        tmp_path,
        {"type": "Cast", "spec": "id:int32"},
        {"type": "ReplaceField", "renames": "name:customer"},
        {"type": "InsertField", "static.field": "shop", "static.value": "north"},
        {"type": "Filter", "predicate": "id > 3"},
        {"type": "MaskField", "fields": ["customer"]},
    )
    assert made(found) == {"id": ["id TRANSFORMATION"], "customer": ["name TRANSFORMATION masked"]}
    assert found.columns == (("id", "int"), ("customer", "string"), ("shop", None))
    assert [f"{each.column} {each.use}" for each in found.influences] == ["id FILTER"]


def test_masked_only_in_some_rows_is_not_masked(tmp_path: Path) -> None:
    found = through(tmp_path, {"type": "MaskField", "fields": ["name"], "predicate": "id > 3"})
    assert made(found)["name"] == ["name TRANSFORMATION"]


def test_after_code_no_column_is_certain(tmp_path: Path) -> None:
    """A star shows that it would be, without the code."""
    every = {"query": "SELECT *, id AS k FROM input"}
    assert made(through(tmp_path, every))["k"] == ["id IDENTITY"]
    code = {"type": "python", "row-function": "m:f", "schema": "id BIGINT"}
    assert not through(tmp_path, code, every).made_of
    assert not through(tmp_path, {"type": "HoistField", "field": "row"}).made_of


def test_of_a_topic_that_others_publish_the_columns_that_sql_names_are_certain(tmp_path: Path) -> None:
    source = {"type": "jobpipe", "subscribe": "elsewhere"}
    found = through(tmp_path, {"projection": "id, upper(name) AS n"}, source=source)
    assert made(found) == {"id": ["id IDENTITY"], "n": ["name TRANSFORMATION"]}
    assert not through(tmp_path, {"projection": "*"}, source=source).made_of


def test_columns_that_a_source_adds_are_not_those_of_its_topic(tmp_path: Path) -> None:
    source = {"type": "jobpipe", "subscribe": "orders"}
    jobs: dict[str, Any] = {
        "publish": {"source": CSV, "sink": {"type": "jobpipe", "topic": "orders"}},
        "plain": {"source": source, "sink": {"type": "json", "path": "out"}},
        "more": {"source": {**source, "includeMetadata": True}, "sink": {"type": "json", "path": "more"}},
    }
    assert described(tmp_path, "plain", jobs).outputs[0].columns == (("id", "bigint"), ("name", "string"))
    more = described(tmp_path, "more", jobs).outputs[0]
    assert not more.columns
    assert made(more) == {"id": ["id IDENTITY"], "name": ["name IDENTITY"]}


def test_several_topics_may_have_other_columns_each(tmp_path: Path) -> None:
    source = {"type": "jobpipe", "subscribe": "one,two"}
    found = described(
        tmp_path, "job", {"job": {"source": source, "transform": [{"projection": "id"}], "sink": CONSOLE}}
    )
    assert named(found.inputs) == [(TOPICS, "one"), (TOPICS, "two")]
    assert not through(tmp_path, {"projection": "id"}, source=source).made_of


def test_a_query_over_several_sources_tells_the_columns_of_each(tmp_path: Path) -> None:
    job = {
        "sources": {
            "orders": {**CSV, "path": "orders"},
            "cities": {"type": "csv", "path": "cities", "schema": "id BIGINT, city STRING"},
        },
        "transform": [{"query": "SELECT o.name, city FROM orders o JOIN cities c ON o.id = c.id"}],
        "sink": {"type": "json", "path": "out"},
        "execution": {"runtime-mode": "BATCH"},
    }
    (found,) = described(tmp_path, "job", {"job": job}).outputs
    origins = {name: [(each.dataset.name, each.column) for each in of] for name, of in (found.made_of or {}).items()}
    assert origins == {"name": [(f"{tmp_path}/orders", "name")], "city": [(f"{tmp_path}/cities", "city")]}
    assert {each.dataset.name for each in found.influences} == {f"{tmp_path}/orders", f"{tmp_path}/cities"}


def test_the_columns_of_a_topic_are_known_through_a_chain_and_a_circle_ends(tmp_path: Path) -> None:
    jobs = {
        "first": {"source": CSV, "sink": {"type": "jobpipe", "topic": "a"}},
        "second": {
            "source": {"type": "jobpipe", "subscribe": "a"},
            "transform": [{"projection": "id + 1 AS more, name"}],
            "sink": {"type": "jobpipe", "topic": "b"},
        },
        "third": {"source": {"type": "jobpipe", "subscribe": "b"}, "sink": {"type": "json", "path": "out"}},
        "circle": {"source": {"type": "jobpipe", "subscribe": "c"}, "sink": {"type": "jobpipe", "topic": "c"}},
    }
    third = described(tmp_path, "third", jobs)
    assert third.inputs[0].columns == (("more", None), ("name", "string"))
    assert made(third.outputs[0]) == {"more": ["more IDENTITY"], "name": ["name IDENTITY"]}
    circle = described(tmp_path, "circle", jobs)
    assert named(circle.inputs) == named(circle.outputs) == [(TOPICS, "c")]


def test_a_capture_reads_tables_and_writes_their_topics(tmp_path: Path) -> None:
    source = {"type": "postgres-cdc", "hostname": "db", "database-name": "shop", "username": "u"}
    jobs = {
        "changes": {"source": {**source, "tables": ["public.orders", "sales\\..*"]}},
        "read": {"source": {"type": "jobpipe", "subscribe": "public.orders"}, "sink": CONSOLE},
    }
    found = described(tmp_path, "changes", jobs, **{"topic-prefix": "test."})
    assert found.is_stream
    assert named(found.inputs) == [("postgres://db:5432", "shop.public.orders")]
    assert named(found.outputs) == named(described(tmp_path, "read", jobs, **{"topic-prefix": "test."}).inputs)
    assert named(found.outputs) == [(TOPICS, "test.public.orders")]
    assert found.outputs[0].columns == ()
