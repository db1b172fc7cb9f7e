"""``jobpipe.session``: settings where nothing else is set, and the doctor that misses them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobpipe.spark.launched import coming_launch
from jobpipe.spark.local_files import CLASS_PATHS, FILE_IMPL, JAR, LOCAL_FS
from jobpipe.spark.session import ARROW_ROWS, SHUFFLE_PARTITIONS, UNIX_SOCKETS, lacking, missing
from tests.spark.kit import JOBS, ROOT, as_a_user

SCRIPTS = Path(sys.executable).parent
SECONDS = 200.0  # of a program with a JVM, on a machine that is shared


@pytest.fixture(autouse=True)
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has not made a session yet."""
    monkeypatch.setitem(sys.modules, "pyspark.core.context", None)
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("master", "cores"), [("local", "1"), ("local[3]", "3"), ("local[3,2]", "3")])
def test_a_local_master(master: str, cores: str) -> None:
    found = missing({"spark.master": master})
    assert found == {
        UNIX_SOCKETS: "true",
        ARROW_ROWS: "50000",
        SHUFFLE_PARTITIONS: cores,
        FILE_IMPL: LOCAL_FS,
        **dict.fromkeys(CLASS_PATHS, str(JAR)),
    }
    assert lacking({**found, "spark.master": master}) == []


@pytest.mark.parametrize("given", [{}, {"spark.master": "local[*]"}])
def test_all_cores(given: dict[str, str]) -> None:
    """The same without a master, for which Spark takes local[*]."""
    assert missing(given)[SHUFFLE_PARTITIONS] == str(len(os.sched_getaffinity(0)))


def test_a_cluster() -> None:
    """Its executors may be elsewhere, without the classes; how many cores it has is not known."""
    found = missing({"spark.master": "spark://host:7077"})
    assert found == {UNIX_SOCKETS: "true", ARROW_ROWS: "50000"}
    assert lacking({**found, "spark.master": "yarn"}) == []


def test_what_is_set_is_kept() -> None:
    own = {UNIX_SOCKETS: "false", ARROW_ROWS: "7", SHUFFLE_PARTITIONS: "8", FILE_IMPL: "own.Fs"}
    assert missing(own) == {}
    site = missing({CLASS_PATHS[0]: "/opt/site/*"})
    assert site[CLASS_PATHS[0]] == f"/opt/site/*:{JAR}"  # the class must be found there
    assert site[CLASS_PATHS[1]] == str(JAR)


def test_where_settings_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the JVM of ``python job.py`` will read, apart from the builder; the strongest source wins."""
    (tmp_path / "spark-defaults.conf").write_text(f"{ARROW_ROWS} 1\n{SHUFFLE_PARTITIONS} 2\nspark.master local[5]\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert coming_launch().conf == {ARROW_ROWS: "1", SHUFFLE_PARTITIONS: "2", "spark.master": "local[5]"}
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--master yarn --conf {ARROW_ROWS}=9 pyspark-shell")
    assert coming_launch().conf == {ARROW_ROWS: "9", SHUFFLE_PARTITIONS: "2", "spark.master": "yarn"}
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf 'half")  # spark-submit says so
    assert coming_launch().conf[ARROW_ROWS] == "1"


def test_what_a_session_lacks() -> None:
    """Spark's own settings on a local master, each with what it costs."""
    assert [line.partition(":")[0].partition("=")[0] for line in lacking({})] == [
        UNIX_SOCKETS,
        FILE_IMPL,
        SHUFFLE_PARTITIONS,
    ]
    assert len(lacking({"spark.master": "yarn"})) == 1


def run(how: str, *command: str) -> Any:
    done = subprocess.run(
        [*command, str(JOBS / "made_session.py"), how],
        env={
            **as_a_user(),
            "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def findings(found: Any, how: str) -> list[dict[str, str]]:
    """Return what the doctor says of the session; other tests may have sessions too."""
    return [line for line in found["doctor"] if line["detail"].startswith(f"made {how} (")]


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_our_session() -> None:
    found = run("ours", sys.executable)
    assert found["settings"] == {
        UNIX_SOCKETS: "true",
        ARROW_ROWS: "77",  # the builder's
        SHUFFLE_PARTITIONS: "3",
        FILE_IMPL: LOCAL_FS,
        "partitions": 3,
    }
    assert [line["status"] for line in findings(found, "ours")] == ["ok"]
    assert found["again"] is True
    assert found["second"] == {**found["settings"], SHUFFLE_PARTITIONS: "5", "partitions": 5}  # 77: the JVM's by now


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_a_session_that_exists() -> None:
    """What needs a new JVM, or a new session, stays as it is; the doctor names all that it lacked at its start."""
    found = run("plain", sys.executable)
    (finding,) = findings(found["before"], "plain")
    assert finding["status"] == "warn"
    assert all(key in finding["detail"] for key in (UNIX_SOCKETS, FILE_IMPL, SHUFFLE_PARTITIONS))
    assert found["before"]["settings"]["partitions"] == 200
    assert found["after"][ARROW_ROWS] == "50000"
    assert found["after"]["partitions"] == 3
    assert found["after"][FILE_IMPL] is None


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_under_spark_submit() -> None:
    """Its own settings win; its JVM runs already, so the classes are left out; the doctor cannot know the session."""
    given = ("--master", "local[1]", "--conf", f"{ARROW_ROWS}=9")
    found = run("submitted", str(SCRIPTS / "spark-submit"), *given)
    assert found["settings"] == {
        UNIX_SOCKETS: "true",
        ARROW_ROWS: "9",
        SHUFFLE_PARTITIONS: "3",
        FILE_IMPL: None,
        "partitions": 3,
    }
    assert found["doctor"] == [] or not findings(found, "submitted")
