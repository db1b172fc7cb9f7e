"""What the benchmarks compute from what they measure, and that a run leaves no process behind."""

from __future__ import annotations

import itertools
import json
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks.side_by_side.arrivals import Arrivals, sum_of
from benchmarks.side_by_side.asking import Child, read_line
from benchmarks.side_by_side.contestants import kind_of
from benchmarks.side_by_side.contestants.chains import Ids, narrow
from benchmarks.side_by_side.contestants.jobpipe import JobPipe
from benchmarks.side_by_side.feed import pace
from benchmarks.side_by_side.latency import stands_still
from benchmarks.side_by_side.notes import Notes, connect, note
from benchmarks.side_by_side.plain_jobs import Sender
from benchmarks.side_by_side.processes import Processes, RunFailed
from benchmarks.side_by_side.report import PLATEAU, STILL_FALLING, TITLES, lines, tables, warmth
from benchmarks.side_by_side.results import keep_newest
from benchmarks.side_by_side.summary import median, ratio
from benchmarks.side_by_side.targets import targets
from benchmarks.side_by_side.throughput import warm_up
from jobpipe import FlowContext
from jobpipe.config import load

FLOW_CONTEXT = FlowContext("t", "0" * 16, 0, 0, 0, 0, datetime.now(UTC), "test")

GRANDCHILD = """
import subprocess, sys
code = "import time\\nwhile time.process_time() < 0.6: pass\\nprint(1, flush=True)\\ntime.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
"""


def test_only_rows_made_in_the_window_count() -> None:
    arrivals = Arrivals()
    arrivals.add(np.array([7, 9, 8]), np.array([0, 2_000, 1_000]), at=4_000)
    arrivals.add(np.array([10]), np.array([3_000]), at=13_000)
    found = arrivals.window(1_000, 4_000)
    assert (found["rows"], found["p50"], found["max"], found["once"]) == (3, 3.0, 10.0, True)
    assert arrivals.window(5_000, 6_000) == {"rows": 0}
    assert (arrivals.rows, arrivals.newest) == (4, 3_000)


@pytest.mark.parametrize("ids", [[1, 2, 2, 3], [1, 2, 4]])
def test_a_row_lost_or_twice_is_seen(ids: list[int]) -> None:
    arrivals = Arrivals()
    arrivals.add(np.array(ids), np.full(len(ids), 1_000), at=2_000)
    assert arrivals.window(0, 5_000)["once"] is False


def test_what_the_feed_sends_late_was_made_when_it_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    late = iter([0.1])
    monkeypatch.setattr("benchmarks.side_by_side.feed.time.sleep", lambda seconds: sleep(seconds + next(late, 0.0)))
    here, there = socket.socketpair()
    thread = threading.Thread(target=pace, args=(there, 100.0))
    thread.start()
    with here, there:
        here.settimeout(30.0)
        text = b""
        while text.count(b"\n") < 20:
            text += here.recv(65536)
        here.shutdown(socket.SHUT_RDWR)
        thread.join(30.0)
    assert not thread.is_alive()
    rows = [[int(word) for word in line.split()] for line in text.decode().splitlines()[:20]]
    assert [row[:2] for row in rows] == [[number, 1] for number in range(20)]
    assert {b[2] - a[2] for a, b in itertools.pairwise(rows)} <= {9_999, 10_000, 10_001}


@pytest.mark.parametrize(
    ("curve", "still"),
    [
        ([], False),
        ([200.0, 100.0, 100.0, 100.0, 100.0], False),  # too short to tell
        ([300.0, 240.0, 200.0, 180.0, 170.0, 160.0], False),
        ([300.0, 240.0, 200.0, 180.0, 170.0, 160.0, 165.0, 172.0, 158.0], True),
        ([100.0, 100.0, 100.0, 100.0, 400.0, 90.0], True),  # one slow piece says nothing
        ([100.0, 100.0, 100.0, 200.0, 200.0, 200.0], True),  # slower does not count as falling
    ],
)
def test_the_plateau_is_where_latency_no_longer_falls(curve: list[float], still: bool) -> None:
    assert stands_still(curve, 3) is still
    assert not stands_still(curve, 6)


