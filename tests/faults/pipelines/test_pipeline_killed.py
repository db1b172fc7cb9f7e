"""A pipeline of six jobs over five topics, killed job by job and as a whole, ends with exact totals."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from pathlib import Path
from random import Random

import psutil
import pyarrow.parquet as pq
import pytest

from jobpipe.jobs.session_processes import members
from tests.faults.rig import chance
from tests.pipelines.running import Runner, committed, read_topic, write_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(3600)]

ROWS = 40  # of a file; each file is a micro-batch of the first job
KEYS = 7
KILLS = int(os.environ.get("JOBPIPE_KILLS", "8"))
KILL_SECONDS = (1.0, 12.0)  # between two kills
WHOLE = "the whole pipeline"
ALL = "the whole pipeline and its coordinators"

JOBS: dict[str, dict[str, object]] = {
    "first": {
        "source": {
            "type": "csv",
            "path": "input",
            "schema": "id BIGINT, key STRING",
            "options": {"maxFilesPerTrigger": 1},
        },
        "transform": [{"type": "Cast", "spec": "key:int"}],
        "errors": {"tolerance": "all", "dead-letters": "dead"},  # a row that each stage cannot take, in each file
        "trigger": {"available-now": True},
        "sink": {"type": "jobpipe", "topic": "numbers", "parallelism": 2, "partition-by": ["key"], "final": True},
    },
    "left": {
        "source": {"type": "jobpipe", "subscribe": "numbers", "startingOffsets": "earliest"},
        "transform": [{"type": "sql", "filter": "id % 2 = 0"}],
        "sink": {"type": "jobpipe", "topic": "half.left", "final": True},
    },
    "right": {
        "source": {"type": "jobpipe", "subscribe": "numbers", "startingOffsets": "earliest"},
        "transform": [{"type": "sql", "filter": "id % 2 = 1"}],
        "sink": {"type": "jobpipe", "topic": "half.right", "final": True},
    },
    "joined": {  # a diamond: both halves of the rows, by a pattern; two sinks, each given all
        "source": {"type": "jobpipe", "subscribePattern": "half\\..*", "startingOffsets": "earliest"},
        "sinks": [
            {"type": "jobpipe", "topic": "joined", "parallelism": 1, "final": True},
            {"type": "python", "foreach-batch": "steps:write_batch", "at-least-once": True},
        ],
    },
    "sums": {
        "source": {"type": "jobpipe", "subscribe": "numbers", "startingOffsets": "earliest"},
        "transform": [{"type": "sql", "query": "SELECT key, count(*) AS n, sum(id) AS total FROM input GROUP BY key"}],
        "sink": {"type": "jobpipe", "topic": "sums", "output-mode": "update", "parallelism": 1, "final": True},
    },
    "last": {
        "source": {"type": "jobpipe", "subscribe": "joined", "startingOffsets": "earliest"},
        "sink": {"type": "parquet", "path": "out"},
    },
}
STEPS = """
import json, os, pathlib
FOLDER = pathlib.Path(__file__).parent / "batches"
def write_batch(batch, batch_id):
    FOLDER.mkdir(exist_ok=True)
    part = FOLDER / f".{batch_id}.{os.getpid()}"
    part.write_text(json.dumps([row.id for row in batch.collect()]))
    os.replace(part, FOLDER / f"{batch_id}.json")
"""


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path, home: Path) -> None:
    random = chance()
    files = 6 * KILLS
    (tmp_path / "input").mkdir()
    for number in range(files):
        lines = [f"{n},{n % KEYS}" for n in range(number * ROWS, (number + 1) * ROWS)]
        lines[3:3] = [f"x{number},0", f"{number},none"]
        (tmp_path / "input" / f"{number:03}.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "steps.py").write_text(STEPS)
    numbers = range(files * ROWS)
    with Runner(tmp_path, home, write_pipeline(tmp_path, JOBS)) as runner:
        runner.start()
        left, killed = draw(random), list[str]()
        while left and not runner.ended:
            threading.Event().wait(random.uniform(*KILL_SECONDS))  # a moment is what is drawn, no event
            live = runner.runners()
            victim = next((each for each in left if each in live or each == WHOLE or left == [ALL]), None)
            if victim is None:
                continue  # all are between two attempts
            left.remove(victim)
            killed.append(victim)
            if victim in JOBS:
                kill(live[victim], random)
            else:
                kill_all(runner, coordinators=victim == ALL)
                runner.start()
        print(f"killed {killed}")
        assert runner.wait(1800) == 0, f"killed {killed}\n{runner.told}"
        assert left == [], "it ended too soon for the test"
        assert runner.left() == []
        joined = Counter(row["id"] for row in read_topic(runner.config, f"{runner.name}.joined"))
        sums: dict[object, tuple[object, object]] = {}
        for row in read_topic(runner.config, f"{runner.name}.sums"):
            sums[row["key"]] = (row["n"], row["total"])
        dead = Counter((row["stage"], row["row"]) for row in read_topic(runner.config, f"{runner.name}.dead"))
    assert joined == Counter(numbers)
    texts = {("csv", f"x{number},0") for number in range(files)}
    rows = {("Cast", f'{{"id":{number},"key":"none"}}') for number in range(files)}
    assert dead == Counter(texts | rows)
    written = pq.read_table(committed(tmp_path / "out"))
    assert Counter(written["id"].to_pylist()) == Counter(numbers)
    assert sums == {key: (len(numbers[key::KEYS]), sum(numbers[key::KEYS])) for key in range(KEYS)}
    batches = [json.loads(path.read_text()) for path in (tmp_path / "batches").glob("*.json")]
    assert Counter(number for batch in batches for number in batch) == Counter(numbers)


def draw(random: Random) -> list[str]:
    """Return whom to kill: each job and the whole once, then any; at last all, with coordinators.

    The first job is one of the first two: it ends when it has read its files.
    """
    victims = random.sample([*list(JOBS)[1:], WHOLE], len(JOBS))
    victims.insert(random.randrange(2), next(iter(JOBS)))
    while len(victims) < KILLS - 1:
        victims.append(random.choice([*JOBS, WHOLE]))
    return [*victims, ALL]


def kill(process: psutil.Process, random: Random) -> None:
    """Kill an attempt: all of its processes, or Python alone, or its JVM alone."""
    session = list(members(process.pid))
    victims = random.choice(
        [session, [process], [each for each in session if each.pid != process.pid and "java" in _name(each)]]
    )
    for victim in victims:
        with contextlib.suppress(psutil.Error):
            victim.kill()


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""


def kill_all(runner: Runner, *, coordinators: bool) -> None:
    """Kill the program in the foreground and all of all attempts; or coordinators, too, with their data processes."""
    if coordinators:
        runner.until(runner.coordinators, "a coordinator")
    runner.runners()
    assert runner._process is not None
    runner._process.kill()
    runner._process.wait()
    runner.kill_sessions()
    if coordinators:
        killed = runner.coordinators()
        for process in killed:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(killed, 10.0)
