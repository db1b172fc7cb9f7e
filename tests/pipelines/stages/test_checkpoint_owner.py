"""What a checkpoint belongs to: which changes of a job are told, and which are its own affair."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobpipe.errors import CheckpointMismatch
from jobpipe.jobs.workloads.query_shape import NAME as QUERY
from jobpipe.jobs.workloads.query_shape import QueryShape, claim_shape
from jobpipe.jobs.workloads.workload import failure, with_checkpoint_error
from jobpipe.pipelines.checkpoints.checkpoint_owner import NAME, VERSION, Owner, Part, owner_of
from jobpipe.pipelines.checkpoints.checkpoint_storage import check_owner, claim, has_begun, storage_of
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.model.pipeline import Job
from jobpipe.pipelines.plugins.job_context import name_of_source
from tests.docs.troubleshooting import on_page

CSV: dict[str, Any] = {"type": "csv", "path": "in", "schema": "id BIGINT, name STRING"}
BROKERS = {"kafka.bootstrap.servers": "a:9092", "subscribe": "orders"}
KAFKA: dict[str, Any] = {"type": "kafka", "options": BROKERS}
SINK: dict[str, Any] = {"type": "json", "path": "out", "at-least-once": True}


def owner(folder: Path, source: object = CSV, sink: object = SINK, pipeline: str = "p", **more: object) -> Owner:
    """Return that of the job ``copy``."""
    return owner_of("/topics", pipeline, job_of(folder, source, sink, pipeline, **more))


def job_of(folder: Path, source: object = CSV, sink: object = SINK, pipeline: str = "p", **more: object) -> Job:
    """Return the job ``copy``."""
    file = folder / "p.yaml"
    job = {"source": source, "sink": sink, **more}
    file.write_text(yaml.safe_dump({"pipeline": {"name": pipeline}, "jobs": {"copy": job}}))
    file.chmod(0o600)
    return load_pipeline(file).jobs["copy"]


def begin(folder: Path) -> str:
    """Return the storage of a job whose first micro-batch has begun."""
    (folder / "state" / "copy" / "offsets").mkdir(parents=True)
    (folder / "state" / "copy" / "offsets" / "0").write_text("v1")
    return f"file:{folder}/state/copy"


TOPIC: dict[str, Any] = {"type": "jobpipe", "subscribe": "orders"}
TO_TOPIC: dict[str, Any] = {"type": "jobpipe", "topic": "t"}
MINE: dict[str, Any] = {"type": "spark", "format": "mine"}
PYTHON: dict[str, Any] = {"type": "python", "function": "m:f"}
UPSERT: dict[str, Any] = {"type": "jdbc-upsert", "url": "jdbc:postgresql://h/db", "table": "t", "keys": ["id"]}
ELSEWHERE = {"registerserver.topic.storage": "/other"}


def with_options(stage: dict[str, Any], **options: object) -> dict[str, Any]:
    """Return a stage with other options."""
    return {**stage, "options": {**stage.get("options", {}), **options}}


SOURCES = {
    "path": (CSV, {**CSV, "path": "in2"}, "/in2", "/in"),
    "type": (CSV, {**CSV, "type": "json"}, "json path ", "csv path "),
    "topic": (KAFKA, with_options(KAFKA, subscribe="payments"), "subscribe payments", "subscribe orders"),
    "brokers": (KAFKA, with_options(KAFKA, **{"kafka.bootstrap.servers": "b:1"}), "b:1", "a:9092"),
    "format": ({**CSV, "type": "spark", "format": "csv"}, {**CSV, "type": "spark", "format": "json"}, "json", "csv"),
    "option": (with_options(MINE, table="a"), with_options(MINE, table="b"), "table b", "table a"),
    "namespace": (TOPIC, {**TOPIC, **ELSEWHERE}, "storage /other", "jobpipe subscribe orders"),
    "names of files": (CSV, with_options(CSV, pathGlobFilter="*.b"), "pathglobfilter *.b", "csv path"),
    "all folders": (CSV, with_options(CSV, recursiveFileLookup=True), "recursivefilelookup true", "csv path"),
    "database's schema": (with_options(MINE, schema="a"), with_options(MINE, schema="b"), "schema b", "schema a"),
    "function": (
        with_options(PYTHON, function="x"),
        with_options({**PYTHON, "function": "m:g"}, function="x"),
        "function m:g",
        "function m:f",
    ),
    "secret place": (
        with_options(MINE, connectionString="env:A"),
        with_options(MINE, connectionString="env:B"),
        "connectionstring env:B",
        "connectionstring env:A",
    ),
    "changes": (
        {"type": "delta", "path": "/t"},
        with_options({"type": "delta", "path": "/t"}, readChangeFeed=True),
        "readchangefeed",
        "delta path /t",
    ),
}


@pytest.mark.parametrize("case", list(SOURCES))
def test_another_source_is_refused_once_a_micro_batch_has_begun(tmp_path: Path, case: str) -> None:
    one, other, now, before = SOURCES[case]
    storage = f"file:{tmp_path}/state/copy"
    claim(storage, owner(tmp_path, one))
    claim(storage, owner(tmp_path, one))
    claim(storage, owner(tmp_path, other))  # as one mends a mistake
    claim(storage, owner(tmp_path, one))
    begin(tmp_path)
    claim(storage, owner(tmp_path, one))
    with pytest.raises(CheckpointMismatch) as caught:
        claim(storage, owner(tmp_path, other))
    text = str(caught.value)
    on_page(caught.value, "CheckpointMismatch: the checkpoint in … does not fit job")
    assert now in text[: text.index(" when the checkpoint was begun")].rpartition(", and was ")[0]
    assert before in text.partition(", and was ")[2]
    for said in (storage, "among its sources", "--new-checkpoint copy", f"delete {storage}/{NAME}"):
        assert said in text
    (tmp_path / "state" / "copy" / NAME).unlink()
    claim(storage, owner(tmp_path, other))
    assert json.loads((tmp_path / "state" / "copy" / NAME).read_text())["pipeline"] == "p"


SAME = {
    "tuning": (CSV, with_options(CSV, maxFilesPerTrigger=3, header=True)),
    "columns": (CSV, {**CSV, "schema": "id BIGINT"}),
    "offsets of Kafka": (KAFKA, with_options(KAFKA, maxOffsetsPerTrigger=5, minPartitions=4)),
    "slash": (CSV, {**CSV, "path": "in/"}),
    "dot": (CSV, {**CSV, "path": "./in"}),
    "scheme": ({**CSV, "path": "/in"}, {**CSV, "path": "file:///in"}),
    "list of topics": ({**TOPIC, "subscribe": "a,b"}, {**TOPIC, "subscribe": ["b", "a"]}),
    "case of a key": (KAFKA, {**KAFKA, "options": {"Kafka.bootstrap.servers": "a:9092", "Subscribe": "orders"}}),
    "another broker": (KAFKA, with_options(KAFKA, **{"kafka.bootstrap.servers": "c:1, a:9092"})),
    "topics of Kafka": (with_options(KAFKA, subscribe="x,y"), with_options(KAFKA, subscribe="y,x")),
    "number": (with_options(MINE, n=1), with_options(MINE, n="1")),
    "truth": (with_options(MINE, on=True), with_options(MINE, on="true")),
}


@pytest.mark.parametrize("case", list(SAME))
def test_what_changes_no_source(tmp_path: Path, case: str) -> None:
    one, other = SAME[case]
    storage = begin(tmp_path)
    claim(storage, owner(tmp_path, one))
    claim(storage, owner(tmp_path, other))


def test_another_sink(tmp_path: Path) -> None:
    storage = begin(tmp_path)
    claim(storage, owner(tmp_path))
    with pytest.raises(CheckpointMismatch, match=r"among its sinks is now json path .*/out2, and was json .*/out when"):
        claim(storage, owner(tmp_path, sink={**SINK, "path": "out2"}))


SINKS = {
    "ledger": (UPSERT, {**UPSERT, "ledger": "other"}),
    "database": (UPSERT, {**UPSERT, "url": "jdbc:postgresql://h/other"}),
    "namespace": (TO_TOPIC, {**TO_TOPIC, **ELSEWHERE}),
    "option": (with_options(MINE, schema="a"), with_options(MINE, schema="b")),
}
SAME_SINKS = {
    "scheme": ({**SINK, "path": "/o"}, {**SINK, "path": "file:/o"}),
    "compression": ({**MINE, "path": "/o"}, with_options({**MINE, "path": "/o"}, compression="gzip")),
    "parameter": (UPSERT, {**UPSERT, "url": "jdbc:postgresql://h/db?sslmode=require"}),
    "port": (UPSERT, {**UPSERT, "url": "postgresql://h:5432/db"}),
    "timeout": (UPSERT, {**UPSERT, "connect-timeout": "5 s"}),
}


@pytest.mark.parametrize("case", [*SINKS, *SAME_SINKS])
def test_sinks(tmp_path: Path, case: str) -> None:
    one, other = SINKS.get(case) or SAME_SINKS[case]
    before, now = owner(tmp_path, sink=one), owner(tmp_path, sink=other)
    before.resumed_from(before.text(), "/s", begun=True)
    if case in SAME_SINKS:
        now.resumed_from(before.text(), "/s", begun=True)
        return
    with pytest.raises(CheckpointMismatch, match="among its sinks"):
        now.resumed_from(before.text(), "/s", begun=True)


def test_routes_are_sinks(tmp_path: Path) -> None:
    def routed(target: str) -> Owner:
        route = [{"source-table": "orders", "sink-table": target}]
        return owner(tmp_path, TOPIC, TO_TOPIC, route=route)

    routed("o1").resumed_from(routed("o1").text(), "/s", begun=True)
    with pytest.raises(CheckpointMismatch, match="among its sinks is now route topic o2, and was route topic o1"):
        routed("o2").resumed_from(routed("o1").text(), "/s", begun=True)


def test_the_symbol_of_a_route_is_of_its_topics(tmp_path: Path) -> None:
    """Another symbol leads to other topics; the same topics with another symbol are the same."""

    def routed(target: str, symbol: str) -> Owner:
        route = [{"source-table": "orders", "sink-table": target, "replace-symbol": symbol}]
        return owner(tmp_path, TOPIC, TO_TOPIC, route=route)

    routed("to-Y", "Y").resumed_from(routed("to-<>", "<>").text(), "/s", begun=True)
    with pytest.raises(CheckpointMismatch, match="is now route topic to-X<>, and was route topic to-<>Y"):
        routed("to-XY", "Y").resumed_from(routed("to-XY", "X").text(), "/s", begun=True)


def test_routes_as_version_2_of_the_note_has_them(tmp_path: Path) -> None:
    """It says their topics as the file has them, or with one symbol for all."""

    def routed(target: str) -> Owner:
        route = [{"source-table": "orders", "sink-table": target, "replace-symbol": "X"}]
        return owner(tmp_path, TOPIC, TO_TOPIC, route=route)

    current = routed("to-X").text()
    for sinks in (current, current.replace("to-<>", "to-X")):
        note = sinks.replace(f'"version": {VERSION}', '"version": 2')
        assert routed("to-X").resumed_from(note, "/s", begun=True).text() == current
        with pytest.raises(CheckpointMismatch, match="among its sinks"):
            routed("for-X").resumed_from(note, "/s", begun=True)
    with pytest.raises(CheckpointMismatch, match="among its sinks"):
        routed("to-X").resumed_from(current.replace("to-<>", "to-X"), "/s", begun=True)


def test_a_relative_path_is_one_of_the_files_folder(tmp_path: Path) -> None:
    """Spark's checkpoint knows files by their whole paths: those of another folder are all new to it."""
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(owner(tmp_path / name))
    assert str(tmp_path / "one" / "in") in made[0].text()
    with pytest.raises(CheckpointMismatch, match="among its sources"):
        made[1].resumed_from(made[0].text(), "/s", begun=True)


