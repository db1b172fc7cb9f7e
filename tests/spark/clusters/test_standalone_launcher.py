"""``jobpipe pipeline run`` with launcher spark-rest, on a standalone cluster whose parts are killed."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jobpipe.errors import NotAuthorized
from jobpipe.jobs.launchers.cluster_driver import RUNNER
from jobpipe.jobs.launchers.spark_rest_client import Submissions
from jobpipe.jobs.launchers.spark_rest_launcher import SparkRestLauncher
from jobpipe.pipelines.plugins.api import LaunchState, LaunchStatus
from tests.harness.jvm import quick_plain
from tests.pipelines.running import SMALL, Runner, read_topic, write_pipeline
from tests.pipelines.waiting import eventually
from tests.spark.clusters.driver_cluster import SPARK, Standalone

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.timeout(900)]

ROWS = 20
FILES = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as found:
        yield found


def pipeline(folder: Path, cluster: Standalone, jobs: dict[str, object]) -> Path:
    configuration = {
        **SMALL,
        "spark.cores.max": "1",
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": quick_plain(),
        "spark.executor.extraJavaOptions": quick_plain(),
        "spark.jobpipe.spool.placement": "shared",
    }
    launcher = cluster.launcher(environment={"JOBPIPE_CONFIG": str(folder / "jobpipe.yaml")})
    return write_pipeline(folder, jobs, configuration=configuration, launcher=launcher)


def runner_of(jvm: psutil.Process) -> psutil.Process:
    """Return the Python of a driver: the JVM has others, for its data sources."""
    found = []
    for child in jvm.children():
        with contextlib.suppress(psutil.Error):
            if RUNNER in child.cmdline():
                found.append(child)
    (python,) = found
    return python


def status(cluster: Standalone, driver: str) -> LaunchStatus:
    """Return what the launcher says of a driver."""
    given = {key: value for key, value in cluster.launcher().items() if key != "type"}
    launcher = SparkRestLauncher(SparkRestLauncher.parse(given, Path.cwd()))
    return launcher.status(f"{cluster.url}/v1/submissions/status/{driver}")


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def told(cluster: Standalone, runner: Runner) -> str:
    return f"{runner.told}\n{cluster.told()}"


def test_a_driver_is_killed(cluster: Standalone, tmp_path: Path, home: Path) -> None:
    """Two jobs over a topic; ``kill -9`` of one's driver: it is started again, and each row comes out once."""
    (tmp_path / "input").mkdir()
    for number in range(FILES):
        rows = range(number * ROWS, (number + 1) * ROWS)
        (tmp_path / "input" / f"{number:03}.csv").write_text("".join(f"{row},n{row}\n" for row in rows))
    jobs = {
        "publish": {
            "source": {
                "type": "csv",
                "path": "input",
                "schema": "id BIGINT, name STRING",
                "options": {"maxFilesPerTrigger": 1},
            },
            "trigger": {"available-now": True},
            "sink": {"type": "jobpipe", "topic": "rows", "final": True},
        },
        "copy": {
            "source": {
                "type": "jobpipe",
                "subscribe": "rows",
                "startingOffsets": "earliest",
                "maxRowsPerTrigger": ROWS,  # a batch
            },
            "sink": {"type": "jobpipe", "topic": "copied", "final": True},
        },
    }
    with Runner(tmp_path, home, pipeline(tmp_path, cluster, jobs)) as runner:
        runner.start()
        runner.until(lambda: list(tmp_path.glob("state/copy/**/commits/1")), "a micro-batch", 150.0)
        (jvm,) = cluster.drivers(f"{runner.name}.copy")
        python = runner_of(jvm)
        jvm.kill()
        eventually(lambda: ended(python), 20.0)
        assert runner.wait() == 0, told(cluster, runner)
        assert re.search(r"copy: FINISHED, .*, attempt 2\b", runner.output), runner.output  # RESTARTING may pass unseen
        # Its Python may have the time to leave an end record that says that Java is gone, before it ends too.
        unrecorded = r"its process [^,\n]*, without an end record; its log is on worker 127\.0\.0\.1:"
        assert re.search(rf"(attempt 1|restarted after): (Py4J\w+|{unrecorded})", runner.output), runner.output
        assert [runner.states(job)[-1] for job in ("publish", "copy")] == ["FINISHED", "FINISHED"]
        found = sorted(row["id"] for row in read_topic(runner.config, f"{runner.name}.copied"))
    assert found == list(range(FILES * ROWS))
    eventually(lambda: not cluster.drivers(f"{runner.name}.copy"), 20.0)


def test_the_master_is_killed(cluster: Standalone, tmp_path: Path, home: Path) -> None:
    """The job goes on, also when the master is there again; a stop reaches it while the master is away."""
    jobs = {
        "ticks": {
            "source": {"type": "rate", "options": {"rowsPerSecond": 5}},
            "sink": {"type": "jobpipe", "topic": "ticks"},
        }
    }
    with Runner(tmp_path, home, pipeline(tmp_path, cluster, jobs)) as runner:
        runner.start()
        runner.until(lambda: "RUNNING" in runner.states("ticks"), "the lease", 150.0)
        commits = tmp_path / "state" / "ticks"

        def committed() -> int:
            return len(list(commits.glob("**/commits/[0-9]*")))

        runner.until(committed, "a micro-batch", 150.0)
        (jvm,) = cluster.drivers(f"{runner.name}.ticks")
        try:
            cluster.kill_master()
            before = committed()
            runner.until(lambda: committed() > before + 1, "micro-batches without the master")
            cluster.start_master()
            before = committed()
            runner.until(lambda: committed() > before + 1, "micro-batches with the new master")
            assert cluster.drivers(f"{runner.name}.ticks") == [jvm]
            eventually(lambda: status(cluster, Path(jvm.cwd()).name).state is LaunchState.RUNNING)
            cluster.kill_master()
            runner.signal(signal.SIGINT)
            assert runner.wait() == 130, told(cluster, runner)
        finally:
            cluster.start_master()
        assert runner.states("ticks") == ["SUBMITTED", "RUNNING", "STOPPING", "STOPPED"], runner.output
        eventually(lambda: ended(jvm), 30.0)


