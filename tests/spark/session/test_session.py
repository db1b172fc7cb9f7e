"""``jobpipe.session``: settings where nothing else is set, and the doctor that misses them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jobpipe
from jobpipe.errors import ConfigError
from jobpipe.spark.session import job_session
from jobpipe.spark.session.job_session import (
    ARROW_ROWS,
    SHUFFLE_PARTITIONS,
    UNIX_SOCKETS,
    lacking,
    missing,
    require_java,
)
from jobpipe.spark.session.launch_settings import coming_launch
from jobpipe.spark.session.local_checkpoint_files import CLASS_PATHS, FILE_IMPL, JAR, LOCAL_FS
from tests.spark.kit import JOBS, ROOT, as_a_user

SCRIPTS = Path(sys.executable).parent
WORD = uuid.uuid4().hex
SECONDS = 200.0  # of a program with a JVM, on a machine that is shared


@pytest.fixture(autouse=True)
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has not made a session yet."""
    monkeypatch.setitem(sys.modules, "pyspark.core.context", None)
    monkeypatch.setattr("jobpipe.spark.session.launch_settings._installed_home", lambda: None)
    spark = ("CONF_DIR", "HOME", "REMOTE", "CONNECT_MODE_ENABLED", "API_MODE")
    for name in ("MASTER", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", *(f"SPARK_{each}" for each in spark)):
        monkeypatch.delenv(name, raising=False)


def test_without_java_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `jobpipe pipeline run` does; Spark would say that its gateway has exited."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    require_java()
    program.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="Java"):
        require_java()


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
    given = {"spark.master": "spark://host:7077"}
    assert missing(given) == {UNIX_SOCKETS: "true", ARROW_ROWS: "50000"}
    assert lacking({**given, **missing(given)}) == []
    assert SHUFFLE_PARTITIONS not in missing({"spark.master": "local-cluster[2,1,1024]"})


def test_yarn() -> None:
    """Its folders have names that are too long for a socket, unless another folder is chosen."""
    given = {"spark.master": "yarn"}
    assert missing(given) == {ARROW_ROWS: "50000"}
    assert lacking(given) == []
    given["spark.python.unix.domain.socket.dir"] = "/tmp"
    assert missing(given) == {UNIX_SOCKETS: "true", ARROW_ROWS: "50000"}
    assert len(lacking(given)) == 1


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
    monkeypatch.setenv("MASTER", "spark://host:7077")  # the weakest
    assert coming_launch().conf["spark.master"] == "local[5]"
    (tmp_path / "spark-defaults.conf").write_bytes(f"# f\xfcr\n{ARROW_ROWS} 3\n".encode("latin-1"))
    assert coming_launch().conf == {ARROW_ROWS: "3", "spark.master": "spark://host:7077"}


def test_a_class_path_that_would_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark gives these words to spark-submit after the session's settings: the class would not be found."""
    for words in ("--conf spark.driver.defaultExtraClassPath=/opt/site/*", "--driver-default-class-path /opt/site/*"):
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{words} pyspark-shell")
        assert FILE_IMPL not in missing(coming_launch().conf)


class Builder:
    """What ``jobpipe.session`` does with a session of Spark Connect: nothing."""

    def __init__(self, **options: str) -> None:
        self._options = options

    def getOrCreate(self) -> str:
        return "as it is"


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({"SPARK_REMOTE": "sc://host"}, {}),
        ({"SPARK_CONNECT_MODE_ENABLED": "1"}, {}),
        ({"SPARK_API_MODE": "connect"}, {}),
        ({}, {"spark.remote": "sc://host"}),
        ({}, {"spark.api.mode": "Connect"}),
    ],
)
def test_spark_connect(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], options: dict[str, str]) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    builder: Any = Builder(**options)
    assert jobpipe.session(builder) == "as it is"


class Settled(Exception):
    """The session would be made now."""


class Noting(Builder):
    """Takes settings as Spark's does, and makes no session."""

    def config(self, key: str, value: str) -> Noting:
        self._options[key] = value
        return self

    def getOrCreate(self) -> str:
        raise Settled


def settled(master: str) -> dict[str, str]:
    """Return what a builder is told."""
    builder: Any = Noting(**{"spark.master": master})
    with pytest.raises(Settled):
        jobpipe.session(builder)
    return builder._options


def test_a_cluster_after_a_local_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM has what was chosen for the first session: executors elsewhere would not find the class."""
    monkeypatch.setattr(job_session, "_chosen", {})
    context = SimpleNamespace(_active_spark_context=None, _jvm=None)
    monkeypatch.setattr("pyspark.SparkContext", context)
    first = settled("local[2]")
    context._jvm = object()
    monkeypatch.setattr("pyspark.SparkConf", lambda: SimpleNamespace(getAll=lambda: first.items()))
    second = settled("spark://host:7077")
    assert (second[FILE_IMPL], second[SHUFFLE_PARTITIONS]) == ("org.apache.hadoop.fs.local.LocalFs", "200")
    assert settled("local[4]")[SHUFFLE_PARTITIONS] == "4"


def test_what_a_session_lacks() -> None:
    """Spark's own settings on a local master, each with what it costs; the user's own are left alone."""
    for line, key in zip(lacking({}), (UNIX_SOCKETS, LOCAL_FS, SHUFFLE_PARTITIONS), strict=True):
        assert key in line
    assert lacking({UNIX_SOCKETS: "false", FILE_IMPL: "own.Fs", SHUFFLE_PARTITIONS: "200"}) == []


def run(how: str, *command: str) -> Any:
    done = subprocess.run(
        [*command, str(JOBS / "made_session.py"), how, WORD],
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
    """Return what the doctor says of the session; others of this user may have some too."""
    return [line for line in found["doctor"] if line["detail"].startswith(f"made {how} {WORD} (")]


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
    assert found["third"] == {**found["settings"], SHUFFLE_PARTITIONS: "2", "partitions": 2}


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_a_session_that_exists() -> None:
    """What needs a new JVM, or a new session, stays as it is; the doctor names all that it lacked at its start."""
    found = run("plain", sys.executable)
    (finding,) = findings(found["before"], "plain")
    assert finding["status"] == "warn"
    assert all(key in finding["detail"] for key in (UNIX_SOCKETS, LOCAL_FS, SHUFFLE_PARTITIONS))
    assert found["before"]["settings"]["partitions"] == 200
    assert found["after"][ARROW_ROWS] == "50000"
    assert found["after"]["partitions"] == 3
    assert found["after"][FILE_IMPL] is None


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_under_spark_submit() -> None:
    """Its own settings win; its JVM runs already, so the classes are left out; the doctor cannot know the session."""
    given = ("--master", "local[1]", "--name", f"made submitted {WORD}", "--conf", f"{ARROW_ROWS}=9")
    found = run("submitted", str(SCRIPTS / "spark-submit"), *given)
    assert found["settings"] == {
        UNIX_SOCKETS: "true",
        ARROW_ROWS: "9",
        SHUFFLE_PARTITIONS: "3",
        FILE_IMPL: None,
        "partitions": 3,
    }
    assert not findings(found, "submitted")
