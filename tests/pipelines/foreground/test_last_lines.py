"""What is shown of the log of a job that failed."""

from __future__ import annotations

from pathlib import Path

from jobpipe.jobs.foreground.foreground_run import last_lines


def test_the_last_lines_leave_java_frames_out(tmp_path: Path) -> None:
    lines = ["first", "Caused by: it", "\tat org.apache.Spark(x.scala:1)", "\t... 22 more", "", "last"]
    log = tmp_path / "job.log"
    log.write_text("\n".join(lines))
    assert last_lines(log) == ["first", "Caused by: it", "last"]
    assert last_lines(log, 1) == ["last"]


def test_no_log_has_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "job.log") == []