def test_stages_that_keep_state(tmp_path: Path) -> None:
    def with_transform(**transform: object) -> Owner:
        return owner(tmp_path, transform=[{"type": "deduplicate", **transform}])

    one = with_transform(keys="id")
    with_transform(keys=["id"], **{"within-watermark": False}).resumed_from(one.text(), "/s", begun=True)
    with pytest.raises(CheckpointMismatch, match="among its stages that keep state"):
        with_transform(keys="name").resumed_from(one.text(), "/s", begun=True)


def test_values_that_may_be_secrets_are_not_noted(tmp_path: Path) -> None:
    """An option that no pattern knows for a secret, of a plug-in that does not say what identifies it."""
    one = owner(tmp_path, with_options(MINE, auth="hunter2", password="env:P", table="t"))
    storage = begin(tmp_path)
    claim(storage, one)
    note = tmp_path / "state" / "copy" / NAME
    assert note.stat().st_mode & 0o777 == 0o600
    assert "hunter2" not in note.read_text()
    assert "env:P" in note.read_text()
    with pytest.raises(CheckpointMismatch, match=r"auth \(hash \w+\)"):
        claim(storage, owner(tmp_path, with_options(MINE, auth="hunter3", password="env:P", table="t")))


def test_a_run_of_a_batch_job_keeps_what_a_stream_has_noted(tmp_path: Path) -> None:
    batch = {"execution": {"runtime-mode": "BATCH"}}
    storage = begin(tmp_path)
    claim(storage, owner(tmp_path))
    claim(storage, owner(tmp_path, **batch))
    claim(storage, owner(tmp_path))
    with pytest.raises(CheckpointMismatch, match="among its sources"):
        claim(storage, owner(tmp_path, {**CSV, "path": "in2"}))


