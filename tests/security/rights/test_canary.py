"""A secret that must show nowhere (case 72): put where a secret may be; everything that is left is searched."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization

from jobpipe.cli.main import cli
from jobpipe.config import Config, keys
from jobpipe.config.types.secrets import KEY_VARIABLE, encrypt, key_reference, make_key
from jobpipe.errors import JobpipeError
from jobpipe.net.tls import tls_context
from jobpipe.net.tls.certificates import init_ca, issue
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.testing import Checker, NumberedRows
from tests.bus.kit import ROOT, Bus, coordinator_of, data_process_of, publish, read
from tests.config.values.test_secrets import BESIDE

CANARY = "canary-51c07e-never-shown"


@pytest.fixture(params=["file", "enc"])
def secret(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return settings with certificates whose key has the canary as password, and each secret key set to it."""
    monkeypatch.setenv(KEY_VARIABLE, f"file:{tmp_path}/secret.key")
    make_key(key_reference())
    word = tmp_path / "word"
    word.touch(0o600)
    word.write_text(CANARY)
    init_ca(tmp_path / "ca")
    files = issue(tmp_path / "ca", "node", dns=[topic_server_name("orders"), topic_server_name("onwards")])
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    lock = serialization.BestAvailableEncryption(CANARY.encode())
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
    reference = f"file:{word}" if request.param == "file" else encrypt(CANARY)
    return {
        "jobpipe.ssl.ca": str(files.ca),
        "jobpipe.ssl.cert": str(files.cert),
        "jobpipe.ssl.key": str(files.key),
        "jobpipe.ssl.key.password": reference,
    }


def short(settings: dict[str, str]) -> dict[str, str]:
    return {name.removeprefix("jobpipe."): value for name, value in settings.items()}


def require_silence(**seen: str | bytes) -> None:
    """Fail if the canary is in anything that was seen."""
    for where, what in seen.items():
        assert CANARY not in (what if isinstance(what, str) else what.decode("latin-1")), where


@pytest.mark.slow
def test_the_canary_is_in_no_log_process_or_pickle(
    own_bus: Bus, secret: dict[str, str], caplog: pytest.LogCaptureFixture, home: Path, tmp_path: Path
) -> None:
    """A publisher and a subscriber whose key it opens, at the most talkative level of their logs; then it is wrong."""
    caplog.set_level(logging.DEBUG)
    changes = short(secret)
    publisher = own_bus.publisher(changes)
    rows = NumberedRows("orders", partitions=2, rows=50)
    publish(publisher, rows, own_bus.journal, range(2))
    with own_bus.subscribe("billing", changes=changes) as subscription:
        read(subscription, Checker(rows, own_bus.journal), 200)
    pid = coordinator_of(publisher)
    for process in (pid, data_process_of(pid), os.getpid()):
        for name in ("cmdline", "environ"):
            require_silence(**{f"{name} of {process}": Path(f"/proc/{process}/{name}").read_bytes()})
    config = own_bus.config(changes)
    require_silence(
        config=repr(config) + json.dumps(config.to_dict()),
        pickled=pickle.dumps((config, publisher.target())),
        target=repr(publisher.target()),
        status=json.dumps(publisher.status(), default=str),
    )
    lock = Path(secret["jobpipe.ssl.key"])
    lock.write_bytes(lock.read_bytes().replace(b"M", b"N", 1))
    tls_context._contexts.clear()  # as in a process that was just started; others go on with the files as they were
    with pytest.raises(JobpipeError) as caught:
        own_bus.subscribe("late", changes=changes).position()
    require_silence(error=str(caught.value) + repr(caught.value) + json.dumps(caught.value.fields, default=str))
    require_silence(logs=caplog.text + "".join(repr(vars(record)) for record in caplog.records))
    for file in filter(Path.is_file, (home / "logs").rglob("*")):
        require_silence(**{file.name: file.read_bytes()})
    file = tmp_path / "jobpipe.yaml"
    file.write_text(json.dumps({name: value for name, value in config.to_dict().items() if value != "null"}))
    for command in (
        ["config", "show", "--sources"],
        ["config", "show", "--json"],
        ["config", "check"],
        ["config", "explain", "ssl.key.password"],
        ["doctor"],
        ["describe", "orders"],
        ["tail", "orders"],
    ):
        result = CliRunner().invoke(cli, ["--config", str(file), "-vv", *command])
        require_silence(**{" ".join(command): result.output + repr(result.exception)})


def test_each_secret_field_holds_a_reference_only(secret: dict[str, str], configure: Callable[..., Config]) -> None:
    """Also the fields that come later: all keys that are marked as secret."""
    reference = secret["jobpipe.ssl.key.password"]
    for about in keys():
        if not about.secret:
            continue
        config = configure({about.short: reference, **short(secret), **BESIDE.get(about.name, {})})
        assert getattr(config, about.attribute).reveal() == CANARY
        require_silence(
            shown=repr(config) + about.show(getattr(config, about.attribute)),
            carried=json.dumps(config.to_dict()).encode() + pickle.dumps(config),
        )


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("secret", ["enc"], indirect=True)
def test_the_canary_is_nowhere_in_spark(own_bus: Bus, secret: dict[str, str], tmp_path: Path) -> None:
    """Web pages, event log, plans, logs, processes, pickles."""
    changes = short(secret)
    publisher = own_bus.publisher(changes)
    rows = NumberedRows("orders", partitions=2, rows=50)
    publish(publisher, rows, own_bus.journal, range(2))
    settings = own_bus.config(changes).to_dict()
    folder = tmp_path / "seen"
    folder.mkdir()
    job = subprocess.run(
        [sys.executable, "-m", "tests.security.rights.canary_job", str(folder)],
        input=json.dumps({name: value for name, value in settings.items() if value != "null"}).encode(),
        cwd=ROOT,
        capture_output=True,
        timeout=500,
        check=False,
    )
    assert job.returncode == 0, job.stderr.decode()[-3000:]
    assert (folder / "rows").read_text() == "200"
    require_silence(stdout=job.stdout, stderr=job.stderr)
    files = [file for file in folder.rglob("*") if file.is_file()]
    seen = {"output": job.stdout + job.stderr, **{str(file): file.read_bytes() for file in files}}
    for name, hidden in json.loads((tmp_path / "hidden").read_text()).items():  # S8: tasks carry the first two
        carried = {str(folder / "pickled")} if name != "secret" else set()
        assert {where for where, what in seen.items() if hidden.encode() in what} == carried, name
    assert {"pickled", "represented", "processes", "page-0", "page-5"} <= {file.name for file in files}
    assert any("events" in str(file) and file.stat().st_size > 10_000 for file in files)
    for file in files:
        require_silence(**{str(file): file.read_bytes()})
