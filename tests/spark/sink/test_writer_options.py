"""From the texts of options to what one ``start()`` or ``save()`` of the format writes; no session is needed here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from jobpipe import JobPipeSink
from jobpipe.config.definitions.writer_options import MAX_BATCH_ID, REFUSED, WRITER_OPTIONS
from jobpipe.errors import ConfigError
from jobpipe.spark.options.write_options import WriterOptions
from jobpipe.spark.session.launch_settings import LaunchSettings
from tests.spark import kit

SCHEMA = StructType().add("id", LongType()).add("note", StringType())


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find no configuration of the machine's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def parse(
    given: Mapping[str, str] | None = None,
    *,
    streaming: bool = True,
    launch: LaunchSettings | None = None,
    settings: Mapping[str, str] | None = None,
    **more: str,
) -> WriterOptions:
    """Parse the options of a writer of the topic orders."""
    options = {"topic": "orders", **(given or {}), **more}
    return WriterOptions.parse(options, launch or LaunchSettings(), settings or {}, streaming=streaming)


def refused(given: Mapping[str, str] | None = None, *, streaming: bool = True, **more: str) -> dict[str, str]:
    """Return what was expected of each option that is wrong, by its name."""
    with pytest.raises(ConfigError) as caught:
        parse({**(given or {}), **more}, streaming=streaming)
    problems = caught.value.fields["problems"]
    found = {problem["key"]: problem["expected"] for problem in problems}
    assert len(found) == len(problems), "told twice"
    count = f"{len(problems)} wrong option{'s' * (len(problems) > 1)}"
    assert caught.value.message.startswith(f"format('jobpipe') to write: {count}\n")
    return found


# -- names -------------------------------------------------------------------------------------------------------------


def test_they_are_the_sinks_arguments_and_a_few() -> None:
    """Each with its own name, also where underscores are left out."""
    names = [about.name for about in WRITER_OPTIONS]
    arguments = [name for name in inspect.signature(JobPipeSink).parameters if name not in ("overrides", "replace")]
    assert names == [*arguments, "series", "batch_id", "final"]
    bare = {name.replace("_", "") for name in names}
    assert len(bare) == len(names)
    assert not bare & {name.replace("_", "") for name in REFUSED}


@pytest.mark.parametrize(
    "names",
    [
        ("partition_by", "required_subscribers", "min_subscribers", "on_new_checkpoint"),
        ("partitionBy", "requiredSubscribers", "minSubscribers", "onNewCheckpoint"),
        ("partitionby", "requiredsubscribers", "minsubscribers", "onnewcheckpoint"),  # as Spark passes them on
        ("PARTITION_BY", "Required_Subscribers", "MINSUBSCRIBERS", "on_NewCheckpoint"),
    ],
)
def test_names_are_taken_in_each_way_of_writing_them(names: tuple[str, ...]) -> None:
    options = parse(dict(zip(names, ("id", "billing", "2", "refuse"), strict=True)))
    assert options.partitioner.columns == ("id",)
    assert options.required_subscribers == ("billing",)
    assert options.min_subscribers == 2
    assert options.on_new_checkpoint == "refuse"


def test_what_is_left_out() -> None:
    """And what is empty, as a setting that a template has not filled."""
    for given in ({}, {"name": "", "partition_by": "", "parallelism": "null", "series": ""}):
        options = parse(given)
        assert (options.topic, options.name, options.declared) == ("orders", None, None)
        assert (options.required_subscribers, options.min_subscribers, options.on_new_checkpoint) == ((), 0, "publish")
        assert (options.series, options.batch_id, options.final) == (None, None, False)
        assert (options.partitioner.kind, options.parallelism, options.case_sensitive) == ("fixed", 2, False)


def test_sparks_own_options_are_left_alone() -> None:
    assert parse(checkpointLocation="/checkpoints/q", queryname="q").topic == "orders"


def test_what_the_launch_says() -> None:
    conf = {"spark.master": "local[7]", "spark.app.name": "nightly", "spark.sql.caseSensitive": "TRUE"}
    options = parse(launch=LaunchSettings(conf))
    assert (options.parallelism, options.application, options.case_sensitive) == (7, "nightly", True)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ("a",)),
        ("a,b", ("a", "b")),
        (" a , b,,", ("a", "b")),
        ('["a", "b"]', ("a", "b")),
        (' ["a, b"]', ("a, b",)),  # a comma in a name
        ("[]", ()),
        (",", ()),
    ],
)
def test_lists(text: str, expected: tuple[str, ...]) -> None:
    """Columns may have any name, so there is JSON too."""
    assert parse(partition_by=text).partitioner.columns == expected
    if "a, b" not in expected:
        assert parse(required_subscribers=text).required_subscribers == expected


@pytest.mark.parametrize("text", ["[", '["a"', "[1]", '[["a"]]', '[""]', "[null]", "[" * 100_000])
def test_what_is_no_list(text: str) -> None:
    assert "as a JSON list" in refused(partition_by=text)["partition_by"]
    assert "as a JSON list" in refused(required_subscribers=text)["required_subscribers"]


def test_names_of_subscribers_are_names() -> None:
    assert list(refused(required_subscribers="a,b/c")) == ["required_subscribers"]


def test_a_schema_is_its_json() -> None:
    assert parse(schema=SCHEMA.json()).declared == SCHEMA
    for text in ("id bigint", "{}", "[]", '{"type": "struct"}', '{"type": "struct", "fields": [{"name": 3}]}'):
        assert "StructType" in refused(schema=text)["schema"], text


def test_a_function_is_found_by_its_name() -> None:
    options = parse(partitioner="tests.spark.kit:by_id")
    assert options.partitioner.kind == "function"
    assert options.partitioner.function is kit.by_id
    for text in ("random", "os:", ":os", "os.path", "os:no such", "a b:c", "os:getcwd()"):
        assert "a function as module:name" in refused(partitioner=text)["partitioner"], text
    assert "can be imported" in refused(partitioner="os:no_such")["partitioner"]
    assert "can be imported" in refused(partitioner="no_such_module_of_ours:name")["partitioner"]
    assert refused(partitioner="os:sep") == {"partitioner": "a function"}


@pytest.mark.parametrize("partitioner", ["fixed", "round-robin", "hash"])
def test_the_other_partitioners(partitioner: str) -> None:
    given = {"partitioner": partitioner, **({"partition_by": "id"} if partitioner == "hash" else {})}
    assert parse(given).partitioner.kind == partitioner


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"partitioner": "hash"}, "needs partition_by"),
        ({"partitioner": "fixed", "partition_by": "id"}, "leave one of the two out"),
        ({"partitioner": "tests.spark.kit:our_lines"}, "orders"),  # takes other arguments
    ],
)
def test_partitioners_that_do_not_fit(given: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse(given)


# -- keys of the configuration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jobpipe.acks.timeout", "acks.timeout", "acks_timeout", "JobPipe.Acks.Timeout"])
def test_keys_with_and_without_our_name(name: str) -> None:
    assert parse({name: "7s"}).config.acks_timeout == 7.0


def test_options_that_are_keys_too() -> None:
    """They win over Spark's properties, and over what Spark would do."""
    settings = {"spark.jobpipe.acks": "stored", "spark.jobpipe.parallelism": "5", "spark.jobpipe.acks.timeout": "9s"}
    options = parse(settings=settings, launch=LaunchSettings({"spark.master": "local[7]"}))
    assert (options.config.acks, options.parallelism, options.config.acks_timeout) == ("stored", 5, 9.0)
    for acks, parallelism in (("acks", "parallelism"), ("jobpipe.acks", "jobpipe.parallelism")):
        options = parse({acks: "all", parallelism: "3"}, settings=settings, required_subscribers="billing")
        assert (options.config.acks, options.parallelism, options.config.acks_timeout) == ("all", 3, 9.0)


