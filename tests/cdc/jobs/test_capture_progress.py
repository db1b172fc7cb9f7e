"""The lines of a capture that runs, and which captures a command means."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jobpipe.config import load
from jobpipe.errors import ConfigError
from jobpipe.jobs.captures import foreground_captures
from jobpipe.jobs.captures.capture_progress import QUIET_SECONDS, ProgressLines
from jobpipe.jobs.captures.foreground_captures import choose_captures, require_not_running
from jobpipe.pipelines.loading.loader import load_pipeline
from jobpipe.pipelines.model.graph import subscriptions_of
from jobpipe_registry.job_records import Lease, Order
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree

SOURCE = "type: postgres-cdc, hostname: h, database-name: d, username: u"


@dataclass
class Status:
    rows: int
    tables: dict[str, tuple[int, float]] = field(default_factory=dict)
    behind_bytes: int = 0


def test_the_lines_of_a_capture() -> None:
    now = 0.0
    lines = ProgressLines("shop.a", lambda: now)
    both = {"public.t": (0, 1_000_000.0), "public.u": (0, 7.0)}
    assert lines.line(Status(0, both)) == (
        "capture shop.a: reading public.t: 0 rows of about 1,000,000, and 1 more table; 0 rows published, 0/s"
    )
    now = 4.0
    assert lines.line(Status(40_000, {**both, "public.t": (40_000, 1_000_000.0)})) is None
    now = 5.0
    assert lines.line(Status(50_000, {"public.t": (50_000, 1_000_000.0)})) == (
        "capture shop.a: reading public.t: 50,000 rows of about 1,000,000, 2 min left; 50,000 rows published, 10,000/s"
    )
    now = 10.0
    assert lines.line(Status(50_001, {"public.t": (50_001, 7.0)})) == (
        "capture shop.a: reading public.t: 50,001 rows; 50,001 rows published, 5,000/s"
    )
    now = 100.0
    assert lines.line(Status(50_001, behind_bytes=2_560_000)) == (
        "capture shop.a: following changes; 50,001 rows published, 0/s, 2.6 MB of the log to go"
    )
    now = 110.0
    assert lines.line(Status(50_001, behind_bytes=2_560_000)) is None, "it is as it was"
    now = 100.0 + QUIET_SECONDS
    assert lines.line(Status(50_001, behind_bytes=2_560_000)) is not None


def write(folder: Path, jobs: str) -> Path:
    path = folder / "pipeline.yaml"
    path.write_text(f"pipeline: {{name: shop}}\njobs:\n{jobs}")
    return path


def test_which_captures_are_meant(tmp_path: Path) -> None:
    jobs = [f"  {name}: {{source: {{{SOURCE}, tables: [public.{name}]}}}}\n" for name in "ab"]
    reader = "  read: {source: {type: jobpipe, subscribe: public.a}, sink: {type: of-others}}\n"
    found = load_pipeline(write(tmp_path, "".join([*jobs, reader])), captures_only=True)
    assert [job.name for job in choose_captures(found, None)] == ["a", "b"]
    assert [job.name for job in choose_captures(found, "b")] == ["b"]
    assert subscriptions_of(found, "public.a") == ("shop.read",)
    with pytest.raises(ConfigError, match="job read is no capture; possible names: a, b"):
        choose_captures(found, "read")
    with pytest.raises(ConfigError, match="there is no job 'c'"):
        choose_captures(found, "c")
    with pytest.raises(ConfigError, match="has no capture: a job with source"):
        choose_captures(load_pipeline(write(tmp_path, reader), captures_only=True), None)


def test_one_that_an_attempt_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_pipeline(write(tmp_path, f"  a: {{source: {{{SOURCE}, tables: [public.t]}}}}\n"))
    config, tree = load(overrides={"jobpipe.home": str(tmp_path)}, environ={}), MemoryTree()

    def handler() -> MemoryRegisterServerHandler:
        made = MemoryRegisterServerHandler(tree)
        made.start({"namespace": config.namespace})
        return made

    monkeypatch.setattr(foreground_captures, "open_handler", lambda _: handler())
    require_not_running(config, found, choose_captures(found, None))
    attempt = handler()
    attempt.jobs.set_order("shop", "a", Order("r1", 1, "run"), -1)
    attempt.jobs.take_lease("shop", "a", Lease("r1", 1, "host-1", 7, 0.0, "one"), lambda why: None)
    with pytest.raises(ConfigError, match=r"job shop\.a is running: process 7 of host-1, attempt 1 of run r1; stop it"):
        require_not_running(config, found, choose_captures(found, None))
    attempt.shutdown()
    require_not_running(config, found, choose_captures(found, None))
