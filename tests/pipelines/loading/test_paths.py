"""Where the files of a pipeline are."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.errors import ConfigError
from jobpipe.jobs.foreground.foreground_run import run_pipeline
from jobpipe.pipelines.model.paths import PipelinePaths, write_private
from tests.docs.troubleshooting import on_page
from tests.pipelines.conftest import Write, loaded

FILE = """
pipeline: {{name: flights{storage}}}
jobs:
  report:
    source: {{type: rate}}
    sink: {{type: console}}
"""


def storage(write: Write, places: PipelinePaths, given: str | None) -> str:
    text = "" if given is None else f', storage: "{given}"'
    return places.storage(loaded(write(FILE.format(storage=text))), "report")


@pytest.fixture
def places(tmp_path: Path) -> PipelinePaths:
    return PipelinePaths.of(tmp_path / "home", "flights")


def test_the_default_is_below_the_home(write: Write, places: PipelinePaths, tmp_path: Path) -> None:
    assert storage(write, places, None) == f"file://{tmp_path}/home/pipelines/flights/report"


def test_a_relative_one_starts_at_the_file(write: Write, places: PipelinePaths, tmp_path: Path) -> None:
    assert storage(write, places, "state") == f"file://{tmp_path}/state/report"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("/data/state", "file:///data/state/report"),
        ("file:///data/state", "file:///data/state/report"),
        ("s3a://bucket/state", "s3a://bucket/state/report"),
        ("hdfs://host:8020/state", "hdfs://host:8020/state/report"),
    ],
)
def test_absolute_ones_and_addresses(write: Write, places: PipelinePaths, given: str, found: str) -> None:
    assert storage(write, places, given) == found


def test_the_home_of_the_user(
    write: Write, places: PipelinePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert storage(write, places, "~/state") == f"file://{tmp_path}/me/state/report"


def test_files_of_one_pipeline(places: PipelinePaths, tmp_path: Path) -> None:
    assert places.lock == tmp_path / "home/pipelines/flights/.run.lock"
    assert places.snapshot("report", 3) == tmp_path / "home/pipelines/flights/.attempts/report-3.json"
    assert places.log("report") == tmp_path / "home/logs/pipelines/flights/report.log"


def keep(write: Write, tmp_path: Path, prefix: str, *, name: str = "flights", storage: str | None = None) -> None:
    given = "" if storage is None else f', storage: "{storage}"'
    text = FILE.format(storage=f'{given}, topic-prefix: "{prefix}"').replace("name: flights", f"name: {name}")
    PipelinePaths.of(tmp_path / "home", name).keep_prefix(loaded(write(text)))


@pytest.mark.parametrize("storage", [None, "state", "s3a://bucket/state"])
def test_checkpoints_have_one_prefix(write: Write, tmp_path: Path, storage: str | None) -> None:
    (tmp_path / "home/pipelines/flights").mkdir(parents=True)
    for _ in range(2):
        keep(write, tmp_path, "dev.", storage=storage)
    for other in ("prod.", ""):
        with pytest.raises(ConfigError, match=f"'{other}'.* with 'dev.': .*pipeline.name of its own") as told:
            keep(write, tmp_path, other, storage=storage)
    (note,) = tmp_path.rglob(".topic-prefix")
    assert f"delete {note}," in str(told.value)
    note.unlink()
    keep(write, tmp_path, "", storage=storage)
    with pytest.raises(ConfigError, match=r"'dev\.'.* with ''"):
        keep(write, tmp_path, "dev.", storage=storage)


def test_a_run_with_another_prefix_is_refused(write: Write, tmp_path: Path) -> None:
    keep(write, tmp_path, "dev.", storage="state")
    config: Any = SimpleNamespace(home=tmp_path / "home")
    console: Any = None
    with pytest.raises(ConfigError, match="topic-prefix is ''") as told:
        run_pipeline(
            loaded(write(FILE.format(storage=", storage: state"))), config=config, config_file=None, console=console
        )
    on_page(told.value, "topic-prefix is …,")


def test_environments_with_checkpoints_of_their_own(write: Write, tmp_path: Path) -> None:
    """By another name, or another storage; a name alone is not enough if the file names the storage."""
    keep(write, tmp_path, "dev.")
    keep(write, tmp_path, "prod.", name="flights-prod")
    keep(write, tmp_path, "prod.", storage="prod")
    with pytest.raises(ConfigError, match="storage, if the file names one"):
        keep(write, tmp_path, "test.", name="flights-test", storage="prod")


def test_a_storage_that_cannot_be_written(write: Write, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be written: .*; give another storage"):
        keep(write, tmp_path, "", storage="file/state")


def test_a_note_that_a_power_cut_left_empty(write: Write, tmp_path: Path) -> None:
    note = tmp_path / "state/.topic-prefix"
    note.parent.mkdir()
    note.touch()
    keep(write, tmp_path, "dev.", storage="state")
    assert note.read_text() == "dev.\n"


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_on_the_disk_before_and_after_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """V13: with a power cut at any moment it is the old one or the new one, and once written it stays."""
    path, steps = tmp_path / "alerts.json", []
    path.write_bytes(b"old")
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        steps.append(f"sync {name.rpartition('.')[0] or name} {os.fstat(descriptor).st_size}")
        sync(descriptor)

    def replaced(part: Path, whole: Path) -> None:
        steps.append("replace")
        replace(part, whole)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_private(path, b"content", durable=durable)
    assert path.read_bytes() == b"content"
    folder = f"sync {tmp_path.name} {tmp_path.stat().st_size}"
    assert steps == (["sync .alerts.json 7", "replace", folder] if durable else ["replace"])