def test_files_that_spark_has_noted_are_a_beginning(tmp_path: Path) -> None:
    """Its source of files notes them before the micro-batch."""
    storage = f"file:{tmp_path}/state/copy"
    claim(storage, owner(tmp_path))
    (tmp_path / "state" / "copy" / "sources" / "0").mkdir(parents=True)
    with pytest.raises(CheckpointMismatch, match="among its sources"):
        claim(storage, owner(tmp_path, {**CSV, "path": "in2"}))


def test_what_a_first_micro_batch_has_left(tmp_path: Path) -> None:
    """It was killed while it wrote its offsets. What a query has begun stays as it is."""
    folder = tmp_path / "copy"
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / ".0.tmp").write_text("v")
    storage = storage_of(f"file:{folder}", None)
    storage.remove_unfinished()
    assert list((folder / "offsets").iterdir()) == []
    for name in ("0", ".1.tmp"):
        (folder / "offsets" / name).write_text("v")
    storage.remove_unfinished()
    assert {file.name for file in (folder / "offsets").iterdir()} == {"0", ".1.tmp"}


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    storage = begin(tmp_path)
    claim(storage, owner(tmp_path))
    claim(storage, owner(tmp_path))
    with pytest.raises(CheckpointMismatch, match="among its sources"):
        claim(storage, owner(tmp_path, {**CSV, "path": "in2"}))
    assert sorted(path.name for path in (tmp_path / "state" / "copy").iterdir()) == ["offsets", NAME]


