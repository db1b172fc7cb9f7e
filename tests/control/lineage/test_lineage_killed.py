"""The server is killed at random moments while its jobs run, end, fail and die: their lineage is complete.

The seed is printed; ``JOBPIPE_SEED`` draws the same moments again.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.lineage.lineage_kit import ENDS, events_of
from tests.control.test_server_killed import NAME, ROLES, STEADY, Servers, has_ended

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(600)]

KILLS = int(os.environ.get("JOBPIPE_KILLS", "6"))
STATES = {"FINISHED": "COMPLETE", "FAILED": "FAIL", "STOPPED": "ABORT", "CANCELED": "ABORT"}


@pytest.fixture
def servers(tmp_path: Path, home: Path) -> Iterator[Servers]:
    found = Servers(tmp_path, home, **{"server.lineage.file": str(tmp_path / "lineage.jsonl")})
    yield found
    found.close()


@pytest.mark.slow
def test_each_run_keeps_its_id_and_has_one_start_and_its_end(servers: Servers, home: Path) -> None:
    seed = int(os.environ.get("JOBPIPE_SEED", random.SystemRandom().randrange(2**32)))
    print(f"JOBPIPE_SEED={seed}")
    draw = random.Random(seed)
    file = servers.folder / "lineage.jsonl"
    servers.start()
    servers.ask("submit")
    servers.until(lambda: servers.status()["jobs"], "the submission")
    for _ in range(KILLS):
        time.sleep(draw.uniform(0.0, 2.0))
        servers.kill()
        servers.start()
        servers.until(lambda: servers.status()["jobs"], "a server that is back")
    servers.until(lambda: all(servers.job(job)["state"] == "RUNNING" for job in STEADY), "all at work")
    servers.ask("stop")
    servers.until(lambda: all(map(has_ended, servers.status()["jobs"].values())), "the end of all")
    with contextlib.closing(sqlite3.connect(home / "server" / "server.db")) as store:
        runs = dict(store.execute("SELECT id, state FROM runs").fetchall())

    def told() -> dict[str, str]:
        return {
            event["run"]["facets"]["tags"]["tags"][0]["value"]: event["eventType"]
            for event in events_of(file)
            if event["eventType"] in ENDS
        }

    servers.until(lambda: told().keys() >= {run for run, state in runs.items() if state != "STOPPED"}, "all ends")
    servers.until(lambda: len(told()) >= len(STEADY), "the ends of those that were stopped")
    servers.kill()
    assert {STATES[runs[run]] == end for run, end in told().items()} == {True}
    ids, starts, ends = defaultdict(set), defaultdict(set), defaultdict(set)
    for event in events_of(file):
        run = event["run"]["facets"]["tags"]["tags"][0]["value"]
        ids[run].add(event["run"]["runId"])
        kept = {"START": starts, "RUNNING": None}.get(event["eventType"], ends)
        if kept is not None:
            kept[run].add((event["eventType"], event["eventTime"]))  # the same event may come twice
    assert {run: len(found) for run, found in ids.items()} == dict.fromkeys(runs, 1)
    assert all(len(starts[run]) == len(ends[run]) == 1 for run in runs)
    assert {event["job"]["name"] for event in events_of(file)} == {f"{NAME}.{job}" for job in ROLES}
