"""docs/kafka.md: complete, and true of the code; kafka_page.yaml names a test for each of its rows."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
import yaml
from pyspark.sql.types import StructType

from jobpipe.config import keys, load
from jobpipe.config.definitions.sink_arguments import SINK_ARGUMENTS
from jobpipe.config.definitions.source_options import SOURCE_OPTIONS
from jobpipe.errors import ConfigError
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.spark.schema.metadata_columns import METADATA, with_metadata
from tests.docs.pages import block

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "kafka.md").read_text()

# Spark's KafkaSourceProvider, and its guide for those that are read elsewhere; but for any other kafka.*
OF_THE_SOURCE = {
    *("kafka.bootstrap.servers", "subscribe", "subscribePattern", "assign", "failOnDataLoss"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    *("groupIdPrefix", "kafka.group.id", "includeHeaders"),
}
COLUMNS_OF_THE_SOURCE = {"key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"}
OF_THE_SINK = {
    *(f"column `{name}`" for name in ("key", "value", "headers", "topic", "partition")),
    *(f"option `{name}`" for name in ("topic", "includeHeaders", "kafka.bootstrap.servers", "kafka.partitioner.class")),
}
PROPERTIES = {
    *(f"spark.kafka.consumer.cache.{name}" for name in ("capacity", "timeout", "jmx.enable")),
    *(f"spark.kafka.{name}.cache.timeout" for name in ("consumer.fetchedData", "producer")),
    *(
        f"spark.kafka.{name}.cache.evictorThreadRunInterval"
        for name in ("consumer", "consumer.fetchedData", "producer")
    ),
    *("spark.kafka.clusters.${cluster}.*", "spark.security.credentials.kafka.enabled"),
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching",
}
BY_KAFKAS_NAME = ", or by Kafka's name"


def rows(of: str) -> list[list[str]]:
    """Return the cells of the table whose first heading this is."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for table in re.findall(rf"^\| {re.escape(of)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
        for line in table.splitlines()
    ]


def names(cell: str) -> list[str]:
    """Return what stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def here() -> dict[str, str]:
    """Return what the page says of each option of Kafka's source: another name, the same, or not needed."""
    return {names(row[0])[0]: row[1] for row in rows("Spark's Kafka source") if names(row[0])[0] in OF_THE_SOURCE}


@functools.cache
def defined_in(file: str) -> set[str]:
    """Return the names of a file's tests."""
    return {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_option_of_kafka_is_there() -> None:
    """Of source and sink, their columns, and Spark's properties; and no other."""
    of_source = [name for row in rows("Spark's Kafka source") for name in names(row[0])]
    assert sorted(of_source) == sorted([*OF_THE_SOURCE, *COLUMNS_OF_THE_SOURCE, "kafka.*"])
    assert {row[0] for row in rows("Spark's Kafka sink")} >= OF_THE_SINK
    assert {name for row in rows("Spark's Kafka") for name in names(row[0])} == PROPERTIES


def test_every_row_has_a_test_that_there_is() -> None:
    """By file and name; a row without a test is a claim."""
    shown = yaml.safe_load((ROOT / "tests" / "docs" / "kafka_page.yaml").read_text())
    tables = {what: [row[0] for row in rows(what)] for what in shown if what != "Event time"}
    assert [len(cells) for cells in tables.values()] == [31, 13, 5]
    assert {what: list(shown[what]) for what in tables} == tables
    named = [test.split("::") for section in shown.values() for tests in section.values() for test in tests]
    assert all(tests for section in shown.values() for tests in section.values())
    assert [f"{file}::{test}" for file, test in named if test not in defined_in(file)] == []


def test_what_is_said_to_be_here_is_here() -> None:
    """Options of the source, arguments of the sink, keys of the configuration, fields of the metadata column."""
    fields = [f"{METADATA}.{field.name}" for field in with_metadata(StructType())[METADATA].dataType.fields]
    options = {name for about in SOURCE_OPTIONS for name in (about.name, *about.also)}
    known = {*options, *fields, *(about.name for about in SINK_ARGUMENTS), *(key.name for key in keys())}
    said = [row[1] for what in (" source", " sink", "") for row in rows(f"Spark's Kafka{what}")]
    # What stands for something that is no option.
    words = {"foreachBatch", "sink(df, 0)", 'writeStream.format("jobpipe")', 'write.format("jobpipe").save()'}
    assert {name for cell in said for name in names(cell)} - words <= known


def test_what_has_kafkas_name_is_said_to() -> None:
    """The same name, or a name that is taken too: no such option of ours is left out, and none is made up."""
    for about in SOURCE_OPTIONS:
        if about.name in OF_THE_SOURCE:
            assert here()[about.name] == "same"
        for name in OF_THE_SOURCE.intersection(about.also):
            assert here()[name] == f"`{about.name}`{BY_KAFKAS_NAME}"
    ours = {name for about in SOURCE_OPTIONS for name in (about.name, *about.also)}
    assert {name for name, what in here().items() if what == "same" or BY_KAFKAS_NAME in what} == ours & OF_THE_SOURCE


NOT_OURS = [name for name, what in here().items() if what != "same" and BY_KAFKAS_NAME not in what]


@pytest.mark.parametrize("name", [*NOT_OURS, "kafka.fetch.max.bytes"])
def test_what_is_not_needed_is_refused(name: str) -> None:
    """An error that says which option does its work, if one does."""
    with pytest.raises(ConfigError) as caught:
        SourceOptions.parse({"subscribe": "orders", name: "1"})
    [problem] = caught.value.fields["problems"]
    assert problem["key"].lower() == name.lower()
    if name in NOT_OURS:
        assert f"did you mean {names(here()[name])[0]}?" in caught.value.message


def test_the_ensemble_of_the_page(tmp_path: Path) -> None:
    """U13: where a ZooKeeper comes from."""
    file = tmp_path / "jobpipe.yaml"
    file.write_text(block("docs/kafka.md", "ensemble"))
    assert load(environ={}).embedded
    config = load(file, environ={})
    assert (config.embedded, config.registry_connect) == (False, "zk1:2181,zk2:2181,zk3:2181")
