"""U4: topics that nobody serves are listed, with where they lie, and can be deleted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobpipe.config import Config
from jobpipe.discovery.registry_handler import open_handler
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.store.log import spool_folders
from jobpipe.subscribing.python_client import subscribe
from jobpipe_registry.registry_errors import Unavailable
from jobpipe_registry.tree.tree_handler import TreeHandler
from tests.cli.buskit import publish
from tests.cli.conftest import Run
from tests.docs.troubleshooting import on_page


@pytest.fixture
def left(config: Config) -> Path:
    """Three batches of a topic whose publisher and coordinator are gone; its spool."""
    publisher = Publisher("orders", config=config, name="shop", parallelism=2)
    publish(publisher, 0, 1, 2)
    publisher.close()
    end_coordinators()
    return config.spool_dir / "orders"


def listed(run: Run, file: str, *options: str) -> dict[str, dict[str, Any]]:
    return {line["topic"]: line for line in json.loads(run("topics", "--json", *options, file=file).stdout)}


def known(config: Config) -> list[str]:
    """Return what the registry knows."""
    handler = open_handler(config)
    try:
        return handler.known_topics()
    finally:
        handler.shutdown()


@pytest.mark.slow
def test_a_topic_that_nobody_serves_is_listed(run: Run, file: str, left: Path) -> None:
    """U4: by --all, from the registry and this host's spools, with its folder and how to serve it."""
    assert listed(run, file) == {}
    line = listed(run, file, "--all")["orders"]
    assert (line["served"], line["spool"], line["rows"]) == (False, str(left), 12)
    assert (line["unread"], line["serve"]) == ({}, "jobpipe topics serve orders")
    assert line["disk_bytes"] > 0
    text = run("topics", "--all", file=file).stdout
    assert run("topics", "list", "--all", file=file).stdout == text
    assert str(left) in text
    assert "jobpipe topics serve TOPIC" in text


@pytest.mark.slow
def test_spools_that_cannot_be_read_or_are_of_others(run: Run, file: str, config: Config, left: Path) -> None:
    """U4: a damaged one is named, one of another namespace is not ours, and what is no topic is passed over."""
    (config.spool_dir / "damaged").mkdir()
    (config.spool_dir / "damaged" / "catalog.db").write_bytes(b"no database" * 100)
    (config.spool_dir / "-no-topic").mkdir()
    (config.spool_dir / "empty").mkdir()
    result = run("topics", "--all", file=file)
    assert "cannot read a spool: catalog" in result.stderr
    assert [row.split()[0] for row in result.stdout.splitlines()[1:2]] == ["orders"]


@pytest.mark.slow
def test_a_topic_is_deleted(run: Run, file: str, config: Config, left: Path) -> None:
    """U4: spool and registry; the next publisher begins a new log at epoch 1."""
    said = run("topics", "delete", "orders", "--dry-run", file=file)
    assert said.exit_code == 0, said.stderr
    assert f"would delete {left}: 3 batches, 12 rows" in said.stdout
    assert left.is_dir()
    done = run("topics", "delete", "orders", file=file)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == said.stdout.replace("would delete", "deleted")
    assert list(config.spool_dir.iterdir()) == []
    assert known(config) == []
    assert listed(run, file, "--all") == {}
    publisher = Publisher("orders", config=config, name="shop", parallelism=2)
    assert publisher.epoch == 1
    publisher.close()
    end_coordinators()


@pytest.mark.slow
def test_a_live_topic_is_not_deleted(run: Run, file: str, config: Config) -> None:
    """U4: the one who serves it is named."""
    publisher = Publisher("orders", config=config, name="shop", parallelism=2)
    publish(publisher, 0)
    for options in ([], ["--dry-run"], ["--unread"]):
        result = run("topics", "delete", "orders", *options, file=file)
        assert result.exit_code == 1
        assert "topic 'orders' is served at" in result.stderr
        assert "by 'shop'" in result.stderr
        on_page(result.stderr, "topic '…' is served")
    assert publisher.status()["head"] == 1
    publisher.close()