def test_a_folder_that_cannot_be_seen(tmp_path: Path) -> None:
    state = tmp_path / "state" / "copy"
    job = job_of(tmp_path)
    check_owner(f"file:{state}", "p", job)
    state.parent.mkdir()
    state.symlink_to(state)
    for asks in (lambda: check_owner(f"file:{state}", "p", job), lambda: has_begun(f"file:{state}")):
        with pytest.raises(CheckpointMismatch, match=r"cannot be seen: Too many levels .* mend that"):
            asks()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_note_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    storage = begin(tmp_path)
    note = tmp_path / "state" / "copy" / NAME
    note.mkdir() if kind == "folder" else note.symlink_to("nowhere")
    with pytest.raises(CheckpointMismatch, match=r"owner\.json cannot be read: (Is a directory|No such file)"):
        claim(storage, owner(tmp_path))


def test_notes_of_other_versions(tmp_path: Path) -> None:
    storage = begin(tmp_path)
    note = tmp_path / "state" / "copy" / NAME
    note.write_text("")  # it was being written when the power went
    claim(storage, owner(tmp_path))
    names = {"namespace": "/topics", "pipeline": "p", "job": "copy"}
    note.write_text(json.dumps({**names, "sources": [{"name": "", "type": "csv", "which": {"path": "in"}}]}))
    claim(storage, owner(tmp_path))
    assert json.loads(note.read_text())["version"] == VERSION
    note.write_text(json.dumps({**names, "version": VERSION + 1, "more": 1}))
    with pytest.raises(CheckpointMismatch, match=rf"is of version {VERSION + 1}, and this jobpipe knows {VERSION}"):
        claim(storage, owner(tmp_path))


