"""Submission as users do it: the commands of docs/deploy.md, with settings of jobpipe as ``--conf`` alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

import jobpipe
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.docs.pages import block, shell
from tests.spark.clusters.standalone import SCRIPTS, Cluster, bash, conf, environment, running_cluster
from tests.spark.kit import JOBS, Job, Place, until, write_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PAGE = "docs/deploy.md"
BATCHES = 4
JOB_SECONDS = 400.0  # of one application: a JVM for the driver and one for the executor, on a machine that is shared
SMALL = {"spark.driver.memory": "512m", "spark.executor.memory": "512m"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of the page."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), block(PAGE, "standalone")) as cluster:
        yield cluster


def of_spark(settings: dict[str, str]) -> dict[str, str]:
    """Return settings by the names that they have in Spark's."""
    return {f"spark.{key}": value for key, value in settings.items()}


def submit(place: Place, script: str, *arguments: object, settings: dict[str, str]) -> Job:
    """Run ``jobs/SCRIPT.py`` by spark-submit in this process's host; settings are given as ``--conf`` alone."""
    given = {"spark.driver.memory": "512m", **of_spark(settings)}
    command = [str(SCRIPTS / "spark-submit"), "--master", "local[1]"]
    command += [part for key, value in given.items() for part in ("--conf", f"{key}={value}")]
    return run(place, command, script, "local[1]", *arguments)


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


def program(folder: Path, name: str, *arguments: object) -> None:
    """Write the page's program ``NAME.py``: ``jobs/NAME.py`` with these arguments."""
    (folder / f"{name}.py").write_text(
        f"import runpy, sys\nsys.argv[1:] = {[*map(str, arguments)]}\nsys.path.insert(0, {str(JOBS)!r})\n"
        f"runpy.run_path({str(JOBS / name)!r} + '.py', run_name='__main__')\n"
    )


def test_publisher_and_subscriber_on_a_standalone_cluster(place: Place, cluster: Cluster, tmp_path: Path) -> None:
    """Case 4: executors of one application publish, those of another read; each has every row once, in order."""
    rows, journal = NumberedRows("submitted", partitions=3, rows=50), Journal()
    for batch_id in range(BATCHES):
        with journal.sealing(batch_id, rows.ranges(batch_id)):
            pass
    write_files(tmp_path / "files", rows, range(BATCHES))
    target = tmp_path / "target"
    program(tmp_path, "subscribe", cluster.address, target, "submitted")
    published = (tmp_path / "files", tmp_path / "checkpoint", "tasks", "target-submitted")
    program(tmp_path, "publish", cluster.address, "submitted", *published)
    # The coordinator ends when the subscriber has read; a slow machine starts that one slowly.
    settings = {**of_spark({**place.settings, "jobpipe.coordinator.linger": "200s"}), **SMALL}
    del settings["spark.jobpipe.spool.dir"]  # the page has it
    text = cluster.on(block(PAGE, "submit")).replace("zk1:2181,zk2:2181,zk3:2181", f"embedded {conf(settings)}")
    text = text.replace("10.1.2.0/24", "127.0.0.0/8").replace("/data/jobpipe", str(tmp_path / "spool"))
    commands = re.split(r"^(?=spark-submit )", text, flags=re.MULTILINE)[1:]
    jobs: list[Job] = []
    try:
        for name, command in zip(("publish", "subscribe"), commands, strict=True):
            jobs.append(bash(command, tmp_path / f"{name}.out", tmp_path, environment()))
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


def test_cluster_mode(place: Place, cluster: Cluster, tmp_path: Path) -> None:
    """The driver is the worker's child; settings come in the request; who kills its JVM ends its Python too."""
    script = tmp_path / "publish.py"
    script.write_text(block("README.md", "publish"))
    settings = {**of_spark(place.settings), **SMALL, "spark.cores.max": "1"}
    text = cluster.on(block(PAGE, "rest")).replace("/opt/jobs/publish.py", str(script))
    text = text.replace("/opt/jobpipe/venv/bin/python", sys.executable)
    text = text.replace('"zk1:2181"', '"embedded", ' + json.dumps(settings).strip("{}"))
    done = shell(text, tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["success"], answer
    try:
        patient = place.config(**{"jobpipe.discovery.timeout": f"{JOB_SECONDS:.0f}s"})
        with jobpipe.subscribe("orders", name="reader", starting="earliest", config=patient) as batches:
            batch = next(iter(batches))
        assert batch.schema.names == ["id", "customer", "amount"]
        assert programs(script)
    finally:
        kill = f"http://127.0.0.1:{cluster.rest}/v1/submissions/kill/{answer['submissionId']}"
        shell(f"curl -s -X POST {kill}", tmp_path)
    until(lambda: not programs(script), "the driver's end")


def programs(script: Path) -> list[int]:
    """Return the processes that run a program."""
    found = psutil.process_iter(["pid", "cmdline"])
    return [each.pid for each in found if str(script) in " ".join(each.info["cmdline"] or ())]


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
    job = submit(late, "settings", "late", f"spark.{namespace}={late.settings[namespace]}", settings=early)
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
