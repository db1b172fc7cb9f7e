"""Names of datasets are those of OpenLineage; what is not certain has none."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from jobpipe.control.lineage.dataset_names import (
    DatasetName,
    file_dataset,
    is_known,
    kafka_datasets,
    table_dataset,
    topic_dataset,
)
from tests.control.lineage.lineage_kit import config_of


def test_a_topic_is_named_by_its_registry_in_whatever_order_that_lists_its_servers(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    other = dataclasses.replace(config, registry_connect="ZK1:2181,zk2:2181/chroot")
    expected = DatasetName("jobpipe://zk1:2181/chroot/jobpipe/topics", "orders")
    assert topic_dataset(config, "orders") == topic_dataset(other, "orders") == expected


def test_topics_of_two_homes_and_two_namespaces_are_not_the_same(tmp_path: Path) -> None:
    config = dataclasses.replace(config_of(tmp_path), registry_connect="embedded")
    one = topic_dataset(config, "orders")
    assert one.namespace == f"jobpipe://{socket.gethostname().lower()}{tmp_path}/home/jobpipe/topics"
    assert one != topic_dataset(dataclasses.replace(config, home=tmp_path / "other"), "orders")
    assert one != topic_dataset(dataclasses.replace(config, namespace="/test/topics"), "orders")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/in", ("file", "/data/in")),
        ("/data//in/", ("file", "/data/in")),
        ("file:///data/in", ("file", "/data/in")),
        ("file:/data/in", ("file", "/data/in")),
        ("s3a://bucket/a/b/", ("s3://bucket", "a/b")),
        ("s3://bucket", ("s3://bucket", "/")),
        ("gs://bucket/a", ("gs://bucket", "a")),
        ("hdfs://name:8020/a/b", ("hdfs://name:8020", "/a/b")),
        ("HDFS://Name:8020//a/./x/../b/", ("hdfs://name:8020", "/a/b")),
        ("s3a://bucket/a#1?b", ("s3://bucket", "a#1?b")),
        ("file:///data/a#1?b", ("file", "/data/a#1?b")),
        ("//data/in", ("file", "/data/in")),
        ("abfss://box@account.dfs.core.windows.net/a", ("abfss://box@account.dfs.core.windows.net", "a")),
        ("/data/${run.lower}/x", ("file", "/data")),
        ("hdfs:///a/b", None),
        ("s3a://user:password@bucket/a", None),
        ("data/in", None),
    ],
)
def test_files_are_named_by_their_file_system(path: str, expected: tuple[str, str] | None) -> None:
    found = file_dataset(path)
    assert found == (None if expected is None else DatasetName(*expected))


def test_a_pattern_is_the_folder_below_which_it_matches() -> None:
    assert file_dataset("/data/day=*/{a,b}", is_pattern=True) == DatasetName("file", "/data")
    assert file_dataset("/data/\\[x\\]/*.csv", is_pattern=True) == DatasetName("file", "/data/[x]")
    assert file_dataset("s3a://bucket/in/*.json", is_pattern=True) == DatasetName("s3://bucket", "in")
    assert file_dataset("/data/day=*") == DatasetName("file", "/data/day=*")  # the folder of a sink is a name


@pytest.mark.parametrize(
    ("url", "table", "expected"),
    [
        ("jdbc:postgresql://db/shop", "orders", ("postgres://db:5432", "shop.public.orders")),
        ("jdbc:postgresql://db:5433/shop?sslmode=require", "Sales.Orders", ("postgres://db:5433", "shop.sales.orders")),
        ("jdbc:postgresql://db/shop", '"Sales"."Orders"', ("postgres://db:5432", "shop.Sales.Orders")),
        ("jdbc:postgresql://db/shop", 'Sales."My Orders"', ("postgres://db:5432", "shop.sales.My Orders")),
        ("jdbc:postgresql://db/shop", '"MyOrders"', ("postgres://db:5432", "shop.public.MyOrders")),
        ("jdbc:postgresql://db/shop", '"a.b"', None),
        ("jdbc:mysql://db/shop", "orders", ("mysql://db:3306", "shop.orders")),
        ("jdbc:mysql://db/shop", "`my orders`", ("mysql://db:3306", "shop.my orders")),
        ("jdbc:sqlite:/data/shop.db?mode=ro", "main.orders", ("sqlite:///data/shop.db", "orders")),
        ("jdbc:mariadb://db/shop", "other.orders", ("mysql://db:3306", "other.orders")),
        ("jdbc:sqlite:/data/shop.db", "orders", ("sqlite:///data/shop.db", "orders")),
        ("jdbc:postgresql://db/shop?currentSchema=x", "orders", None),
        ("jdbc:postgresql://one,two/shop", "orders", None),
        ("jdbc:postgresql://db/shop", "(SELECT * FROM orders) AS o", None),
        ("jdbc:oracle:thin:@db:1521/shop", "orders", None),
        ("jdbc:postgresql://db:port/shop", "orders", None),
    ],
)
def test_tables_are_named_by_their_server(url: str, table: str, expected: tuple[str, str] | None) -> None:
    found = table_dataset(url, table, exact=False)
    assert found == (None if expected is None else DatasetName(*expected))


def test_a_table_of_jdbc_upsert_is_named_as_in_the_database() -> None:
    found = table_dataset("postgresql://me@db/shop", "Sales.Orders", exact=True)
    assert found == DatasetName("postgres://db:5432", "shop.Sales.Orders")
    found = table_dataset("postgresql://me@db/shop", "My Orders", exact=True)
    assert found == table_dataset("jdbc:postgresql://db/shop", '"My Orders"', exact=False)


def test_topics_of_kafka_are_named_by_their_first_server() -> None:
    found = kafka_datasets("SSL://kafka2:9092, kafka1:9092", ("a", "b"))
    assert found == (DatasetName("kafka://kafka1:9092", "a"), DatasetName("kafka://kafka1:9092", "b"))


def test_what_is_secret_or_of_each_run_is_not_known() -> None:
    assert is_known("jdbc:mysql://db/shop")
    assert not is_known("enc:" + "A" * 60)
    assert not is_known("env:KAFKA_SERVERS")
    assert not is_known("file:servers.txt")
    assert not is_known("orders_${run.lower}")
    assert not is_known(3)