def test_another_pipeline_with_the_same_storage(tmp_path: Path) -> None:
    """Also before a micro-batch has begun: two that run at once would fence each other."""
    storage = f"file:{tmp_path}/state/copy"
    claim(storage, owner(tmp_path))
    said = r"belongs to job copy of pipeline p \(namespace /topics\), and this is .*pipeline q .*another storage"
    with pytest.raises(CheckpointMismatch, match=said) as caught:
        claim(storage, owner(tmp_path, pipeline="q"))
    on_page(caught.value, "CheckpointMismatch: the checkpoint in … belongs to")


def test_a_batch_job_may_read_what_it_likes(tmp_path: Path) -> None:
    batch = {"execution": {"runtime-mode": "BATCH"}}
    storage = begin(tmp_path)
    claim(storage, owner(tmp_path, **batch))
    claim(storage, owner(tmp_path, {**CSV, "path": "in2"}, **batch))


def test_a_note_that_is_damaged(tmp_path: Path) -> None:
    storage = begin(tmp_path)
    (tmp_path / "state" / "copy" / NAME).write_text("{")
    with pytest.raises(CheckpointMismatch, match=r"does not say what the checkpoint in .* belongs to.*delete the file"):
        claim(storage, owner(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        'For input string: "{"path":"file:///c.json"}"',
        "There are [1] sources in the checkpoint offsets and now there are [2] sources requested by the query.",
        "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match existing state key schema.",
        "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator name does not match",
    ],
)
def test_what_spark_says_of_such_a_checkpoint_is_final(tmp_path: Path, text: str) -> None:
    job = job_of(tmp_path)
    done = with_checkpoint_error(failure(f"StreamingQueryException: {text}"), "file:/s/copy", job)
    assert done.error == "CheckpointMismatch"
    assert done.message.startswith("the checkpoint in file:/s/copy does not fit job copy: StreamingQueryException")
    assert "--new-checkpoint copy" in done.message
    other = failure("StreamingQueryException: boom")
    assert with_checkpoint_error(other, "file:/s/copy", job) is other


@pytest.mark.parametrize(
    ("batches", "text"),
    [(1, 'For input string: "{"id": 7}"'), (0, "ValueError: row says: sources in the checkpoint offsets")],
)
def test_what_a_row_says_is_no_word_of_spark(tmp_path: Path, batches: int, text: str) -> None:
    done = failure(f"StreamingQueryException: {text}", batches=batches)
    assert with_checkpoint_error(done, "file:/s/copy", job_of(tmp_path)) is done


