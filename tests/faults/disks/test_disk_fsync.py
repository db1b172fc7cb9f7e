"""A disk whose fsync fails or hangs: the file is poisoned, the catalog opened anew, and nothing is lost or twice."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jobpipe.admin import Admin
from jobpipe.store.reading.boundary import EARLIEST
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.bus.kit import PATIENCE, Bus, Reader, coordinator_of, named_link, publish, until
from tests.faults.points import FaultPoints
from tests.faults.rig import FILES, PAUSE, conclude, later_rows, running, sound_so_far
from tests.harness.processes import Harness

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]


ANEW = "opening its catalog again"


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


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Harness, FaultPoints]]:
    """A pair whose disk fails in one way after the other, and the points at which it can."""
    folder = tmp_path_factory.mktemp("fsync")
    with pytest.MonkeyPatch.context() as patch:
        points = FaultPoints(folder, patch)
        with running(folder, **FILES) as rig:
            yield rig, points
            conclude(rig)


@pytest.mark.core
@pytest.mark.parametrize("point", ["before fsync", "before directory fsync"], ids=["segment", "directory"])
def test_of_a_segment_or_its_directory_fails(pair: tuple[Harness, FaultPoints], point: str) -> None:
    """Case 37: never tried again: the batch fails with SpoolError, its file goes, the replay writes another one."""
    rig, points = pair
    points.arm(point, "EIO")
    points.wait_used()
    failed(rig, "SpoolError: fsync failed for")
    sound_so_far(rig)
    assert "injected EIO" not in coordinator_log(rig)


@pytest.mark.core
@pytest.mark.parametrize("committed", [False, True], ids=["not committed", "committed"])
def test_of_the_commit_fails(pair: tuple[Harness, FaultPoints], committed: bool) -> None:
    """Case 37: whatever became of the seal, the same coordinator opens the log anew; the publisher notices nothing."""
    rig, points = pair
    coordinator, starts, opened = rig.coordinator(), rig.publisher.starts, coordinator_log(rig).count(ANEW)
    for _ in range(3):
        points.arm("after commit" if committed else "before commit", "fsync fails")
        points.wait_used()
        later_rows(rig)
    assert rig.coordinator() == coordinator
    assert rig.publisher.starts == starts
    assert coordinator_log(rig).count(ANEW) == opened + 3
    sound_so_far(rig)


def test_of_the_commit_fails_again(pair: tuple[Harness, FaultPoints]) -> None:
    """Case 37: a disk that goes on failing fails the batch; once it is well, the coordinator needs no restart."""
    rig, points = pair
    points.arm("before commit", "fsync fails", times=2)
    points.wait_used()
    failed(rig, "disk I/O error")
    sound_so_far(rig)


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


@pytest.mark.slow
def test_hangs(tmp_path: Path) -> None:
    """Case 38: the control loop answers within 1 s, says what is wrong, and the pair goes on when the disk does."""
    with running(tmp_path, rows=20) as rig, Admin(rig.config) as admin:
        assert admin.status(rig.topic).disk is None
        with traced(rig, "inject=fsync,fdatasync:delay_enter=4000000:when=1"):
            seconds: list[float] = []

            def told() -> bool:
                began = time.monotonic()
                disk = admin.status(rig.topic).disk
                seconds.append(time.monotonic() - began)
                return "no answer from the disk" in (disk or "")

            rig.wait_until(told, "the status says so", 20.0)
            seconds.clear()
            assert True in [told() for _ in range(3)]
            assert sorted(seconds)[1] < 1.0, seconds
            later_rows(rig)
        rig.wait_until(lambda: admin.status(rig.topic).disk is None, "a word that all is well")
        conclude(rig)


def test_hangs_for_one_topic(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 38: of the topic that it holds up only the status answers; the coordinator's other topic notices nothing."""
    points = FaultPoints(tmp_path, monkeypatch)
    hung, other = NumberedRows("orders"), NumberedRows("other")
    journal = Journal()
    publishers = [bus.publisher(topic=rows.topic) for rows in (hung, other)]
    assert len({coordinator_of(publisher) for publisher in publishers}) == 1
    publish(publishers[0], hung, bus.journal, [0])
    links = [named_link(bus.config(), "orders", name, name) for name in ("planning", "acknowledging")]
    grants = [link.call("grant", {"host": "a", "pid": 1}, timeout=10.0).result["grant"] for link in links]
    start, _ = [
        link.call("first", {"grant": grant, "start": EARLIEST.to_json()}, timeout=10.0).result["position"]
        for link, grant in zip(links, grants, strict=True)
    ]
    head = {**start, "epoch": publishers[0].epoch, "n": 1}
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(Admin(bus.config()))
        pool = stack.enter_context(ThreadPoolExecutor())
        stack.callback(points.release)
        points.arm("before commit", "hang", seconds=60.0)
        waiting: list[Future[Any]] = [pool.submit(publish, publishers[0], hung, bus.journal, [1])]
        points.wait_used()
        plan = {"grant": grants[0], "start": start, "max_rows": None, "max_bytes": None}
        waiting.append(pool.submit(links[0].call, "plan", plan, timeout=30.0))
        waiting.append(pool.submit(links[1].call, "ack", {"grant": grants[1], "position": head}, timeout=30.0))
        reader = Reader(bus.subscribe("quick", topic="other"), Checker(other, journal))
        stack.callback(reader.close)
        for number in range(20):
            began = time.monotonic()
            publish(publishers[1], other, journal, [number])
            reader.wait_rows(10 * (number + 1))
            assert time.monotonic() - began < 2.0
        began = time.monotonic()
        until(lambda: "no answer from the disk" in (admin.status("orders").disk or ""), 5.0, "the status says so")
        assert admin.status("other").disk is None
        assert time.monotonic() - began < 5.0
        assert not [future for future in waiting if future.done()]
        points.release()
        assert waiting[0].result(PATIENCE)[0].position.n == 2
        assert waiting[1].result(PATIENCE).result["end"]["n"] >= 1
        waiting[2].result(PATIENCE)
        assert reader.checker.check().rows == 200
    positions = {line["name"]: line["position"] for line in publishers[0].status()["subscriptions"]}
    assert positions["acknowledging"] == 1
    for link in links:
        link.close()
    publishers[0].close(final=True)
    late = bus.reader("late", hung)
    late.join()
    assert late.checker.check().rows == 20


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
