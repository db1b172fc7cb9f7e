"""What Spark prints while it starts: nothing that comes each time, all that is meant; and a log of the user's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jobpipe.spark.session.startup_log import DEFAULT_OPTIONS, start_log

EXTRA = "spark.driver.extraJavaOptions"
SECONDS = 200.0  # of a program with a JVM, on a machine that is shared
PROGRAM = """
import jobpipe
spark = jobpipe.session()
logs = spark._jvm.org.apache.logging.log4j.LogManager
for name in ("acme", "org.apache.spark.util.Utils"):
    logs.getLogger(name).warn("a warning of " + name)
    logs.getLogger(name).info("a remark of " + name)
spark.sparkContext.setLogLevel("INFO")
logs.getLogger("org.apache.spark.util.Utils").info("asked for")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of Spark's configuration."""
    (tmp_path / "conf").mkdir()
    return tmp_path / "conf"


def test_where_the_user_says_nothing(folder: Path) -> None:
    (folder / "log4j2.properties.template").touch()  # as Spark comes
    environ = {"SPARK_CONF_DIR": str(folder)}
    (option,) = start_log({}, environ).values()
    place = option.removeprefix("-Dlog4j2.configurationFile=file://")
    assert Path(place).is_file()
    assert start_log({"spark.master": "local[2]", EXTRA: "-Xss4m"}, environ) == {DEFAULT_OPTIONS: option}
    assert start_log({DEFAULT_OPTIONS: "-Xss4m"}, environ) == {DEFAULT_OPTIONS: f"{option} -Xss4m"}


@pytest.mark.parametrize(
    ("given", "environ"),
    [
        ({EXTRA: "-Dlog4j2.configurationFile=own.xml"}, {}),
        ({DEFAULT_OPTIONS: "-Dlog4j.configurationFile=own.xml"}, {}),
        ({"spark.master": "spark://host:7077"}, {}),
        ({}, {"LOG4J_CONFIGURATION_FILE": "own.xml"}),
        ({}, {"JAVA_TOOL_OPTIONS": "-Dlog4j2.configurationFile=own.xml"}),
    ],
)
def test_where_the_user_says_how(folder: Path, given: dict[str, str], environ: dict[str, str]) -> None:
    assert start_log(given, {"SPARK_CONF_DIR": str(folder), **environ}) == {}


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "SPARK_HOME"])
@pytest.mark.parametrize("name", ["log4j2.properties", "log4j2-test.xml"])
def test_a_file_of_the_users(folder: Path, variable: str, name: str) -> None:
    environ = {variable: str(folder if variable == "SPARK_CONF_DIR" else folder.parent)}
    assert start_log({}, environ)
    (folder / name).touch()
    assert start_log({}, environ) == {}


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_what_a_job_prints() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    before = lines[: next(number for number, line in enumerate(lines) if "a warning of acme" in line)]
    assert [line for line in before if "incubator" not in line] == []  # java's own, of an option of Spark's
    assert "a warning of org.apache.spark.util.Utils" in done.stderr
    assert "a remark of" not in done.stderr
    assert "asked for" in done.stderr