@pytest.mark.parametrize("name", ["security.ssl.enabled", "SECURITY.ssl.enabled"])
def test_keys_of_security(name: str) -> None:
    assert parse({name: "false"}).config.tls is False


def test_wrong_keys() -> None:
    assert list(refused({"acks.timeout": "soon"})) == ["jobpipe.acks.timeout"]
    assert "did you mean" in refused({"jobpipe.acks.timeot": "7s"})["jobpipe.acks.timeot"]
    assert list(refused({"acks": "some"})) == ["acks"]


# -- what is wrong -----------------------------------------------------------------------------------------------------

BAD = {
    "name": "two\nlines",
    "parallelism": "0",
    "partition_by": "[1]",
    "partitioner": "random",
    "schema": "id bigint",
    "acks": "some",
    "required_subscribers": "x/y",
    "min_subscribers": "-1",
    "write_path": "collect",
    "on_new_checkpoint": "ask",
    "config": "/nowhere/jobpipe.yaml",
    "series": "x/y",
    "batch_id": "-1",
    "final": "perhaps",
}


def test_every_option_has_a_bad_value() -> None:
    assert ["topic", *BAD] == [about.name for about in WRITER_OPTIONS]


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("streaming", [True, False])
def test_a_bad_value_is_told_by_name(name: str, streaming: bool) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({name: BAD[name]}, streaming=streaming)
    assert name in caught.value.message or BAD[name] in caught.value.message


