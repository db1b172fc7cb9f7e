"""docs/monitoring.md: its commands run, its configuration is one for Prometheus, its tables are those of the code."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from jobpipe.cli.main import cli
from jobpipe.cli.operate.metrics_command import PORT
from jobpipe.metrics.metrics_page import metrics_page
from tests.docs.pages import ROOT, block, blocks

PAGE = "docs/monitoring.md"
PROMTOOL = shutil.which("promtool")


def test_the_tables_are_made() -> None:
    assert metrics_page() in (ROOT / PAGE).read_text()


def test_the_page_is_run(tmp_path: Path) -> None:
    """`jobpipe metrics` itself is run by tests/cli/operate/test_metrics.py; here its words and port are those."""
    assert block(PAGE, "metrics").split() == ["jobpipe", "metrics", "--port", str(PORT)]
    for name in ("rules", "dashboard"):
        program, *words = block(PAGE, name).split()
        command, (arrow, file) = words[:-2], words[-2:]
        assert (program, arrow) == ("jobpipe", ">")
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0
        assert yaml.safe_load(done.stdout), file  # JSON is YAML
    assert len(blocks(PAGE)) == 5


@pytest.mark.processes
@pytest.mark.skipif(PROMTOOL is None, reason="NOT TESTED: the scrape configuration; promtool is not here")
def test_prometheus_takes_the_configuration(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    (tmp_path / "token").write_text("x")
    written = block(PAGE, "prometheus").replace("/home/me/.jobpipe/server/view-token", str(tmp_path / "token"))
    (tmp_path / "prometheus.yml").write_text(written)
    rules = CliRunner().invoke(cli, ["metrics", "alert-rules"]).stdout
    (tmp_path / "jobpipe-rules.yml").write_text(rules)
    (tmp_path / "own.yml").write_text(block(PAGE, "own-rules"))
    (tmp_path / "prometheus.yml").write_text(written.replace("[jobpipe-rules.yml]", "[jobpipe-rules.yml, own.yml]"))
    command = [PROMTOOL, "check", "config", "prometheus.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