def test_canceled_by_the_master(cluster: Standalone, tmp_path: Path, home: Path) -> None:
    """The second Ctrl-C: the driver's JVM is killed, and its Python ends with it."""
    jobs = {"ticks": {"source": {"type": "rate"}, "sink": {"type": "console"}}}
    with Runner(tmp_path, home, pipeline(tmp_path, cluster, jobs)) as runner:
        runner.start()
        runner.until(lambda: "RUNNING" in runner.states("ticks"), "the lease", 150.0)
        (jvm,) = cluster.drivers(f"{runner.name}.ticks")
        python = runner_of(jvm)
        python.suspend()  # it cannot hear the order
        try:
            runner.signal(signal.SIGINT)
            runner.until(lambda: "STOPPING" in runner.states("ticks"), "the stop")
            runner.signal(signal.SIGINT)
            assert runner.wait() == 130, told(cluster, runner)
        finally:
            python.resume()
        assert runner.states("ticks")[-1] == "CANCELED", runner.output
        eventually(lambda: ended(jvm) and ended(python), 20.0)


def test_without_the_token(cluster: Standalone) -> None:
    """JWSFilter refuses; with the token an id that the master does not know is UNKNOWN."""
    with pytest.raises(NotAuthorized, match="wants a token"):
        Submissions(cluster.url, None).status("driver-1")
    found = status(cluster, "driver-1")
    assert (found.state, "does not know it" in found.detail) == (LaunchState.UNKNOWN, True)


FAKE_SUBMIT = """#!{python}
import os, subprocess, sys
given = sys.argv[1:]
assert given[:4] == ["--master", "yarn", "--deploy-mode", "cluster"], given
command = ["{real}", "--master", "local[2]", *given[4:]]
environ = {{**os.environ, "SPARK_HOME": "{spark}", "PYSPARK_PYTHON": "{python}", "JOBPIPE_CONFIG": "{config}"}}
script = '"$@"; echo $? > {folder}/code.new; mv {folder}/code.new {folder}/code'
with open("{folder}/driver.log", "wb") as log:
    process = subprocess.Popen(
        ["sh", "-c", script, "driver", *command], stdout=log, stderr=log, env=environ, start_new_session=True
    )
open("{folder}/pid", "w").write(str(process.pid))
print("INFO Client: Submitted application application_1700000000000_0042")
"""
FAKE_YARN = """#!{python}
import os, pathlib, signal, sys
assert sys.argv[1] == "application" and sys.argv[3] == "application_1700000000000_0042", sys.argv
code = pathlib.Path("{folder}/code")
if sys.argv[2] == "-kill":
    os.killpg(int(open("{folder}/pid").read()), signal.SIGKILL)
elif code.exists():
    print("\\tState : FINISHED\\n\\tFinal-State : " + ("SUCCEEDED" if code.read_text() == "0\\n" else "FAILED"))
else:
    print("\\tState : RUNNING\\n\\tFinal-State : UNDEFINED")
"""


def test_the_form_of_spark_submit(tmp_path: Path, home: Path) -> None:
    """Its programs are the test's: the driver is a real one of spark-submit in client mode, with the JVM above it."""
    folder = tmp_path / "fake"
    folder.mkdir()
    values = {
        "python": sys.executable,
        "real": SPARK / "bin" / "spark-submit",
        "spark": SPARK,
        "config": tmp_path / "jobpipe.yaml",
        "folder": folder,
    }
    for name, text in (("spark-submit", FAKE_SUBMIT), ("yarn", FAKE_YARN)):
        (folder / name).write_text(text.format(**values))
        (folder / name).chmod(0o700)
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "a.csv").write_text("".join(f"{row},n{row}\n" for row in range(ROWS)))
    source = {"type": "csv", "path": "input", "schema": "id BIGINT, name STRING"}
    sink = {"type": "jobpipe", "topic": "rows", "final": True}
    file = write_pipeline(
        tmp_path,
        {"publish": {"source": source, "trigger": {"available-now": True}, "sink": sink}},
        configuration={**SMALL, "spark.jobpipe.spool.placement": "shared"},
        launcher={
            "type": "spark-submit",
            "master": "yarn",
            "python": sys.executable,
            "spark-submit": str(folder / "spark-submit"),
            "yarn": str(folder / "yarn"),
        },
    )
    with Runner(tmp_path, home, file) as runner:
        assert runner.run() == 0, f"{runner.told}\n{(folder / 'driver.log').read_text()[-3000:]}"
        assert runner.states("publish") == ["SUBMITTED", "RUNNING", "FINISHED"]
        assert sorted(row["id"] for row in read_topic(runner.config, f"{runner.name}.rows")) == list(range(ROWS))
