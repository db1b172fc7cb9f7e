"""What the environment says of Python and Spark, and what of it a job's driver takes (Q8)."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pyspark
import pytest

from jobpipe.errors import ConfigError
from jobpipe.jobs.runner import driver_environment
from jobpipe.jobs.runner.driver_environment import prepare_environment

OURS = {"PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": sys.executable}


def spark_home(folder: Path, version: str) -> str:
    """Make what tells a Spark: its spark-submit, and the jar of its core."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "spark-submit").touch()
    (folder / "jars").mkdir()
    (folder / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return str(folder)


def prepared(caplog: pytest.LogCaptureFixture, master: str = "local[1]", **given: str) -> tuple[dict[str, str], str]:
    """Return the environment of a driver, and what was logged."""
    environ = {**OURS, **given}
    with caplog.at_level(logging.WARNING):
        prepare_environment(master, environ)
    return environ, caplog.text


@pytest.mark.parametrize("master", ["local[1]", "spark://host:7077", ""])
def test_what_is_right_stays(caplog: pytest.LogCaptureFixture, tmp_path: Path, master: str) -> None:
    home = spark_home(tmp_path, pyspark.__version__)
    environ, said = prepared(caplog, master, SPARK_HOME=home, PYSPARK_DRIVER_PYTHON=sys.executable)
    assert (environ, said) == ({**OURS, "SPARK_HOME": home}, "")


@pytest.mark.parametrize("master", ["local[1]", "spark://host:7077"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYSPARK_DRIVER_PYTHON", "jupyter"),
        ("SPARK_REMOTE", "sc://host:15002/;token=canary"),
        ("SPARK_CONNECT_MODE_ENABLED", "1"),
        ("SPARK_API_MODE", "connect"),
    ],
)
def test_what_leads_a_driver_elsewhere_is_taken_away(
    caplog: pytest.LogCaptureFixture, master: str, name: str, value: str
) -> None:
    """With a line in the log that names it, and shows no token."""
    environ, said = prepared(caplog, master, **{name: value})
    assert environ == OURS
    assert name in said
    assert "is ignored" in said
    assert "canary" not in said


def test_workers_are_of_a_python_with_jobpipe(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """One that has it, of another environment, stays; so does that of a cluster's hosts, which is not here."""
    other, broken = tmp_path / "python-with", tmp_path / "python-without"
    other.write_text("#!/bin/sh\nprintf %d.%d {} {}\n".format(*sys.version_info[:2]))
    broken.write_text("#!/bin/sh\necho 'ModuleNotFoundError: jobpipe' >&2; exit 1\n")
    for each in (other, broken):
        each.chmod(0o700)
    assert prepared(caplog, PYSPARK_PYTHON=str(other)) == ({**OURS, "PYSPARK_PYTHON": str(other)}, "")
    on_cluster, said = prepared(caplog, "spark://host:7077", PYSPARK_PYTHON="/opt/python")
    assert (on_cluster["PYSPARK_PYTHON"], said) == ("/opt/python", "")
    environ, said = prepared(caplog, PYSPARK_PYTHON=str(broken))
    assert environ == OURS
    assert f"PYSPARK_PYTHON={broken} is ignored: it cannot import jobpipe: ModuleNotFoundError" in said
    environ = {"PATH": ""}
    prepare_environment("local", environ)
    assert environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.parametrize("version", ["3.5.9", "4.0.1", None])
def test_another_spark_is_taken_away(caplog: pytest.LogCaptureFixture, tmp_path: Path, version: str | None) -> None:
    home = str(tmp_path) if version is None else spark_home(tmp_path / "spark", version)
    environ, said = prepared(caplog, SPARK_HOME=home)
    assert environ == OURS
    has = f"it has Spark {version[:3]}" if version else "it has no Spark"
    assert f"SPARK_HOME={home} is ignored: {has}, and PySpark here is {pyspark.__version__}" in said


def test_another_spark_is_refused_where_there_is_no_other(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark without jars, as pyspark-client has it."""
    monkeypatch.setattr(driver_environment.importlib.util, "find_spec", lambda name: None)
    right, wrong = spark_home(tmp_path / "a", pyspark.__version__), spark_home(tmp_path / "b", "3.5.9")
    assert prepared(caplog, SPARK_HOME=right)[0]["SPARK_HOME"] == right
    with pytest.raises(ConfigError, match=r"SPARK_HOME=.* has Spark 3\.5, and PySpark here is .*; set SPARK_HOME to"):
        prepared(caplog, SPARK_HOME=wrong)


def test_a_cluster_has_chosen_spark_and_python(tmp_path: Path) -> None:
    """The driver's JVM runs already; a session of Spark Connect would be wrong there, too."""
    given = {"SPARK_HOME": str(tmp_path), "PYSPARK_PYTHON": "/opt/python", "PYSPARK_DRIVER_PYTHON": "/opt/python"}
    environ = {**given, "SPARK_REMOTE": "sc://host"}
    prepare_environment("", environ, has_jvm=True)
    assert environ == given
