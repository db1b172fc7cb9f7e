"""No test of this folder sees the configuration of the person who runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.config.reading import config_loader


@pytest.fixture(autouse=True)
def lonely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder and a home without any configuration file; returns the working folder."""
    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(home))
    for name in (config_loader.ENVIRONMENT_FILE, "JOBPIPE__HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(config_loader, "SYSTEM_FILE", tmp_path / "etc" / "jobpipe.yaml")
    return folder
