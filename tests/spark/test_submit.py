"""Submission as users do it: spark-submit to a standalone cluster, with settings of jobpipe as ``--conf`` alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobpipe.testing import Checker, Journal, NumberedRows
from tests.spark.kit import JOBS, PATIENCE, ROOT, Job, Place, until, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SCRIPTS = Path(sys.executable).parent  # where pip put spark-submit and spark-class
BATCHES = 4
JOB_SECONDS = 400.0  # of one application: a JVM for the driver and one for the executor, on a machine that is shared


def environment(**more: str) -> dict[str, str]:
    """Return what all processes have: Python and jobpipe, and no setting of ours."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JOBPIPE_")}
    needed = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**clean, **needed, **more}


def daemon(log: Path, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
    """Start a daemon of Spark."""
    with log.open("wb") as out:
        return subprocess.Popen(
            [str(SCRIPTS / "spark-class"), *arguments], stdout=out, stderr=out, env=environment(**environ)
        )


def said(log: Path, process: subprocess.Popen[bytes], pattern: str) -> str:
    """Wait for a line in a daemon's log; return its first group."""

    def look() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text()
        return re.search(pattern, log.read_text())

    match = until(look, f"{pattern} in {log}")
    return str(match.group(1))


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A standalone cluster of one worker on loopback; the address of its master."""
    folder = tmp_path_factory.mktemp("cluster")
    daemons = []
    try:
        log = folder / "master.log"
        name = "org.apache.spark.deploy.master.Master"
        daemons.append(daemon(log, name, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"))
        address = said(log, daemons[0], r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        said(log, daemons[0], r"(elected leader)")
        log = folder / "worker.log"
        name = "org.apache.spark.deploy.worker.Worker"
        sizes = ["--cores", "2", "--memory", "1536m", "--webui-port", "0", "--work-dir", str(folder / "work")]
        daemons.append(daemon(log, name, "--host", "127.0.0.1", *sizes, address))
        said(log, daemons[1], r"(Successfully registered with master)")
        yield address
    finally:
        for process in reversed(daemons):
            process.terminate()
            process.wait(PATIENCE)


def submit(place: Place, master: str, script: str, *arguments: object, settings: dict[str, str] | None = None) -> Job:
    """Run ``jobs/SCRIPT.py`` by spark-submit in client mode; settings are given as ``--conf``, and in no other way."""
    conf = {
        "spark.driver.memory": "512m",
        **{f"spark.{key}": value for key, value in (place.settings if settings is None else settings).items()},
    }
    command = [
        str(SCRIPTS / "spark-submit"),
        *("--master", master, "--deploy-mode", "client"),
        *("--total-executor-cores", "1", "--executor-memory", "512m"),
        *(part for key, value in conf.items() for part in ("--conf", f"{key}={value}")),
    ]
    return run(place, command, script, master, *arguments)


def run(place: Place, command: list[str], script: str, *arguments: object) -> Job:
    """Start ``jobs/SCRIPT.py`` by ``command``."""
    output = place.folder / f"submit-{script}.out"
    with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(
            [*command, str(JOBS / f"{script}.py"), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(),
        )
    return Job(process, script, output)


def test_publisher_and_subscriber_on_a_standalone_cluster(place: Place, master: str) -> None:
    """Case 4: executors of one application publish, those of another read; each has every row once, in order."""
    rows, journal = NumberedRows("submitted", partitions=3, rows=50), Journal()
    for batch_id in range(BATCHES):
        with journal.sealing(batch_id, rows.ranges(batch_id)):
            pass
    write_files(place.folder / "files", rows, range(BATCHES))
    target = place.folder / "target"
    jobs: list[Job] = []
    try:
        jobs.append(submit(place, master, "subscribe", target, "submitted"))
        published = (place.folder / "files", place.checkpoint("submitted"), "tasks", "target-submitted")
        # The coordinator ends when the subscriber has read; a slow machine starts that one slowly.
        patient = {**place.settings, "jobpipe.coordinator.linger": "200s"}
        jobs.append(submit(place, master, "publish", "submitted", *published, settings=patient))
        for job in jobs:
            job.result(JOB_SECONDS)
    finally:
        for job in jobs:
            job.kill()
    checker = Checker(rows, journal)
    tables = [pq.read_table(path) for path in sorted((target / "submitted").glob("*.parquet"))]
    for table in tables:
        checker.take(table)
    checker.check()


@pytest.fixture(scope="module")
def late(place: Place) -> Iterator[Place]:
    """A topic of 40 rows."""
    with place.publisher("late") as publisher:
        place.seal(publisher, range(2), partitions=2, rows=10)
        yield place


def test_settings_that_come_after_the_jvm_need_a_word(late: Place) -> None:
    """builder.config under spark-submit: the error says what to do, and that helps."""
    namespace = "jobpipe.registerserver.topic.storage"
    early = {key: value for key, value in late.settings.items() if key != namespace}
    job = submit(late, "local[1]", "settings", "late", f"spark.{namespace}={late.settings[namespace]}", settings=early)
    try:
        result = job.result(JOB_SECONDS)
    finally:
        job.kill()
    assert "TopicNotFound" in result["before"]
    assert "Under spark-submit the source sees such settings only after jobpipe.register(spark)" in result["before"]
    assert result["after"] == 40


def test_settings_of_a_program_that_python_runs(late: Place) -> None:
    """builder.config is enough: PySpark starts the JVM with it."""
    pairs = [f"spark.{key}={value}" for key, value in late.settings.items()]
    job = run(late, [sys.executable], "settings", "local[1]", "late", *pairs)
    try:
        assert job.result(JOB_SECONDS) == {"before": 40, "after": 40}
    finally:
        job.kill()