def test_groups_warm_up_until_their_time_stands_still() -> None:
    seconds = [9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]
    batches, curve = warm_up(seconds.__getitem__)
    assert (batches, curve) == (50, seconds[:10])
    assert warm_up(lambda number: 100.0 * 0.8**number)[0] == 100  # not for ever


def test_what_a_flow_notes_arrives(tmp_path: Path) -> None:
    arrivals = Arrivals()
    notes = Notes(lambda: arrivals)
    made = connect(notes.port)()
    with made:
        context = replace(FLOW_CONTEXT, setup=made)
        for first in (0, 3):
            note(narrow(np.arange(first, first + 3), np.full(3, 1_000)), context)
        until(lambda: arrivals.rows == 6)
    notes.close()
    assert arrivals.window(0, 2_000)["once"] is True


def test_a_sender_publishes_what_the_feed_brings() -> None:
    """Each row once, with the time when it was made; an error of the contestant's is told."""
    sent: list[tuple[list[int], list[int]]] = []

    class Contestant:
        name = "plain"
        prepare_plain = finish = staticmethod(lambda stream: None)

        def sender(self, stream: str) -> Callable[[Ids, Ids], None]:
            return lambda ids, made: sent.append((ids.tolist(), made.tolist())) if len(sent) < 2 else 1 / 0

    sender = Sender(Contestant())  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender.prepare("s", "narrow")
        sender.paced("s", "narrow", server.getsockname()[1], 0.0)
        feed, _ = server.accept()
        with feed:
            feed.sendall(b"0 2 100\n2 1 200\n3 1 3")
            until(lambda: len(sent) == 1)
            feed.sendall(b"00\n")
            until(lambda: len(sent) == 2)
            feed.sendall(b"4 1 400\n")
            until(lambda: bool(sender._failed))
    assert sent == [([0, 1, 2], [100, 100, 200]), ([3], [300])]
    with pytest.raises(ZeroDivisionError):
        sender.stop("s")


def until(true: Callable[[], bool]) -> None:
    """Wait for threads that cannot tell."""
    deadline = monotonic() + 30.0
    while not true():
        assert monotonic() < deadline
        sleep(0.005)


def test_delays_of_two_unlinked_jobs_add_up() -> None:
    found = sum_of([1.0, 1.0, 1.0], [2.0, 3.0, 4.0])
    assert (found["p50"], found["max"]) == (4.0, 5.0)


def test_a_ratio_is_one_of_the_same_run() -> None:
    """A run on a machine that was slower for all does not change it."""
    rounds = [
        {"run": run, "contestant": name, "rows": 100, "seconds": seconds * slow, "a_seconds": 1.0, "b_seconds": 1.0,
         "shape": "narrow", "cpu_per_million": {"a": 2.0, "carrier": 1.0, "b1": 1.0, "b2": 1.0, "feed": 9.0},
         "peak_mb": {"a": 5.0}}
        for run, slow in enumerate((1.0, 10.0, 3.0))
        for name, seconds in (("jobpipe", 2.0), ("kafka-json", 4.0))
    ]  # fmt: skip
    which = {"contestant": "kafka-json", "shape": "narrow"}
    assert median("throughput", rounds, "seconds", **which) == 12.0
    assert ratio("throughput", rounds, "seconds", {"contestant": "jobpipe"}, **which) == 2.0
    assert ratio("throughput", rounds, "seconds", {"contestant": "files"}, **which) is None
    assert median("throughput", rounds, "cpu b", **which) == 2.0
    assert lines("throughput", rounds[:1])[0].startswith("shape narrow: rows/s 50, seconds 2, ")


def test_a_warm_up_that_was_cut_short_says_so() -> None:
    """In most runs: the median is one that did not reach the plateau."""
    rounds: list[dict[str, Any]] = [
        {"run": run, "contestant": "jobpipe", "rate": 1000, "shape": "narrow", "warm_seconds": 180.0, "plateau": True,
         "readers_latency": [{"p50": 2.0, "p99": 3.0, "max": 4.0}], "a_latency": None,
         "cpu_per_million": {}, "peak_mb": {}}
        for run in range(3)
    ]  # fmt: skip
    rounds[0]["plateau"] = False
    assert "over" not in "".join(tables("latency", rounds))
    rounds[1]["plateau"] = False
    (_, table, said) = tables("latency", rounds)
    assert "| over 180 |" in table
    assert said == STILL_FALLING


