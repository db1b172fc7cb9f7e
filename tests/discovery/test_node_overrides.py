"""Certificates of each node: whose paths a task uses, and what it says of those that are not there."""

from __future__ import annotations

import dataclasses
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from jobpipe.config import Config, load
from jobpipe.discovery import node_overrides
from jobpipe.discovery.node_overrides import NodeCredentials, on_this_node
from jobpipe.errors import ConfigError
from jobpipe.net.address import Endpoint
from jobpipe.net.tls.certificates import ensure_home
from jobpipe.net.tls.tls_context import Credentials
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.subscribing.fetching.part_fetch import FetchRange
from tests.docs.troubleshooting import on_page

ROOT = Path(__file__).parents[2]
HERE = Endpoint("127.0.0.1", 1)
PATHS = ("ssl_ca", "ssl_cert", "ssl_key")
NOWHERE = {name: Path("/nowhere") / name for name in PATHS}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let this process be a node whose configuration says nothing."""
    for name in list(os.environ):
        if name.startswith("JOBPIPE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("JOBPIPE_CONFIG", os.devnull)
    node_overrides.own_paths.cache_clear()
    yield
    node_overrides.own_paths.cache_clear()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    """Certificates that are there."""
    return ensure_home(tmp_path_factory.mktemp("certificates"))


def names(files: Credentials, prefix: str = "jobpipe.ssl.") -> dict[str, str]:
    return {prefix + name: str(getattr(files, name)) for name in ("ca", "cert", "key")}


def environment(files: Credentials) -> dict[str, str]:
    return {name.upper(): path for name, path in names(files, "JOBPIPE__SSL__").items()}


def test_what_an_application_sets_is_pinned(files: Credentials, tmp_path: Path) -> None:
    """Options, spark.jobpipe.* and the file of option ``config`` are; environment and the usual file are not."""
    file = tmp_path / "j.yaml"
    file.write_text(f"jobpipe: {{ssl: {{ca: {files.ca}, cert: {files.cert}, key: {files.key}}}}}")
    spark = {f"spark.{name}": path for name, path in names(files).items()}
    tls = set(PATHS)
    assert load(overrides=names(files), environ={}).pinned == tls
    assert load(spark=spark, environ={}).pinned == tls
    assert load(file, environ={}).pinned == tls
    assert load(file, environ=environment(files)).pinned == set()
    assert load(environ={"JOBPIPE_CONFIG": str(file)}).pinned == set()
    assert load(environ={}).pinned == set()
    assert pickle.loads(pickle.dumps(load(spark=spark, environ={}))).pinned == tls  # noqa: S301 - our own


def test_the_drivers_paths_are_used_where_the_node_says_nothing(files: Credentials) -> None:
    assert on_this_node(load(environ=environment(files)), HERE) is not None
    assert on_this_node(Config(ssl_enabled=False), HERE) is None


@pytest.mark.parametrize("by", ["environment", "file"])
def test_a_nodes_own_paths_come_before_the_drivers(
    files: Credentials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "environment":
        for name, path in environment(files).items():
            monkeypatch.setenv(name, path)
    else:
        file = tmp_path / "node.yaml"
        file.write_text(f"jobpipe: {{ssl: {{ca: {files.ca}, cert: {files.cert}, key: {files.key}}}}}")
        monkeypatch.setenv("JOBPIPE_CONFIG", str(file))
    assert on_this_node(Config(**NOWHERE), HERE) is not None
    with pytest.raises(ConfigError, match="/nowhere/ssl_ca"):
        on_this_node(Config(**NOWHERE, pinned=frozenset(node_overrides.PER_NODE)), HERE)


def test_each_path_by_itself(files: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CA's place may be the application's, certificate and key each node's own."""
    monkeypatch.setenv("JOBPIPE__SSL__CA", "/not/looked/at")
    monkeypatch.setenv("JOBPIPE__SSL__CERT", str(files.cert))
    monkeypatch.setenv("JOBPIPE__SSL__KEY", str(files.key))
    config = Config(**{**NOWHERE, "ssl_ca": files.ca}, pinned=frozenset({"ssl_ca"}))
    assert on_this_node(config, HERE) is not None