def test_a_job_without_a_checkpoint(tmp_path: Path) -> None:
    done = failure("StreamingQueryException: [STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] no")
    assert with_checkpoint_error(done, "/s", job_of(tmp_path)).error == "CheckpointMismatch"
    batch = {"execution": {"runtime-mode": "BATCH"}}
    assert with_checkpoint_error(done, "/s", job_of(tmp_path, **batch)) is done


def test_sources_in_another_order(tmp_path: Path) -> None:
    spark: Any = None  # the folder is on this host
    storage = f"file:{tmp_path}/state/copy"
    parts = (files("/a"), files("/b"))
    one = QueryShape(spark="4", sources=parts, views=("a", "b"), state=())
    other = one.model_copy(update={"sources": one.sources[::-1], "views": one.views[::-1]})
    claim_shape(storage, other, "copy", spark)
    claim_shape(storage, one, "copy", spark)
    begin(tmp_path)
    claim_shape(storage, one, "copy", spark)
    with pytest.raises(CheckpointMismatch, match=r"order, which is now b, then a, and was a, then b\. Undo") as caught:
        claim_shape(storage, other, "copy", spark)
    on_page(caught.value, "CheckpointMismatch: the checkpoint in … does not fit the query")
    claim_shape(storage, other.model_copy(update={"spark": "5"}), "copy", spark)
    note = tmp_path / "state" / "copy" / QUERY
    for damaged in ("{}", "[]", '{"version"'):
        note.write_text(damaged)
        with pytest.raises(CheckpointMismatch, match="does not say how the query of the checkpoint was"):
            claim_shape(storage, one, "copy", spark)
    note.write_text('{"version": 1, "spark": "4", "sources": ["csv path /b", "csv path /a"], "state": []}')
    claim_shape(storage, one, "copy", spark)
    assert QueryShape.model_validate_json(note.read_text()) == one


def files(path: str, **more: str) -> Part:
    """Return a source of CSV files."""
    return Part(type="csv", which={"path": path, **more})


def broker(topic: str, *brokers: str) -> Part:
    """Return a topic of Kafka as a source."""
    return Part(type="kafka", which={"subscribe": topic, "kafka.bootstrap.servers": ",".join(brokers)})


LONG = "/" + 50 * "folder/"
ORDERS: dict[str, tuple[tuple[Part, ...], tuple[Part, ...], bool]] = {
    "the same": ((files("a"), files("b")), (files("a"), files("b")), False),
    "changed places": ((files("b"), files("a")), (files("a"), files("b")), True),
    "a broker more": ((broker("x", "a:1", "b:1"), files("b")), (broker("x", "a:1"), files("b")), False),
    "a broker more, elsewhere": ((files("b"), broker("x", "a:1", "b:1")), (broker("x", "a:1"), files("b")), True),
    "alike for long": ((files(LONG + "b"), files(LONG + "a")), (files(LONG + "a"), files(LONG + "b")), True),
    "read by two views": ((files("a"), files("b"), files("a")), (files("a"), files("a"), files("b")), True),
    "other sources": ((files("b"), files("a")), (files("a"), files("c")), False),  # owner.json tells of these
    "one less": ((files("b"),), (files("a"), files("b")), False),
}


@pytest.mark.parametrize("case", list(ORDERS))
def test_which_order_is_another(case: str) -> None:
    now, before, differs = ORDERS[case]
    then = QueryShape(spark="4", sources=before, state=())
    told = QueryShape(spark="4", sources=now, state=()).difference(then)
    assert told.startswith("Spark knows its sources by their order") is differs
    assert bool(told) is differs


# -- sources with names

SALES: dict[str, Any] = {"type": "jobpipe", "subscribe": "orders"}
INVOICES: dict[str, Any] = {"type": "jobpipe", "subscribe": "bills"}
UNION = [{"query": "SELECT * FROM orders"}]


