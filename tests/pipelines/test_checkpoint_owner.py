"""What a checkpoint belongs to: which changes of a job are told, and which are its own affair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobpipe.control.loaded import fits_of
from jobpipe.errors import CheckpointMismatch
from jobpipe.pipelines.checkpoint_owner import NAME, Owner, owner_of
from jobpipe.pipelines.loading import load_pipeline
from jobpipe.pipelines.runner.storage import claim
from jobpipe.pipelines.runner.work import failure, told_of_checkpoint
from tests.troubleshooting import on_page

CSV: dict[str, Any] = {"type": "csv", "path": "in", "schema": "id BIGINT, name STRING"}
BROKERS = {"kafka.bootstrap.servers": "a:9092", "subscribe": "orders"}
KAFKA: dict[str, Any] = {"type": "kafka", "options": BROKERS}
SINK: dict[str, Any] = {"type": "json", "path": "out", "at-least-once": True}


def owner(folder: Path, source: object = CSV, sink: object = SINK, pipeline: str = "p", **more: object) -> Owner:
    """Return that of the job ``copy``."""
    file = folder / "p.yaml"
    job = {"source": source, "sink": sink, **more}
    file.write_text(yaml.safe_dump({"pipeline": {"name": pipeline}, "jobs": {"copy": job}}))
    file.chmod(0o600)
    made = load_pipeline(file)
    return owner_of("/topics", made.name, made.jobs["copy"])


def begin(folder: Path) -> str:
    """Return the storage of a job whose first micro-batch has begun."""
    (folder / "state" / "copy" / "offsets").mkdir(parents=True)
    (folder / "state" / "copy" / "offsets" / "0").write_text("v1")
    return f"file:{folder}/state/copy"


SOURCES = {
    "path": (CSV, {**CSV, "path": "in2"}, "csv path in2", "csv path in"),
    "type": (CSV, {**CSV, "type": "json"}, "json path in", "csv path in"),
    "topic": (
        KAFKA,
        {**KAFKA, "options": {**BROKERS, "subscribe": "payments"}},
        "subscribe payments",
        "subscribe orders",
    ),
    "brokers": (KAFKA, {**KAFKA, "options": {**BROKERS, "kafka.bootstrap.servers": "b:1"}}, "b:1", "a:9092"),
    "format": (
        {**CSV, "type": "spark", "format": "csv"},
        {**CSV, "type": "spark", "format": "json"},
        "format json",
        "format csv",
    ),
    "option": (
        {"type": "spark", "format": "mine", "options": {"table": "a"}},
        {"type": "spark", "format": "mine", "options": {"table": "b"}},
        "table b",
        "table a",
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
    on_page(caught.value, "CheckpointMismatch: the checkpoint in … does not fit")
    assert now in text[: text.index(" when the checkpoint was begun")].rpartition(", and was ")[0]
    assert before in text.partition(", and was ")[2]
    for said in (storage, "among its sources", "--new-checkpoint copy", f"delete {storage}/{NAME}"):
        assert said in text
    (tmp_path / "state" / "copy" / NAME).unlink()
    claim(storage, owner(tmp_path, other))
    assert json.loads((tmp_path / "state" / "copy" / NAME).read_text())["pipeline"] == "p"


SAME = {
    "tuning": (CSV, {**CSV, "options": {"maxFilesPerTrigger": 3, "header": True}}),
    "columns": (CSV, {**CSV, "schema": "id BIGINT"}),
    "offsets of Kafka": (KAFKA, {**KAFKA, "options": {**BROKERS, "maxOffsetsPerTrigger": 5, "minPartitions": 4}}),
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
    with pytest.raises(CheckpointMismatch, match="among its sinks is now json path out2, and was json path out when"):
        claim(storage, owner(tmp_path, sink={**SINK, "path": "out2"}))


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


def test_the_server_sees_the_same(tmp_path: Path) -> None:
    """V7: options are part of a source."""

    def fits(source: object) -> str:
        owner(tmp_path, source)
        return fits_of(load_pipeline(tmp_path / "p.yaml").jobs["copy"])

    for one, other, _, _ in SOURCES.values():
        assert fits(one) == fits(dict(one))
        assert fits(one) != fits(other)
    for one, other in SAME.values():
        assert fits(one) == fits(other)


@pytest.mark.parametrize(
    "text",
    [
        'For input string: "{"path":"file:///c.json"}"',
        "There are [1] sources in the checkpoint offsets and now there are [2] sources requested by the query.",
        "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match existing state key schema.",
        "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator name does not match",
    ],
)
def test_what_spark_says_of_such_a_checkpoint_is_final(text: str) -> None:
    done = told_of_checkpoint(failure(f"StreamingQueryException: {text}"), "file:/s/copy", "copy")
    assert done.error == "CheckpointMismatch"
    assert done.message.startswith("the checkpoint in file:/s/copy does not fit job copy: StreamingQueryException")
    assert "--new-checkpoint copy" in done.message
    other = failure("StreamingQueryException: boom")
    assert told_of_checkpoint(other, "file:/s/copy", "copy") is other
