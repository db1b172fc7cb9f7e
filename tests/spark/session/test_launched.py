"""How the settings of a session reach processes that have none: by how its JVM was started. No JVM is needed here."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import jobpipe
from jobpipe.errors import ConfigError
from jobpipe.spark.session.launch_settings import LaunchSettings, launch, parse_command, require_installed

JAVA = "-cp /a:/b -Xmx1g --add-opens java.base/java.lang=ALL-UNNAMED -Dspark.jobpipe.java=java -Dspark.x=y"
SUBMIT = f"{JAVA} org.apache.spark.deploy.SparkSubmit"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A folder with spark-defaults.conf and two properties files."""
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\n"
        "spark.jobpipe.a   defaults\n"
        "spark.jobpipe.b=defaults\n"
        "spark.jobpipe.c : defaults\n"
        "spark.jobpipe.d de\\u0041f\\tx with blanks  \n"
        "spark.jobpipe.e defaults\\\n   goes on\n"
        "spark.jobpipe.java defaults\n"
        "spark.master local[1]\n"
    )
    (tmp_path / "one.conf").write_text("spark.jobpipe.a one\nspark.jobpipe.x one\n")
    (tmp_path / "two.conf").write_text("spark.jobpipe.a two\nspark.jobpipe.y two\n")
    return tmp_path


DEFAULTS = {
    "a": "defaults",
    "b": "defaults",
    "c": "defaults",
    "d": "deAf\tx with blanks",
    "e": "defaultsgoes on",
    "java": "defaults",
}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"{SUBMIT} app.py", DEFAULTS),
        (f"{SUBMIT} --verbose --conf spark.jobpipe.a=1 --name n -c spark.jobpipe.a=2 app.py", {**DEFAULTS, "a": "2"}),
        (f"{SUBMIT} -c spark.jobpipe.a=2 --conf spark.jobpipe.a=1 app.py", {**DEFAULTS, "a": "1"}),
        (f"{SUBMIT} --conf=spark.jobpipe.a=1=2 app.py --conf spark.jobpipe.z=9", {**DEFAULTS, "a": "1=2"}),
        (f"{SUBMIT} --properties-file one.conf app.py", {"java": "java", "a": "one", "x": "one"}),
        (
            f"{SUBMIT} --properties-file one.conf --load-spark-defaults app.py",
            {**DEFAULTS, "a": "one", "x": "one"},
        ),
        (
            f"{SUBMIT} --extra-properties-file two.conf --properties-file one.conf app.py",
            {"java": "java", "a": "two", "x": "one", "y": "two"},
        ),
        (f"{SUBMIT} --extra-properties-file=two.conf app.py", {**DEFAULTS, "a": "two", "y": "two"}),
        # a driver that a standalone worker, or YARN, started
        (f"{JAVA} org.apache.spark.deploy.worker.DriverWrapper url app.py x.Main", {"java": "java"}),
        (f"{JAVA} x.ApplicationMaster --class c --properties-file one.conf", {"java": "java", "a": "one", "x": "one"}),
        ("", {}),
    ],
)
def test_settings_as_spark_resolves_them(conf: Path, command: str, expected: dict[str, str]) -> None:
    """The same commands were given to spark-submit 4.3.0, whose session had these values."""
    found = parse_command(command.split(), {"SPARK_CONF_DIR": str(conf), "SPARK_HOME": "/nowhere"}, conf)
    assert found.settings == {f"spark.jobpipe.{key}": value for key, value in expected.items()}


def test_where_the_defaults_are(conf: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "conf").symlink_to(conf)
    found = parse_command(f"{SUBMIT} app.py".split(), {"SPARK_HOME": str(tmp_path / "home")}, tmp_path)
    assert found.settings["spark.jobpipe.a"] == "defaults"
    assert parse_command(f"{SUBMIT} app.py".split(), {}, tmp_path).settings == {"spark.jobpipe.java": "java"}


