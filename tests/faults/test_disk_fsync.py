"""A disk whose fsync fails or hangs: the file is poisoned, the catalog opened anew, and nothing is lost or twice."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobpipe.admin import Admin
from jobpipe.testing.processes import Harness
from tests.bus.kit import until
from tests.faults.points import FaultPoints
from tests.faults.rig import PAUSE, conclude, later_rows, running

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]

FILES = {"rows": 400, "payload": 200}  # batches too large for the catalog itself


def failed(rig: Harness, error: str) -> None:
    """The publisher's batch failed for this reason; Spark would start its query again, and so do we."""
    assert rig.publisher.wait(20.0) == 1
    assert error in rig.publisher.log_end(40)
    rig.publisher.kill()  # its end was no surprise
    sealed = rig.journal.batches
    rig.publisher.start(pause=PAUSE)
    rig.wait_until(lambda: rig.journal.batches > sealed + 1, "the replay and another batch")


def coordinator_log(rig: Harness) -> str:
    """Return what the coordinators of this harness wrote."""
    return (rig.config.home / "logs" / "coordinator.log").read_text()


def test_of_a_segment_or_its_directory_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 37: never tried again: the batch fails with SpoolError, its file goes, the replay writes another one."""
    points = FaultPoints(tmp_path, monkeypatch)
    with running(tmp_path, **FILES) as rig:
        for point in ("before fsync", "before directory fsync"):
            points.arm(point, "EIO")
            points.wait_used()
            failed(rig, "SpoolError: fsync failed for")
        conclude(rig)
        assert "injected" not in coordinator_log(rig)


@pytest.mark.parametrize("committed", [False, True], ids=["not committed", "committed"])
def test_of_the_commit_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool) -> None:
    """Case 37: whatever became of the seal, the same coordinator opens the log anew; the publisher notices nothing."""
    points = FaultPoints(tmp_path, monkeypatch)
    with running(tmp_path, rows=20) as rig:
        coordinator = rig.coordinator()
        for _ in range(3):
            points.arm("after commit" if committed else "before commit", "fsync fails")
            points.wait_used()
            later_rows(rig)
        assert rig.coordinator() == coordinator
        assert rig.publisher.starts == 1
        assert coordinator_log(rig).count("opening its catalog anew") == 3
        conclude(rig)


def test_of_the_commit_fails_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 37: a disk that goes on failing fails the batch; once it is well, the coordinator needs no restart."""
    points = FaultPoints(tmp_path, monkeypatch)
    with running(tmp_path, rows=20) as rig:
        points.arm("before commit", "fsync fails", times=2)
        points.wait_used()
        failed(rig, "disk I/O error")
        conclude(rig)


def test_real_errors_of_the_kernel(tmp_path: Path) -> None:
    """Case 37: each thread's next fsync, whatever it is for, fails with EIO; the pair goes on, by a replay at most."""
    with running(tmp_path, **FILES) as rig:
        with traced(rig, "inject=fsync,fdatasync:error=EIO:when=1"):
            enough = rig.journal.batches + 20
            until(lambda: not rig.publisher.alive or rig.journal.batches >= enough, 60.0, "an end, or many batches")
            assert "(INJECTED)" in (rig.folder / "strace").read_text()
            if not rig.publisher.alive:
                failed(rig, "SpoolError")
            later_rows(rig)
        conclude(rig)


@pytest.mark.parametrize("how", ["strace", "sleep"])
def test_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Case 38: the control loop answers within 1 s, says what is wrong, and the pair goes on when the disk does."""
    points = FaultPoints(tmp_path, monkeypatch)
    with contextlib.ExitStack() as stack:
        rig = stack.enter_context(running(tmp_path, rows=20))
        admin = stack.enter_context(Admin(rig.config))
        assert admin.status(rig.topic)["disk"] is None
        if how == "strace":
            stack.enter_context(traced(rig, "inject=fsync,fdatasync:delay_enter=4000000:when=1"))
        else:
            points.arm("before commit", "hang", seconds=4.0)
            points.wait_used()
        seen, seconds = [], []
        for _ in range(5):
            began = time.monotonic()
            seen.append(admin.status(rig.topic)["disk"])
            seconds.append(time.monotonic() - began)
        assert any("no answer from the disk" in (line or "") for line in seen), seen
        assert sorted(seconds)[2] < 1.0, seconds
        later_rows(rig)
        rig.wait_until(lambda: admin.status(rig.topic)["disk"] is None, "a word that all is well")
        conclude(rig)


@contextlib.contextmanager
def traced(rig: Harness, what: str) -> Iterator[None]:
    """Let strace change the system calls of the coordinator during the block; it is attached when the block begins."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: the kernel's own errors are not tested (apt-get install strace)")
    pid = rig.coordinator().pid
    tracer = subprocess.Popen(
        [strace, "-f", "-p", str(pid), "-o", str(rig.folder / "strace"), "-e", "trace=fsync,fdatasync", "-e", what],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        if "attached" not in line:
            pytest.skip(f"strace may not attach here: {line.strip()}")
        yield
    finally:
        tracer.terminate()
        tracer.communicate(timeout=10.0)