@pytest.mark.slow
def test_an_open_catalog_is_not_deleted(run: Run, file: str, config: Config) -> None:
    """U4: its coordinator lives, though the registry has lost it."""
    publisher = Publisher("orders", config=config, name="shop", parallelism=2)
    publish(publisher, 0)
    pid = publisher.coordinator.process.pid
    spool = spool_folders.read_spool(config.spool_dir / "orders", "orders")
    assert pid in spool.used_by
    publisher.close()
    end_coordinators()
    assert spool_folders.read_spool(config.spool_dir / "orders", "orders").used_by == ()
    code = (
        "import sqlite3, sys; log = sqlite3.connect(sys.argv[1]); log.execute('SELECT * FROM meta').fetchall(); "
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(config.spool_dir / "orders" / "catalog.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        result = run("topics", "delete", "orders", "--unread", file=file)
        assert other.stdin is not None
        other.stdin.close()
    assert result.exit_code == 1
    assert f"process {other.pid} has its catalog in {config.spool_dir / 'orders'} open" in result.stderr
    assert known(config) == ["orders"]


@pytest.mark.slow
def test_what_is_not_read_is_not_deleted(run: Run, file: str, config: Config) -> None:
    """U4: the subscriptions that lack something are named; --unread deletes it all the same."""
    publisher = Publisher("orders", config=config, name="shop", parallelism=2, required_subscribers=["billing"])
    publish(publisher, 0, 1)
    with subscribe("orders", name="audit", starting="earliest", config=config) as audit:
        for _ in audit.batches(timeout=0.3):
            pass
    publisher.close()
    end_coordinators()
    assert listed(run, file, "--all")["orders"]["unread"] == {"billing": 2}
    result = run("topics", "delete", "orders", file=file)
    assert result.exit_code == 1
    assert "has not been fully read by billing (2 batches)" in result.stderr
    on_page(result.stderr, "topic '…' has not been")
    assert (config.spool_dir / "orders").is_dir()
    assert run("topics", "delete", "orders", "--unread", file=file).exit_code == 0
    assert not (config.spool_dir / "orders").exists()


def test_a_deletion_that_was_interrupted(run: Run, file: str, config: Config, left: Path) -> None:
    """U4: what had its name taken is removed by the next attempt, without a question."""
    spool_folders.set_aside(left)
    assert not left.exists()
    done = run("topics", "delete", "orders", file=file)
    assert done.exit_code == 0, done.stderr
    assert list(config.spool_dir.iterdir()) == []
    assert known(config) == []


@pytest.mark.slow
def test_a_registry_that_does_not_forget(
    run: Run, file: str, config: Config, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U4: as when its ACL forbids it: the spool is where it was, and the claim is gone."""

    def refuse(self: TreeHandler, topic: str) -> None:
        raise Unavailable("zk1:2181", "no permission (ACL)")

    with monkeypatch.context() as patch:
        patch.setattr(TreeHandler, "forget", refuse)
        result = run("topics", "delete", "orders", file=file)
    assert result.exit_code == 3
    assert "no permission (ACL)" in result.stderr
    assert [path.name for path in config.spool_dir.iterdir()] == ["orders"]
    assert run("topics", "delete", "orders", file=file).exit_code == 0


@pytest.mark.slow
def test_a_spool_on_another_host(run: Run, file: str, config: Config, left: Path) -> None:
    """U4: whether all was read is not known here."""
    left.rename(left.parent.parent / "elsewhere")
    result = run("topics", "delete", "orders", file=file)
    assert result.exit_code == 1
    assert "is not known here" in result.stderr
    assert known(config) == ["orders"]
    assert run("topics", "delete", "orders", "--unread", file=file).exit_code == 0
    assert known(config) == []


@pytest.mark.parametrize("topic", ["nosuch", "../orders", ".orders.removed"])
def test_a_topic_that_does_not_exist(run: Run, file: str, left: Path, topic: str) -> None:
    """U4: neither does a name lead out of the spool folder."""
    result = run("topics", "delete", topic, file=file)
    assert result.exit_code in (1, 2)
    assert "has no spool in" in result.stderr or "not a topic name" in result.stderr
    assert left.is_dir()


@pytest.mark.slow
def test_a_misspelt_topic(run: Run, file: str, left: Path) -> None:
    """U12: what was probably meant is offered, though nobody serves it."""
    for command in (["describe"], ["lag"], ["topics", "delete"], ["subscriptions", "seek"]):
        rest = ["billing", "--to", "earliest"] if command[-1] == "seek" else []
        result = run(*command, "order", *rest, file=file)
        assert result.exit_code == 1
        assert "did you mean orders?" in result.stderr, command


@pytest.mark.slow
def test_what_this_hosts_server_kept_goes_too(run: Run, file: str, config: Config, left: Path) -> None:
    """U4: the folder of the deleted log, and no other one."""
    log = spool_folders.read_spool(left, "orders").log
    kept = config.hostserver_dir / "topics" / "orders"
    own, other = (kept / f"{each}-{'0' * 32}" for each in (log, "f" * 16))
    for folder in (own, other):
        (folder / "segments").mkdir(parents=True)
    try:
        done = run("topics", "delete", "orders", file=file)
        assert f"deleted {own}, of the host server here" in done.stdout
        assert (own.exists(), other.exists()) == (False, True)
    finally:
        shutil.rmtree(kept)