def with_views(folder: Path, **sources: dict[str, Any]) -> Owner:
    """Return that of the job ``copy`` with several sources."""
    job = {"sources": sources, "transform": UNION, "sink": SINK}
    file = folder / "p.yaml"
    file.write_text(yaml.safe_dump({"pipeline": {"name": "p"}, "jobs": {"copy": job}}, sort_keys=False))
    file.chmod(0o600)
    return owner_of("/topics", "p", load_pipeline(file).jobs["copy"])


def read(folder: Path, batch: int, *views: str, done: bool = True) -> str:
    """Let a micro-batch with these sources be planned, and committed; return the storage."""
    state = folder / "state" / "copy"
    for name in ("offsets", "commits"):
        (state / name).mkdir(parents=True, exist_ok=True)
    entries = "".join(f'\n{name_of_source(view)}:{{"n": 1}}' for view in views)
    (state / "offsets" / str(batch)).write_text(f'v2\n{{"conf":{{}}}}{entries}')
    if done:
        (state / "commits" / str(batch)).write_text("v1\n{}")
    return f"file:{state}"


def test_sources_with_names_come_and_go(tmp_path: Path) -> None:
    """Also in another order. A name stays that of its source."""
    storage = f"file:{tmp_path}/state/copy"
    assert claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES)).names == ("orders", "bills")
    read(tmp_path, 0, "orders", "bills")
    claim(storage, with_views(tmp_path, bills=INVOICES, orders=SALES))
    claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES, files=CSV))
    claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES, files=SALES))  # nothing was read of it yet
    claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES))
    claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES, files=CSV))
    claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES, files=CSV))
    (tmp_path / "state" / "copy" / "sources" / name_of_source("files")).mkdir(parents=True)  # now Spark has begun it
    with pytest.raises(CheckpointMismatch) as caught:
        claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES, files=SALES))
    for said in ("its source files is now jobpipe subscribe orders, and was csv path", "another name", "--new-check"):
        assert said in str(caught.value)
    read(tmp_path, 1, "orders", "bills", "files")
    left = claim(storage, with_views(tmp_path, orders=SALES))
    assert (set(left.names), set(left.gone)) == ({"orders", "bills", "files"}, {"bills", "files"})
    back = claim(storage, with_views(tmp_path, orders=SALES, files=CSV))  # no micro-batch without it has ended
    assert back.gone == ("bills",)
    changed = with_views(tmp_path, orders=SALES).model_copy(update={"sinks": ()})
    with pytest.raises(CheckpointMismatch, match="among its sinks"):
        claim(storage, changed)


def test_a_source_that_spark_has_forgotten_does_not_come_back(tmp_path: Path) -> None:
    """It would be read from its start: rows twice, or, from the latest on, not at all."""
    storage = read(tmp_path, 0, "orders", "a_b")
    both = {"orders": SALES, "a_b": INVOICES}
    claim(storage, with_views(tmp_path, **both))
    claim(storage, with_views(tmp_path, orders=SALES))
    claim(storage, with_views(tmp_path, **both))
    claim(storage, with_views(tmp_path, orders=SALES))
    read(tmp_path, 1, "orders")
    with pytest.raises(CheckpointMismatch, match="its source a_b was left out before, and how far it was read is not"):
        claim(storage, with_views(tmp_path, **both))
    claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES))


def test_a_job_without_a_checkpoint_leaves_the_one_of_a_stream(tmp_path: Path) -> None:
    """Also one with a micro-batch that has not ended: the job does not go on from it."""
    storage = read(tmp_path, 0, "orders", "bills", done=False)
    claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES))
    claim(storage, owner(tmp_path, execution={"runtime-mode": "BATCH"}))
    claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES))


