"""``make demo-cdc``: a shop's PostgreSQL, copied to MariaDB while customers change it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.databases import mariadb, postgres
from tests.examples.programs import EXAMPLES, load

SHOP = EXAMPLES / "shop" / "run.py"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(420)
def test_the_copy_equals_the_table(tmp_path: Path) -> None:
    if missing := postgres.missing() or mariadb.missing():
        pytest.skip(f"the demo of change data needs {missing}")
    command = [sys.executable, str(SHOP), "--work", str(tmp_path / "demo"), "--transactions", "500", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok  rows of the copy are those of the shop" in done.stdout
    assert "ok  orders cancelled, and told by the flow" in done.stdout


def test_without_a_server_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = load(SHOP)
    monkeypatch.setattr(demo.postgres, "missing", lambda: "it")
    monkeypatch.setattr(demo.mariadb, "missing", lambda: None)
    monkeypatch.setattr(sys, "argv", ["run.py", "--work", str(tmp_path)])
    assert demo.main() == 2
    assert capsys.readouterr().out == "The demo needs it; on Debian: apt install postgresql mariadb-server\n"