def test_all_at_once() -> None:
    """Options, names that are none, what is refused, and keys of the configuration."""
    given = {name: value for name, value in BAD.items() if name != "config"}
    strange = {"topik": "x", "replace": "true", "path": "orders", "subscribe": "orders", "acks.timeout": "soon"}
    with pytest.raises(ConfigError) as caught:
        WriterOptions.parse({**given, **strange}, LaunchSettings(), {}, streaming=False)
    message = caught.value.message
    keys = [problem["key"] for problem in caught.value.fields["problems"]]
    assert sorted(keys) == sorted(["topic", *given, "topik", "replace", "path", "subscribe", "jobpipe.acks.timeout"])
    assert "did you mean topic?" in message
    for words in REFUSED.values():
        assert words in message


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "x" * 129])
def test_a_topic_is_a_name(topic: str) -> None:
    assert list(refused(topic=topic)) == ["topic"]


@pytest.mark.parametrize("name", ["series", "batch_id", "batchId", "final"])
def test_a_query_has_batches_of_its_own(name: str) -> None:
    """Ids of batches, and the id of the query that they count by, stand in its checkpoint; and it has no last one."""
    value = {"series": "nightly", "final": "true"}.get(name, "0")
    found = refused({name: value})
    assert list(found) == [name.replace("I", "_i")]
    assert "for batch writes only" in next(iter(found.values()))
    assert parse(final="false").final is False


def test_a_batch_of_a_series() -> None:
    options = parse({"batchId": str(MAX_BATCH_ID)}, series="nightly", final="true", streaming=False)
    assert (options.series, options.batch_id, options.final) == ("nightly", MAX_BATCH_ID, True)
    assert parse(series="nightly", batch_id="0", streaming=False).batch_id == 0
    assert refused(series="nightly", streaming=False) == {"series": "batch_id as well"}
    for batch_id in ("0", "7"):
        assert refused(batch_id=batch_id, streaming=False) == {"batch_id": "series as well"}
    assert "batch_id" in refused(series="nightly", batch_id=str(MAX_BATCH_ID + 1), streaming=False)


# -- the writer's id ---------------------------------------------------------------------------------------------------


def test_a_query_is_one_writer_whoever_makes_it() -> None:
    """Spark makes a writer for each micro-batch, in any process: the same options are the same query."""
    given = {"partition_by": "id", "checkpointlocation": "/checkpoints/a"}
    first = parse(given)
    again = parse(dict(reversed(given.items())), launch=LaunchSettings({"spark.app.name": "x"}))
    assert first.writer == again.writer
    assert len(first.writer) == 32
    assert int(first.writer, 16) >= 0
    others = [
        parse(given, topic="other"),
        parse(given, checkpointlocation="/checkpoints/b"),
        parse(given, queryname="b"),
        parse(given, acks="stored"),
        parse({}),
    ]
    assert len({options.writer for options in [first, *others]}) == 1 + len(others)


def test_a_batch_write_is_always_a_writer_of_its_own() -> None:
    """Two at the same time may have the same options."""
    given = {"series": "nightly", "batch_id": "7"}
    assert len({parse(given, streaming=False).writer for _ in range(3)} | {parse().writer}) == 4


def test_one_option_by_two_names() -> None:
    found = refused({"partition_by": "a", "partitionBy": "b"})
    assert found == {"partitionBy": "it once; partition_by is the same option"}
