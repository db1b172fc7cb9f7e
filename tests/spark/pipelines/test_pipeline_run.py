"""``jobpipe pipeline run``: whole pipelines, in processes of their own."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobpipe.admin import Admin
from jobpipe.pipelines.loading.scaffold import copy_example
from jobpipe.subscribing.python_client import subscribe
from tests.docs.troubleshooting import on_page
from tests.pipelines.running import Runner, read_topic, write_pipeline
from tests.spark.kit import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(900)]

SOURCE = {
    "type": "csv",
    "path": "input",
    "schema": "id BIGINT, name STRING, amount STRING",
    "options": {"header": True, "maxFilesPerTrigger": 1},
}


def write_input(folder: Path, *files: list[str]) -> None:
    (folder / "input").mkdir()
    for number, lines in enumerate(files):
        (folder / "input" / f"{number}.csv").write_text("\n".join(["id,name,amount", *lines]) + "\n")


def test_the_example(tmp_path: Path, home: Path) -> None:
    """It runs as it is, to its end."""
    copy_example(tmp_path / "orders")
    file = tmp_path / "orders" / "pipeline.yaml"
    text = file.read_text().replace("  name: orders\n", f"  name: orders-{os.getpid()}\n")
    file.write_text(text)
    with Runner(tmp_path, home, file) as runner:
        assert runner.run() == 0, runner.told
        report = tmp_path / "orders" / "work" / "report.csv"
        assert list(csv.reader(report.read_text().splitlines())) == [
            ["customer", "orders", "amount"],
            ["ada", "3", "15.0"],
            ["ben", "1", "120.0"],
            ["cleo", "1", "40.0"],
        ]
        assert runner.left() == []
        assert [runner.states(job)[-1] for job in ("publish", "totals", "report")] == ["FINISHED"] * 3


def test_dead_letters(tmp_path: Path, home: Path) -> None:
    """Rows that source, cast and function cannot take are in the topic, with why; a second run finds nothing new."""
    (tmp_path / "shouting.py").write_text(
        "def shout(row):\n"
        "    if row['name'] == 'mute':\n"
        "        raise ValueError('no voice')\n"
        "    return {'id': row['id'], 'loud': row['name'].upper(), 'amount': row['amount']}\n"
    )
    write_input(
        tmp_path,
        ["1,ada,10", "two,ben,20", "3,mute,30"],
        ["4,cleo,much", "5,dora,50"],
        ["6,eve,60"],
    )
    job = {
        "source": SOURCE,
        "transform": [
            {"type": "Cast", "spec": "amount:int"},
            {
                "type": "python",
                "row-function": "shouting:shout",
                "schema": "id BIGINT, loud STRING, amount INT",
            },
        ],
        "trigger": {"available-now": True},
        "errors": {"tolerance": "all", "dead-letters": "dead"},
        "sink": {"type": "jobpipe", "topic": "good", "final": True},
    }
    file = write_pipeline(tmp_path, {"shout": job})
    with Runner(tmp_path, home, file) as runner:
        for _ in range(2):
            assert runner.run() == 0, runner.told
        good = sorted(
            (row["id"], row["loud"], row["amount"]) for row in read_topic(runner.config, f"{runner.name}.good")
        )
        dead = list(read_topic(runner.config, f"{runner.name}.dead"))
        lines = runner.tail(f"{runner.name}.dead")
    assert good == [(1, "ADA", 10), (5, "DORA", 50), (6, "EVE", 60)]
    told = {(row["stage"], row["error_class"], row["batch_id"]): row for row in dead}
    assert Counter((row["stage"], row["error_class"]) for row in dead) == {
        ("csv", "MALFORMED_RECORD"): 1,
        ("Cast", "CAST_INVALID_INPUT"): 1,
        ("python", "ValueError"): 1,
    }
    assert {(row["pipeline"], row["job"]) for row in dead} == {(runner.name, "shout")}
    assert [row["row"] for row in dead if row["stage"] == "csv"] == ["two,ben,20"]
    assert {row["stage"]: str(row["file"]).rpartition("/input/")[2] for row in dead} == {
        "csv": "0.csv",
        "Cast": "1.csv",
        "python": "0.csv",
    }
    assert [json.loads(str(row["row"])) for row in dead if row["stage"] == "Cast"] == [
        {"id": 4, "name": "cleo", "amount": "much"}
    ]
    (mute,) = (row for row in told.values() if row["stage"] == "python")
    assert (mute["error_message"], json.loads(str(mute["row"]))["name"]) == ("no voice", "mute")
    assert lines[0].split()[:4] == ["row", "error_class", "error_message", "stage"]  # `topics tail`: the row, and why
    shown = {re.split("  +", line)[3]: re.split("  +", line)[:3] for line in lines[1:]}
    assert shown == {
        "csv": [
            "two,ben,20",
            "MALFORMED_RECORD",
            "its values do not fit the columns id bigint, name string, amount string",
        ],
        "Cast": ['{"id":4,"name":"cleo","amount":"much"}', "CAST_INVALID_INPUT", "column amount does not fit int"],
        "python": ['{"id": 3, "name": "mute", "amount": 30}', "ValueError", "no voice"],
    }


def test_too_many_dead_letters(tmp_path: Path, home: Path) -> None:
    """The job fails at once, and for good; nothing of the micro-batch is published."""
    write_input(tmp_path, [*(f"{'x' if n < 60 else ''}{n},ada,1" for n in range(100))])
    job = {
        "source": SOURCE,
        "trigger": {"available-now": True},
        "errors": {"tolerance": "all", "max-ratio": 0.5},
        "sink": {"type": "jobpipe", "topic": "good"},
    }
    with Runner(tmp_path, home, write_pipeline(tmp_path, {"publish": job})) as runner:
        assert runner.run() == 1, runner.told
        on_page(runner.output, "TooManyDeadLetters:")
        assert runner.states("publish")[-1] == "FAILED"
        assert "RESTARTING" not in runner.states("publish")


def test_a_topic_without_room(tmp_path: Path, home: Path) -> None:
    """Its publisher is BLOCKED, which costs no attempt, until the subscription that it waits for has read."""
    write_input(tmp_path, *([f"{n},{'x' * 200},1" for n in range(1000)] for _ in range(4)))
    room = {"spool.max_bytes": "300KiB", "segment.max_bytes": "64KiB", "retention.bytes": "0"}
    at_once = {"retention.ack_grace": "0s", "retention.time": "0s"}
    sink = {"type": "jobpipe", "topic": "names", "parallelism": 1, "required-subscribers": ["slow"], "final": True}
    job = {"source": SOURCE, "trigger": {"available-now": True}, "sink": {**sink, **room, **at_once}}
    with Runner(tmp_path, home, write_pipeline(tmp_path, {"publish": job})) as runner:
        runner.start()
        runner.until(lambda: "BLOCKED" in runner.states("publish"), "the end of the room")
        assert "has no room: " in runner.output
        read = 0
        with subscribe(f"{runner.name}.names", name="slow", starting="earliest", config=runner.config) as batches:
            for batch in batches.batches(PATIENCE):
                read += batch.num_rows
        assert runner.wait() == 0, runner.told
        states = runner.states("publish")
    assert (read, states[-1], "RESTARTING" in states) == (4000, "FINISHED", False)


def test_flow_application_pattern_two_sinks_and_batch(tmp_path: Path, home: Path) -> None:
    """Each kind of job, in one pipeline."""
    (tmp_path / "steps.py").write_text(
        "import json, pathlib, pyarrow as pa, pyarrow.compute as pc\n"
        "def double(batch, context):\n"
        "    return pa.record_batch({'id': pc.multiply(batch['id'], 2), 'name': batch['name']})\n"
        "class Files:\n"
        "    def __init__(self, folder):\n"
        "        self.folder = pathlib.Path(folder)\n"
        "        self.folder.mkdir(exist_ok=True)\n"
        "    def __call__(self, batch, batch_id):\n"
        "        rows = [row.asDict() for row in batch.collect()]\n"
        "        (self.folder / f'{batch_id}.json').write_text(json.dumps(rows))\n"
    )
    (tmp_path / "own.py").write_text(
        "import sys, pathlib, jobpipe\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "seen = []\n"
        "rows = spark.readStream.format('jobpipe').option('subscribe', sys.argv[1]).option('name', 'own')\n"
        "rows = rows.option('startingOffsets', 'earliest').load()\n"
        "write = jobpipe.stoppable(lambda batch, n: seen.extend(row.id for row in batch.collect()))\n"
        "query = rows.writeStream.foreachBatch(write).option('checkpointLocation', sys.argv[2]).start()\n"
        "code = jobpipe.run(query)\n"
        "pathlib.Path(sys.argv[3]).write_text(repr(sorted(seen)) + jobpipe.secret('mail'))\n"
        "sys.exit(code)\n"
    )
    (tmp_path / "mail.key").touch(0o600)
    (tmp_path / "mail.key").write_text("canary\n")
    write_input(tmp_path, ["1,ada,1", "2,ben,2"], ["3,cleo,3"])
    folder = str(tmp_path / "files")
    jobs = {
        "first": {
            "source": SOURCE,
            "trigger": {"available-now": True},
            "sink": {"type": "jobpipe", "topic": "names", "final": True},
        },
        "doubled": {
            "type": "flow",
            "source": {"type": "jobpipe", "subscribe": "names", "startingOffsets": "earliest"},
            "function": "steps:double",
            "publish": "names-doubled",
            "schema": "id BIGINT, name STRING",
        },
        "both": {
            "source": {
                "type": "jobpipe",
                "subscribe": "names-doubled",
                "startingOffsets": "earliest",
            },
            "sinks": [
                {"type": "jobpipe", "topic": "out", "final": True},
                {
                    "type": "python",
                    "foreach-batch": "steps:Files",
                    "options": {"folder": folder},
                    "at-least-once": True,
                },
            ],
        },
        "own": {
            "application": "own.py",
            "secrets": {"mail": "file:mail.key"},
            "arguments": ["${var.topic}", str(tmp_path / "own-state"), str(tmp_path / "own.txt")],
        },
    }
    name = "names-doubled"
    file = write_pipeline(tmp_path, jobs, parameters={"topic": name}, **{"topic-prefix": ""})
    with Runner(tmp_path, home, file) as runner:
        assert runner.run() == 0, runner.told
        assert sorted(row["id"] for row in read_topic(runner.config, "out")) == [2, 4, 6]
        assert runner.left() == []
    written = [row["id"] for path in Path(folder).glob("*.json") for row in json.loads(path.read_text())]
    assert sorted(written) == [2, 4, 6]
    assert (tmp_path / "own.txt").read_text() == "[2, 4, 6]canary"


def test_batch_job_publishes_and_writes(tmp_path: Path, home: Path) -> None:
    """A BATCH job ends by itself."""
    write_input(tmp_path, ["1,ada,1", "2,ben,2"])
    job = {
        "execution": {"runtime-mode": "BATCH"},
        "source": {**SOURCE, "options": {"header": True}},
        "transform": [{"type": "sql", "filter": "id > 1"}],
        "sink": {"type": "parquet", "path": "out", "mode": "overwrite"},
    }
    with Runner(tmp_path, home, write_pipeline(tmp_path, {"once": job})) as runner:
        assert runner.run() == 0, runner.told
    assert [row["name"] for row in pq.read_table(tmp_path / "out").to_pylist()] == ["ben"]


def test_a_signal_stops_all(tmp_path: Path, home: Path) -> None:
    """One job waits for a topic that never comes; the graph has those that run. SIGINT: test_standalone_launcher.py."""
    jobs = {
        "endless": {
            "source": {"type": "rate", "options": {"rowsPerSecond": 5}},
            "sink": {"type": "jobpipe", "topic": "rates"},
        },
        "copies": {
            "source": {"type": "jobpipe", "subscribe": "rates", "startingOffsets": "earliest"},
            "sink": {"type": "parquet", "path": "copies"},
        },
        "waits": {
            "source": {"type": "jobpipe", "subscribe": "never", "startingOffsets": "earliest"},
            "sink": {"type": "parquet", "path": "other"},
        },
    }
    with Runner(tmp_path, home, write_pipeline(tmp_path, jobs)) as runner:
        runner.start()
        runner.until(lambda: list((tmp_path / "copies").glob("*.parquet")), "a file")
        runners = runner.runners()
        with Admin(runner.config) as admin:
            topic = admin.status(f"{runner.name}.rates", PATIENCE)
        assert topic.application is not None
        (reader,) = (line.application for line in topic.subscriptions)
        assert reader is not None
        for said, job in ((topic.application, "endless"), (reader, "copies")):
            assert (said.name, said.pipeline, said.job) == (f"{runner.name}.{job}", runner.name, job)
            assert f"-{runners[job].pid}-" in said.id
            assert said.run
        runner.signal(signal.SIGTERM)
        assert runner.wait() == 128 + signal.SIGTERM, runner.told
        assert [runner.states(job)[-1] for job in jobs] == ["STOPPED"] * 3
        assert runner.left() == []
        offsets, commits = (
            {path.name for path in (tmp_path / "state" / "endless" / kind).iterdir() if path.name.isdigit()}
            for kind in ("offsets", "commits")
        )
        assert offsets == commits  # it ended after a whole micro-batch


def test_an_error_that_stays_ends_all(tmp_path: Path, home: Path) -> None:
    """Spark's analysis fails: no second attempt; the other job is stopped; it is told why, and where the log is."""
    write_input(tmp_path, ["1,ada,1"])
    jobs = {
        "wrong": {
            "source": SOURCE,
            "transform": [{"type": "sql", "filter": "no_such_column > 1"}],
            "sink": {"type": "parquet", "path": "out"},
        },
        "other": {"source": {"type": "rate", "options": {}}, "sink": {"type": "parquet", "path": "rates"}},
    }
    with Runner(tmp_path, home, write_pipeline(tmp_path, jobs)) as runner:
        assert runner.run() == 1, runner.told
        assert runner.states("wrong")[-1] == "FAILED"
        assert "RESTARTING" not in runner.states("wrong")
        assert runner.states("other")[-1] in ("STOPPED", "CANCELED")
        assert "no_such_column" in runner.output
        assert "jobs.wrong.transform[0]" in runner.output
        assert str(runner.logs / "wrong.log") in runner.output


def test_the_example_of_dead_letters(tmp_path: Path, home: Path) -> None:
    """What one job could not take another one repairs, and a third one keeps the rest: all orders are somewhere."""
    folder = tmp_path / "dead_letters"
    shutil.copytree(Path(__file__).parents[3] / "examples" / "dead_letters", folder)
    file = folder / "pipeline.yaml"
    file.write_text(file.read_text().replace("  name: repair\n", f"  name: repair-{os.getpid()}\n"))
    with Runner(tmp_path, home, file) as runner:
        assert runner.run() == 0, runner.told

    def rows(name: str) -> list[dict[str, object]]:
        files = (folder / "work" / name).glob("*.json")
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]

    found = {row["id"]: row["amount"] for row in rows("orders")}
    assert (len(rows("orders")), found) == (4, {1: 10.0, 2: 12.5, 3: 7.25, 4: 1000.0})
    (broken,) = rows("broken")
    assert json.loads(str(broken["row"])) == {"id": 5, "customer": "eve", "amount": "a lot"}
    assert broken["error_message"] == "column amount does not fit decimal(10,2)"