def test_targets_are_kept_or_missed() -> None:
    """At the bound it is kept; what was not measured has no verdict."""
    rounds = [
        {"run": 0, "contestant": name, "rows": rows, "seconds": 1.0, "a_seconds": 1.0, "b_seconds": 1.0,
         "shape": "wide", "cpu_per_million": {}, "peak_mb": {}}
        for name, rows in (("jobpipe", 300), ("kafka-json", 100), ("kafka-arrow", 260))
    ]  # fmt: skip
    json, arrow = targets("throughput", rounds)
    assert (json.found, json.is_kept) == (3.0, True)
    assert (arrow.bound, arrow.is_kept) == (1.2, False)
    assert [each.is_kept for each in targets("throughput", rounds[:1])] == [None, None]


def test_flows_have_targets_of_their_own() -> None:
    """In ms at 1,000 rows a second, and against Kafka in the same run."""

    def figure(name: str, rate: int, ms: float) -> dict[str, object]:
        readers = [{"p50": ms, "p99": 4 * ms, "max": 9 * ms}]
        return {"run": 0, "contestant": name, "rate": rate, "readers_latency": readers, "a_latency": None,
                "cpu_per_million": {}, "peak_mb": {}}  # fmt: skip

    rounds = [figure("plain-flow", 1_000, 6.0), figure("flow", 1_000, 60.0), figure("kafka-json", 1_000, 100.0)]
    found = {each.of: each.is_kept for each in targets("flows", rounds)}
    assert found["p50 ms of plain-flow, 1,000 rows a second"] is True
    assert found["p50 ms of plain-flow-8, 1,000 rows a second"] is None
    assert found["p50 of flow to kafka-json's, 1,000 rows a second"] is False
    assert found["p99 of flow to kafka-json's, 1,000 rows a second"] is True
    assert len(found) == 8
    assert len(targets("flows", [figure("flow", 20, 60.0)])) == 2
    assert "to jobpipe's" not in "".join(tables("flows", rounds))


def test_growth_has_targets_of_its_own() -> None:
    def figure(size: int, ms: float) -> dict[str, object]:
        spent = {"p50": ms, "p99": ms, "max": ms}
        return {"run": 0, "contestant": "catalog", "what": "catalog", "size": float(size), "seal": spent, "plan": spent}

    found = {each.of: each.is_kept for each in targets("growth", [figure(1_000, 1.0), figure(1_000_000, 2.1)])}
    assert found == {
        "time of a seal with 64 subscribers to that with 1": None,
        "time of a seal with 1,000,000 batches in the catalog to that with 1,000": False,
        "time of a plan with 1,000,000 batches in the catalog to that with 1,000": False,
        "time to open the log with 1,000,000 batches in the catalog to that with 1,000": None,
    }


@pytest.mark.slow
def test_what_a_child_left_behind_is_counted_and_ended(tmp_path: Path) -> None:
    with Processes(tmp_path) as run:
        child = run.start([sys.executable, "-c", GRANDCHILD], "a", log="child")
        left = psutil.Process(int(read_line(child, 30.0, "the child")))
        child.wait(30.0)
        cost = run.cost()
    # 0.6 s were spent; the system tells them in whole ticks of 10 ms, user's and kernel's each rounded down.
    assert cost.cpu["a"] >= 0.58
    assert cost.peak_mb["a"] > 0
    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE


def test_a_child_that_ends_or_is_silent_fails_the_run(tmp_path: Path) -> None:
    with Processes(tmp_path) as run:
        silent = run.start([sys.executable, "-c", "import time; time.sleep(600)"], "a", log="silent")
        with pytest.raises(RunFailed, match="does not answer"):
            read_line(silent, 0.1, "it")
        broken = run.start([sys.executable, "-c", "raise SystemExit('no Java')"], "a", log="broken")
        with pytest.raises(RunFailed, match=r"ended with code 1; its log ends:\nno Java"):
            Child(broken, "job", tmp_path / "broken.log").answer(30.0)