def test_values_with_line_ends_of_unicode_are_no_names(tmp_path: Path) -> None:
    """JSON may have them as they are."""
    storage = read(tmp_path, 0, "orders", "bills", done=False)
    newest = tmp_path / "state" / "copy" / "offsets" / "0"
    newest.write_text(newest.read_text().replace('"n": 1', '"n": "a\u2028b\x85:c"'))
    claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES))


def test_no_source_goes_while_a_micro_batch_may_have_its_rows(tmp_path: Path) -> None:
    storage = read(tmp_path, 0, "orders", "a_b")
    both = with_views(tmp_path, orders=SALES, a_b=INVOICES)
    claim(storage, both)
    read(tmp_path, 1, "orders", "a_b", done=False)
    with pytest.raises(CheckpointMismatch, match=r"micro-batch 1 has not ended, .* sources that are gone \(a_b\)"):
        claim(storage, with_views(tmp_path, orders=SALES))
    claim(storage, both)
    read(tmp_path, 1, "orders", "a_b")
    claim(storage, with_views(tmp_path, orders=SALES))


def test_a_checkpoint_without_names_goes_on_by_the_order(tmp_path: Path) -> None:
    storage = begin(tmp_path)
    assert claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES)).names == ()
    assert claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES)).names == ()
    with pytest.raises(CheckpointMismatch, match="among its sources is now csv path"):
        claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES, files=CSV))


def test_what_spark_noted_of_files_tells_whether_sources_have_names(tmp_path: Path) -> None:
    """Before its first offsets."""
    storage = f"file:{tmp_path}/state/copy"
    both = with_views(tmp_path, orders=SALES, files=CSV)
    assert claim(storage, both).names == ("orders", "files")
    (tmp_path / "state" / "copy" / "sources" / "1").mkdir(parents=True)
    assert claim(storage, both).names == ()
    (tmp_path / "state" / "copy" / "sources" / "1").rename(tmp_path / "state" / "copy" / "sources" / "view_files")
    assert claim(storage, both).names == ("orders", "files")


@pytest.mark.parametrize("source", [CSV, PYTHON])
def test_names_are_not_given_up(tmp_path: Path, source: dict[str, Any]) -> None:
    """A single source has none, and a function of the user's makes its stream itself: then none has one."""
    storage = read(tmp_path, 0, "orders", "bills")
    claim(storage, with_views(tmp_path, orders=SALES, bills=INVOICES))
    other = owner(tmp_path, CSV) if source is CSV else with_views(tmp_path, orders=SALES, mine=PYTHON)
    assert other.names == ()
    with pytest.raises(CheckpointMismatch, match="it knows the sources by their names, and now they have none"):
        claim(storage, other)


def test_another_log_of_offsets_alone_gives_no_names(tmp_path: Path) -> None:
    """Spark writes that version too where the user's configuration says so."""
    storage = read(tmp_path, 0)
    (tmp_path / "state" / "copy" / "offsets" / "0").write_text('v2\n{"conf":{}}\n0:{"n": 1}')
    claim(storage, owner(tmp_path))
    assert claim(storage, owner(tmp_path)).names == ()


def test_offsets_that_cannot_be_read(tmp_path: Path) -> None:
    storage = read(tmp_path, 0, "orders")
    (tmp_path / "state" / "copy" / "offsets" / "1").mkdir()
    with pytest.raises(CheckpointMismatch, match=r"the offsets of the checkpoint in .* cannot be read: Is a directory"):
        claim(storage, with_views(tmp_path, orders=SALES))


def test_the_order_of_sources_with_names_says_nothing() -> None:
    parts = tuple(Part(type="jobpipe", which={"subscribe": name}) for name in "ab")
    one = QueryShape(spark="4.3.0", sources=parts, views=("a", "b"), state=())
    other = one.model_copy(update={"sources": parts[::-1], "views": ("b", "a")})
    assert "order" in other.difference(one)
    assert other.model_copy(update={"named": True}).difference(one.model_copy(update={"named": True})) == ""
