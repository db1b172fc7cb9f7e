"""docs/server.md: its blocks are run as they stand there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from jobpipe.config import load
from jobpipe.config.reading.located_values import plain
from jobpipe.control.rest.client_identities import read_access_file
from jobpipe.net.tls.certificates import describe
from jobpipe.pipelines.file.overlays import read_content
from jobpipe.pipelines.file.problems import ProblemList
from jobpipe.pipelines.loading.loader import load_tree
from tests.control_api.kit import SCHEDULE, Served, tree
from tests.docs.pages import block, shell


@pytest.mark.slow
def test_look_stop_delete(served: Served) -> None:
    """Sections 2 and 3, with a server of the home."""
    delays = {"source": {"type": "jobpipe", "subscribe": "flights-rows"}, "sink": {"type": "console"}}
    served.client.submit(served.submission(delays=delays))
    served.control.lines = ("a line of the log",)
    for code in (block("docs/server.md", "look"), block("docs/server.md", "operate")):
        done = shell(code, served.folder, JOBPIPE__HOME=str(served.home))
        assert done.returncode == 0, done.stderr
        assert "RUNNING" in done.stdout
    operated = [call[:3] for call in served.control.calls if call[0] in ("stop", "resume", "restart", "delete")]
    assert operated == [
        ("stop", "flights", "delays"),
        ("resume", "flights", "delays"),
        ("restart", "flights", None),
        ("stop", "flights", None),
        ("delete", "flights", False),
    ]


@pytest.mark.slow
def test_changing_a_pipeline(served: Served) -> None:
    """Two versions, then the one before once more."""
    (served.folder / "flights").mkdir()
    (served.folder / "flights" / "pipeline.yaml").write_text(yaml.safe_dump(tree()))
    served.client.submit(served.submission())
    done = shell(block("docs/server.md", "change"), served.folder, JOBPIPE__HOME=str(served.home))
    assert done.returncode == 0, done.stderr
    for shown in ("version 1 -> 2", "changed to version 2", "VERSION", "changed to version 3"):
        assert shown in done.stdout
    submitted = [call[1] for call in served.control.calls if call[0] == "submit"]
    assert submitted[2] == submitted[0]


@pytest.mark.slow
def test_schedules(served: Served) -> None:
    """With a run that is called ID."""
    served.client.submit(served.submission(audit={"source": {"type": "rate"}, "sink": {"type": "console"}}))
    control = served.control
    control.run_views["ID"] = replace(control.run("run-1"), id="ID", job="audit")
    control.schedule_views[("flights", "audit")] = replace(SCHEDULE, job="audit")
    done = shell(block("docs/server.md", "schedules"), served.folder, JOBPIPE__HOME=str(served.home))
    assert done.returncode == 0, done.stderr
    called = [call[0] for call in control.calls]
    operated = [name for name in called if name in ("pause", "backfill", "skip_range", "retry", "skip")]
    assert operated == ["pause", "pause", "backfill", "skip_range", "retry", "skip"]


@pytest.mark.slow
def test_the_files(tmp_path: Path) -> None:
    """Alerts are right; certificates are made as the configuration needs them; so is the access list."""
    whole = tree()
    read = read_content(block("docs/server.md", "alerts").encode(), "page", ProblemList())
    assert read is not None
    whole["pipeline"] |= plain(read)["pipeline"]
    (alert,) = load_tree(whole, file=tmp_path / "p.yaml", folder=tmp_path).spec.alerts
    assert alert.on == ("FAILED", "LOST")
    done = shell(block("docs/server.md", "certificates"), tmp_path, JOBPIPE__HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    (tmp_path / "ca" / "jobpipe.yaml").write_text(block("docs/server.md", "configuration"))
    (tmp_path / "ca" / "access.yaml").write_text(block("docs/server.md", "access"))
    config = load(tmp_path / "ca" / "jobpipe.yaml", environ={})
    assert config.server_access is not None
    assert config.ssl_cert is not None
    assert describe(config.ssl_cert).names == ("control.example.org",)
    found = read_access_file(config.server_access)
    assert (found.operate, found.view) == ({"anna.jobpipe"}, {"ben.jobpipe"})