def test_a_contestant_with_other_settings(tmp_path: Path) -> None:
    """Spark's go to Spark, all others into the environment; what is there already stays as it is."""
    kind = kind_of("jobpipe:spark.x.y=a=b+jobpipe.segment.max_bytes=1MB+sink.acks=all+source.minPartitions=2")
    made = kind({"folder": str(tmp_path), "cores": 1})
    assert made.conf() == {"spark.x.y": "a=b"}
    assert made.environ() == {"JOBPIPE__HOME": str(tmp_path / "home"), "JOBPIPE__SEGMENT__MAX_BYTES": "1MB"}
    assert isinstance(made, JobPipe)
    assert (made.of("sink"), made.of("source")) == ({"acks": "all"}, {"minPartitions": "2"})
    assert load(environ=dict(made.environ())).segment_max_bytes == 1_000_000
    assert kind_of("jobpipe").settings == {}  # type: ignore[attr-defined]
    plain = kind_of("jobpipe-plain:source.minPartitions=2")({"folder": str(tmp_path), "cores": 1})
    assert plain.environ()["JOBPIPE__SSL__ENABLED"] == "false"
    for wrong in ("jobpip", "kafka-json:a=b"):
        with pytest.raises(ValueError, match="no contestant"):
            kind_of(wrong)


def test_a_report_keeps_whole_results_only(tmp_path: Path) -> None:
    """Those of a trial, or without one of their contestants, are passed over; of what is kept only the newest stays."""
    fresh, kept = tmp_path / "fresh", tmp_path / "kept"
    written = [(kept, "m-1", 5), (fresh, "m-2", 5), (fresh, "m-3", 1), (fresh, "m-4", 5), (kept, "other-1", 5)]
    for folder, name, runs in written:
        folder.mkdir(exist_ok=True)
        rounds = [{"run": run, "contestant": "a"} for run in range(5)]
        rounds += [{"run": run, "contestant": "b"} for run in range(runs)]
        asked = ["a", "b", "c"] if name == "m-4" else ["a", "b"]
        (folder / f"{name}.json").write_text(
            json.dumps({"at": name, "setting": {"contestants": asked}, "rounds": rounds})
        )
    found = keep_newest(fresh, kept, "m", 5)
    assert found is not None
    assert found["at"] == "m-2"
    assert sorted(path.name for path in kept.iterdir()) == ["m-2.json", "other-1.json"]
    assert keep_newest(fresh, kept, "m", 6) is None


def test_figures_of_the_first_minute_say_so() -> None:
    """H14: above the targets, for the results that are published."""
    latency, alone = {"warm_seconds": 120.0}, {"warm_batches": 30}
    assert warmth({"latency": [latency], "alone": [alone], "growth": [{}]}) == PLATEAU
    assert "warm-up: alone.**" in warmth({"latency": [latency], "alone": [alone, {}], "transport": [{}]})
    folder = Path(__file__).resolve().parent.parent / "benchmarks"
    published = {measure: sorted(folder.glob(f"results/{measure}-*.json")) for measure in TITLES}
    rounds = {measure: json.loads(paths[-1].read_text())["rounds"] for measure, paths in published.items() if paths}
    assert warmth(rounds) in (folder / "RESULTS.md").read_text().partition("## Targets")[0]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["jobpipe", "floor", "jobpipe:jobpipe.spool.fsync=false"], "contestants with other settings"),
        (["jobpipe", "jobpipe-plain"], "nothing of floor"),
    ],
)
def test_trials_of_settings_are_not_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: list[str], said: str
) -> None:
    rounds = [{"run": 0, "contestant": name} for name in names]
    (tmp_path / "alone-1.json").write_text(json.dumps({"setting": {"contestants": names}, "rounds": rounds}))
    assert keep_newest(tmp_path, tmp_path / "kept", "alone", 1) is None
    assert capsys.readouterr().err == f"passed over: alone-1.json, which has {said}\n"
