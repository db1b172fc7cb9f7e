"""U1: which Python Spark starts: a program run by ``venv/bin/python``, with a PATH whose python3 lacks jobpipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import jobpipe
from jobpipe.spark.session.python_interpreter import WorkerPython
from tests.docs.troubleshooting import on_page
from tests.spark.kit import JOBS, ROOT, Place, until

PRINT = "import jobpipe, os; print(os.environ.get('PYSPARK_PYTHON'))"
SECONDS = 400.0  # of a program with a JVM, on a machine that is shared


def chosen(environ: dict[str, str], code: str = PRINT) -> str:
    """Return what a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.processes
def test_the_import_chooses_this_interpreter(environ: dict[str, str]) -> None:
    """U1: nobody chose, no master is known: Spark's workers get this Python."""
    assert chosen(environ) == sys.executable


@pytest.mark.processes
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"PYSPARK_PYTHON": "./environment/bin/python"}, "./environment/bin/python"),
        ({"PYSPARK_GATEWAY_PORT": "4711"}, "None"),
        ({"SPARK_REMOTE": "sc://host"}, "None"),
        ({"MASTER": "spark://host:7077"}, "None"),
        ({"MASTER": "local[4]"}, sys.executable),
        ({"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"}, "None"),
        ({"PYSPARK_SUBMIT_ARGS": "--master=local[*] pyspark-shell", "MASTER": "yarn"}, sys.executable),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.master=k8s://https://host pyspark-shell"}, "None"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.pyspark.python=/opt/python pyspark-shell"}, "None"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf 'unfinished"}, sys.executable),
    ],
)
def test_what_was_chosen_stays(environ: dict[str, str], given: dict[str, str], expected: str) -> None:
    """U1: spark-submit, a cluster, and whatever somebody has set are left alone."""
    assert chosen({**environ, **given}) == expected


@pytest.mark.processes
@pytest.mark.parametrize(
    ("line", "expected"),
    [("spark.master  spark://host:7077", "None"), ("spark.pyspark.python=/opt/python", "None"), ("", sys.executable)],
)
def test_the_defaults_of_spark_count(environ: dict[str, str], tmp_path: Path, line: str, expected: str) -> None:
    """U1: a master, or a Python, in spark-defaults.conf is known before there is a session."""
    (tmp_path / "spark-defaults.conf").write_text(f"# spark.master yarn\n{line}\n")
    assert chosen({**environ, "SPARK_CONF_DIR": str(tmp_path)}) == expected


@pytest.mark.processes
def test_an_activated_environment_needs_nothing(environ: dict[str, str]) -> None:
    """U1: the first python3 of the PATH is this one; executors of a cluster then use their own, as ever."""
    assert chosen({**environ, "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}) == "None"


@pytest.mark.processes
def test_the_import_loads_no_spark(environ: dict[str, str]) -> None:
    """U1: the choice costs a process without Spark nothing."""
    assert chosen(environ, "import jobpipe, sys; print('pyspark' in sys.modules)") == "False"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "there is no program"),
        ("echo 'Oh no' >&2; exit 1", "it cannot import jobpipe: Oh no"),
        ("printf 2.7", "it is Python 2.7, and this one is"),
    ],
)
def test_what_is_wrong_with_a_python(tmp_path: Path, text: str | None, told: str) -> None:
    """U1: a Python for workers is started, and what it lacks is told."""
    program = tmp_path / "python3"
    if text is not None:
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    python = WorkerPython("python3", "the PATH", None if text is None else str(program))
    assert told in str(python.trouble())


@pytest.mark.processes
def test_this_python_will_do() -> None:
    """U1: the interpreter of the tests has all that workers need."""
    python = WorkerPython(sys.executable, "PYSPARK_PYTHON", sys.executable)
    assert python.is_ours()
    assert python.trouble() is None


def run(place: Place, environ: dict[str, str], when: str) -> tuple[dict[str, Any], str]:
    """Run the program as its user does; return what it found, and its standard error."""
    done = subprocess.run(
        [sys.executable, str(JOBS / "first_import.py"), when],
        env={**environ, **place.environ(), "JOBPIPE__SPOOL__DIR": str(place.folder / when)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=place.folder,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.spark
@pytest.mark.timeout(450)
def test_a_program_without_an_activated_environment(place: Place, environ: dict[str, str]) -> None:
    """U1: `venv/bin/python app.py` publishes by tasks, and reads, though the PATH has another python3."""
    found, errors = run(place, environ, "early")
    assert found == {"variable": sys.executable, "publish": 10}
    assert "python3" not in errors


@pytest.mark.spark
@pytest.mark.timeout(450)
def test_an_import_that_comes_too_late(place: Place, environ: dict[str, str], stranger: Path) -> None:
    """U1: the session was there first: Spark's own messages, and one of ours that names the Python and the remedy."""
    found, errors = run(place, environ, "late")
    on_page(found["read"], "[DATA_SOURCE_NOT_FOUND]")
    on_page(found["publish"], "ModuleNotFoundError: No module")
    assert "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: jobpipe." in found["read"]
    assert "ModuleNotFoundError: No module named 'jobpipe'" in found["publish"]
    [line] = [line for line in errors.splitlines() if "Spark starts its Python workers with python3" in line]
    assert f"({stranger / 'python3'}, by the PATH): it cannot import jobpipe: ModuleNotFoundError" in line
    assert f"PYSPARK_PYTHON={sys.executable}" in line
    on_page(line, "Spark starts its Python workers")


@pytest.mark.spark
def test_a_python_that_starts_too_slowly(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """Spark's own limit of ten seconds, for the process that reads a stream: a Python that only sleeps there."""
    program = tmp_path / "python3"
    note = tmp_path / "pid"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *python_streaming_source_runner*) echo $$ > {note}; exec sleep 15;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    with place.publisher("slow-python") as publisher:
        publisher.seal("q", 0, [pa.table({"a": [1]})])
        context, before = spark.sparkContext, spark.sparkContext.pythonExec
        context.pythonExec = str(program)
        try:
            jobpipe.register(spark)
            rows = place.stream(spark, "slow-python", "reader", startingOffsets="earliest")
            query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            until(lambda: query.exception() or not query.isActive, "the query fails")
        finally:
            context.pythonExec = before
            jobpipe.register(spark)
    on_page(query.exception(), "Python worker failed to connect back.")
    until(lambda: not psutil.pid_exists(int(note.read_text())), "the sleeper's end")


@pytest.mark.slow
@pytest.mark.processes
def test_spark_submit_without_the_path(environ: dict[str, str]) -> None:
    """U1: spark-submit of an environment that is not activated: Spark's own message, and the remedy of the page."""
    command = [str(Path(sys.executable).parent / "spark-submit"), "--version"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 127
    on_page(done.stderr, "…/bin/spark-class:")
    assert "/bin/spark-class: No such file or directory" in done.stderr
    helped = {**environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=helped, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