def test_a_missing_file_is_told_with_host_origin_and_remedy(
    files: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = socket.gethostname()
    gone = Path("/nowhere/node.key")
    config = Config(ssl_ca=files.ca, ssl_cert=files.cert, ssl_key=gone)

    def complaint(config: Config) -> str:
        with pytest.raises(ConfigError) as caught:
            on_this_node(config, HERE)
        assert (caught.value.fields["host"], caught.value.fields["file"]) == (host, str(gone))
        message = str(caught.value)
        assert message.startswith(f"on host {host}: {gone}: expected a readable file (No such file or directory). ")
        on_page(message, "…: expected a readable")
        return message

    told = complaint(config)
    assert f"comes from the driver, since the configuration of {host} has none: put the file there, or set" in told
    assert f"jobpipe.ssl.key on {host}, in /etc/jobpipe/jobpipe.yaml or in the environment of Spark's worker" in told
    told = complaint(dataclasses.replace(config, pinned=frozenset({"ssl_key"})))
    assert "an option or spark.jobpipe.* of the application, and holds on every host" in told
    assert "leave jobpipe.ssl.key out of them" in told
    monkeypatch.setenv("JOBPIPE__SSL__KEY", str(gone))
    node_overrides.own_paths.cache_clear()
    assert f"comes from the configuration of {host}: mend it" in complaint(config)


def test_a_wrong_configuration_of_a_node_is_told_with_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBPIPE__SSL__KEYS", "x")
    with pytest.raises(ConfigError, match=rf"(?s)on host {socket.gethostname()}: .*did you mean JOBPIPE__SSL__KEY\?"):
        on_this_node(Config(**NOWHERE), HERE)


PROGRAM = """
import os, pickle, sys
from jobpipe.subscribing.fetching.part_fetch import fetch
wanted, config, target, table = pickle.load(open(sys.argv[1], "rb"))
print(sum(fetched.batch.num_rows for fetched in fetch(wanted, config)))
segments = target.write(table.schema, [(batch, 0) for batch in table.to_batches()], f"task-{os.getpid()}")
print(sum(segment.rows for segment in segments))
"""


@pytest.mark.slow
def test_tasks_on_another_host_read_and_write_with_its_own_certificates(
    home: Path, files: Credentials, settings_of_test: dict[str, str], tmp_path: Path
) -> None:
    """What travels holds paths that are not there; the other process's environment, or file, has its own."""
    config = load(overrides=settings_of_test, environ=environment(files))
    table = pa.table({"id": range(1000)})
    publisher = Publisher("orders", config=config)
    try:
        first = publisher.seal("q", 0, [table])
        publisher.begin(BatchKey("q", 1, "run"))
        target = publisher.target()
        assert target.tls is not None
        nowhere = Credentials(Path("/n/ca"), Path("/n/cert"), Path("/n/key"))
        elsewhere = dataclasses.replace(target.tls, files=nowhere)
        start = dataclasses.replace(first.position, epoch=0, n=0)
        wanted = FetchRange("orders", start, first.position, 0, str(publisher.coordinator.data))
        travelling = (
            wanted,
            dataclasses.replace(config, **NOWHERE),
            dataclasses.replace(target, tls=elsewhere, directory="/n/spool", inline_max=0),
            table,
        )
        (tmp_path / "task").write_bytes(pickle.dumps(travelling))
        file = tmp_path / "node.yaml"
        file.write_text(f"jobpipe: {{ssl: {{ca: {files.ca}, cert: {files.cert}, key: {files.key}}}}}")

        def run(**environ: str) -> subprocess.CompletedProcess[str]:
            clean = {name: value for name, value in os.environ.items() if not name.startswith("JOBPIPE_")}
            return subprocess.run(
                [sys.executable, "-c", PROGRAM, str(tmp_path / "task")],
                env={**clean, "PYTHONPATH": str(ROOT), **environ},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )

        for environ in ({"JOBPIPE_CONFIG": str(file)}, {"JOBPIPE_CONFIG": os.devnull, **environment(files)}):
            done = run(**environ)
            assert (done.returncode, done.stdout.split()) == (0, ["1000", "1000"]), done.stderr
        done = run(JOBPIPE_CONFIG=os.devnull)
        assert done.returncode != 0
        assert "/nowhere/ssl_ca: expected a readable file" in done.stderr
    finally:
        publisher.close()
        end_coordinators()


def test_nothing_secret_travels(files: Credentials) -> None:
    """Neither the key's bytes nor a value of a secret key of the configuration."""
    config = load(environ=environment(files))
    pickled = pickle.dumps((config, NodeCredentials.of(config)))
    secret = files.key.read_bytes()
    assert all(line not in pickled for line in secret.splitlines()[1:-1])