def test_who_started_the_jvm() -> None:
    """With python, builder.config stands in the command; with spark-submit it comes too late for that."""
    assert not parse_command([*SUBMIT.split(), "--conf", "spark.x=1", "pyspark-shell"], {}, Path()).submitted
    assert parse_command([*SUBMIT.split(), "--conf", "spark.x=1", "app.py", "pyspark-shell"], {}, Path()).submitted


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["--conf", "spark.x=1", "/srv/report.py", "--password", "secret"], "report.py"),
        (["--class", "com.example.Main", "report.jar", "secret.py"], ""),
        (["pyspark-shell"], ""),
        ([], ""),
    ],
)
def test_which_file_was_submitted(words: list[str], program: str) -> None:
    """Its name alone, for people."""
    assert parse_command([*SUBMIT.split(), *words], {}, Path()).program == program


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, 2),
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[1]"}, 1),
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[2,3]"}, 2),  # threads, and failures of a task
        ({"spark.master": "local[*]"}, 6),
        ({"spark.master": "local[*,3]"}, 6),
        ({"spark.master": "local[3]", "spark.default.parallelism": "17"}, 17),
        ({"spark.default.parallelism": "0"}, 1),
        ({"spark.default.parallelism": "many", "spark.master": "local[3]"}, 3),
        ({"spark.master": "local[3]", "spark.cores.max": "8"}, 3),  # which are of a cluster
        ({"spark.master": "local-cluster[2,3,1024]"}, 2),
        ({"spark.master": "spark://host:7077"}, 2),
        ({"spark.master": "spark://host:7077", "spark.cores.max": "8"}, 8),
        ({"spark.master": "spark://host:7077", "spark.cores.max": "1"}, 2),
        ({"spark.master": "yarn", "spark.executor.instances": "4", "spark.executor.cores": "3"}, 12),
        ({"spark.master": "yarn", "spark.executor.instances": "1", "spark.executor.cores": "1"}, 2),
        ({"spark.master": "yarn", "spark.executor.instances": "4"}, 2),
        ({"spark.master": "yarn", "spark.executor.cores": "3"}, 2),
        ({"spark.cores.max": "5", "spark.executor.instances": "4", "spark.executor.cores": "3"}, 5),
    ],
)
def test_parallelism_as_far_as_it_is_settled(
    conf: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of a format's writer has no session to ask."""
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert LaunchSettings(conf).parallelism == expected


@pytest.mark.parametrize(
    ("command", "parallelism", "application"),
    [
        (f"{SUBMIT} app.py", 1, ""),  # spark-defaults.conf: local[1]
        (f"{SUBMIT} --master local[3] --name nightly app.py", 3, "nightly"),
        (f"{SUBMIT} --master local[3] --conf spark.master=local[4] app.py", 3, ""),
        (f"{SUBMIT} --conf spark.master=local[2,3] --conf spark.app.name=job pyspark-shell", 2, "job"),
        (f"{SUBMIT} --conf spark.default.parallelism=9 --conf spark.app.name=a --name b app.py", 9, "b"),
        (f"{JAVA} -Dspark.app.name=deployed -Dspark.cores.max=5 x.DriverWrapper url app.py", 5, "deployed"),
        ("", 2, ""),
    ],
)
def test_what_the_command_says_of_the_application(conf: Path, command: str, parallelism: int, application: str) -> None:
    """How many partitions a topic has unless that is said, and whose it is in errors."""
    found = parse_command(command.split(), {"SPARK_CONF_DIR": str(conf), "SPARK_HOME": "/nowhere"}, conf)
    assert (found.parallelism, found.application) == (parallelism, application)


def test_a_properties_file_that_is_gone(tmp_path: Path) -> None:
    """Going on without it would look for topics in the wrong registry."""
    with pytest.raises(ConfigError, match=r"gone\.conf: Spark is started with this properties file"):
        parse_command([*SUBMIT.split(), "--properties-file", "gone.conf", "app.py"], {}, tmp_path)


def test_a_process_without_spark_has_none() -> None:
    assert (launch().settings, launch().submitted) == ({}, False)


@pytest.mark.slow
@pytest.mark.processes
def test_jobpipe_sent_by_py_files_is_refused(tmp_path: Path) -> None:
    """Spark's own processes would not all find it; the error says what to do instead."""
    require_installed()
    archive = tmp_path / "sent.zip"
    root = Path(jobpipe.__file__).parents[1]
    with zipfile.ZipFile(archive, "w") as sent:
        for name, place in (("jobpipe", root), ("jobpipe_registry", root / "registry")):
            for path in (place / name).rglob("*.py"):
                sent.write(path, path.relative_to(place))
    program = f"import sys; sys.path.insert(0, {str(archive)!r}); import jobpipe.spark.source.data_source as s;"
    program += "print(s.__file__);"
    program += "s.JobPipeDataSource({'subscribe': 'orders'}).schema()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.startswith(str(archive)), done.stderr
    assert f"ConfigError: jobpipe was loaded from {archive}, as with --py-files" in done.stderr
    assert "Install jobpipe into the Python of every node, or send the whole Python by --archives" in done.stderr
