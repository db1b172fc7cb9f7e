"""Which application a process belongs to, as seen from processes that stand for a program, a JVM and its workers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jobpipe.operations.messages.application import MAX_NAME, MAX_RUN, Application
from jobpipe.own_application import JOB, PIPELINE, RUN, own_application, program_of

DEADLINE = 60.0
OF_PYSPARK = "_PYSPARK_DRIVER_CONN_INFO_PATH"
ASK = "import json; from jobpipe.own_application import own_application as own; print(json.dumps(own().to_json()))"
SUBMIT = "org.apache.spark.deploy.SparkSubmit"


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["python3", "/srv/import.py", "--day", "1"], "import.py"),
        (["python3", "-u", "-X", "dev", "-W", "error", "import.py"], "import.py"),
        (["python3", "-m", "shop.load", "x"], "shop.load"),
        (["python3", "-mshop.load", "secret"], "shop.load"),
        (["python3", "-bX", "dev", "--check-hash-based-pycs", "always", "import.py", "secret"], "import.py"),
        (["python3", "-Xdev", "-Werror", "import.py"], "import.py"),
        (["python3", "-c", "print()"], ""),
        (["python3", "-uc", "connect('db', 'secret/word')"], ""),
        (["python3", "-cimport sys", "secret"], ""),
        (["python3", "-", "password=secret"], ""),
        (["python3", "--unknown", "secret"], ""),
        (["python3", "-W"], ""),
        (["python3", "-m"], ""),
        (["python3"], ""),
        ([], ""),
    ],
)
def test_programs(command: list[str], program: str) -> None:
    assert program_of(command) == program


def test_a_pipelines_job_is_named_by_the_environment() -> None:
    found = own_application("shop.enrich", {PIPELINE: "shop", JOB: "enrich", RUN: "run-1"})
    assert (found.name, found.pipeline, found.job, found.run) == ("shop.enrich", "shop", "enrich", "run-1")
    assert own_application("shop.enrich", {}) == Application(found.id, "shop.enrich")
    assert f"-{os.getpid()}-" in found.id


def test_what_no_message_takes_is_put_right() -> None:
    """A lone surrogate is of an argument, or a variable, that is not UTF-8."""
    found = own_application("a\x1b\u202e\udcff" + "x" * 10_000, {PIPELINE: "shop", JOB: "a", RUN: "\u2192" * 1000})
    assert (found.name[:5], len(found.name), found.run) == ("a???x", MAX_NAME, "?" * MAX_RUN)
    assert Application.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_name_that_spark_gave_is_none() -> None:
    assert own_application("pyspark-shell", {}).name == own_application("", {}).name != "pyspark-shell"


def asked(command: list[str], arguments: list[str], **environ: str) -> list[Application]:
    """Run a shell under the name of java, with a command in it and then arguments, as a program's child.

    Returns:
        what the program says, and then what the command says: a line of JSON each.
    """
    java = ["java", "-c", f"{shlex.join(command)}; true", *arguments]
    start = f"subprocess.run({java!r}, executable='/bin/sh', check=True, env={{**os.environ, **{environ!r}}})"
    program = f"import os, subprocess, sys; {ASK}; sys.stdout.flush(); {start}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=True)
    return [Application.from_json(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("pipeline", "job"), [("", "enrich"), ("shop", ""), ("a.b", "enrich"), ("shop", "y" * 41)])
def test_what_is_no_name_of_a_job_is_left_out(pipeline: str, job: str) -> None:
    found = own_application("x", {PIPELINE: pipeline, JOB: job, RUN: "r"})
    assert (found.pipeline, found.job, found.run) == ("", "", "")


@pytest.mark.processes
def test_a_program_that_started_a_jvm_is_one_application_with_what_the_jvm_starts() -> None:
    """PySpark leaves a variable in the JVM's environment; the shell of bin/pyspark, whose JVM it is below, has none."""
    program, worker = asked([sys.executable, "-c", ASK], [SUBMIT, "pyspark-shell"], **{OF_PYSPARK: "/tmp/x"})
    assert program.id == worker.id
    shell, worker = asked([sys.executable, "-c", ASK], [SUBMIT, "pyspark-shell"])
    assert shell.id != worker.id


@pytest.mark.processes
def test_a_jvm_that_was_submitted_is_the_application(tmp_path: Path) -> None:
    """Its driver and its other Python processes are below it; what has submitted it is another program."""
    driver = tmp_path / "report.py"
    driver.write_text(f"{ASK}\nimport subprocess, sys\nsubprocess.run([sys.executable, '-c', {ASK!r}], check=True)\n")
    submitter, first, second = asked([sys.executable, "-u", str(driver)], [SUBMIT, str(driver)])
    assert first.id == second.id != submitter.id
    assert first.name == "report.py"


@pytest.mark.processes
def test_a_program_below_another_jvm_is_an_application_by_itself() -> None:
    """As in the terminal of an editor that is written in Java."""
    above, found = asked([sys.executable, "-c", ASK], ["com.example.Editor"])
    assert above.id != found.id


@pytest.mark.processes
def test_a_fork_is_an_application_by_itself() -> None:
    here = own_application()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, own_application().id.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        forked = told.read()
    os.waitpid(child, 0)
    assert forked == here.id.replace(f"-{os.getpid()}-", f"-{child}-")[: -len("-01234567")] + forked[-9:]
    assert forked != here.id
