"""Secrets that a job's own code asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import jobpipe
from jobpipe.config import job_secrets
from jobpipe.config.types.secrets import Secret
from jobpipe.errors import ConfigError


@pytest.fixture(autouse=True)
def _job() -> Iterator[None]:
    yield
    job_secrets._given = None


def test_the_references_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mail.key"
    file.write_text("canary-1\n")
    file.chmod(0o600)
    monkeypatch.setenv("TOKEN", "canary-2")
    job_secrets.export({"mail": Secret(f"file:{file}"), "token": Secret("env:TOKEN")})
    assert (jobpipe.secret("mail"), jobpipe.secret("token")) == ("canary-1", "canary-2")
    with pytest.raises(ConfigError, match=r"secret TOKEN: the job has no such secret; give it .* {TOKEN: "):
        jobpipe.secret("TOKEN")
    with pytest.raises(ConfigError, match=r"no such secret \(did you mean token\?\)"):
        jobpipe.secret("tokn")
    monkeypatch.delenv("TOKEN")
    with pytest.raises(ConfigError, match="the environment has no TOKEN"):
        jobpipe.secret("token")


def test_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("mail", "canary-3")
    assert jobpipe.secret("mail") == "canary-3"
    with pytest.raises(ConfigError, match="no pipeline runs in this process, and its environment has no token"):
        jobpipe.secret("token")
