"""Which application a process belongs to, as seen from processes that stand for a program, a JVM and its workers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import jobpipe.own_application as own
from jobpipe.operations.messages.application import MAX_NAME, MAX_RUN, Application
from jobpipe.own_application import JOB, PIPELINE, RUN, own_application, program_of

DEADLINE = 60.0
OF_PYSPARK = "_PYSPARK_DRIVER_CONN_INFO_PATH"
ASK = "import json; from jobpipe.own_application import own_application as own; print(json.dumps(own().to_json()))"
SUBMIT = "org.apache.spark.deploy.SparkSubmit"


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["python3", "{}/import.py", "--day", "1"], "import.py"),
        (["python3", "import.py"], "import.py"),
        (["python3", "-u", "-X", "dev", "-W", "error", "import.py"], "import.py"),
        (["python3", "-bX", "dev", "--check-hash-based-pycs", "always", "import.py", "secret"], "import.py"),
        (["python3", "-Xdev", "-Werror", "import.py"], "import.py"),
        (["python3", "-m", "shop.load", "x"], "shop.load"),
        (["python3", "-mshop.load", "secret"], "shop.load"),
        (["python3", "-m", "secret/word"], ""),
        (["python3", "-c", "print()"], ""),
        (["python3", "-uc", "connect('db', 'secret/word')"], ""),
        (["python3", "-cimport sys", "secret"], ""),
        (["python3", "-", "password=secret"], ""),
        (["python3", "--unknown", "import.py"], ""),
        (["python", "secret", "title", "of", "a", "process"], ""),
        (["python", "x" * 10_000], ""),
        (["python", "a\0b"], ""),
        (["python3", "-W"], ""),
        (["python3", "-m"], ""),
        (["python3"], ""),
        ([], ""),
    ],
)
def test_programs(tmp_path: Path, command: list[str], program: str) -> None:
    """The name of a file that is there, or of a module, and never another word."""
    (tmp_path / "import.py").touch()
    assert program_of([word.format(tmp_path) for word in command], tmp_path) == program


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
    names = {own_application(name, {}).name for name in ("pyspark-shell", "", " " * 90)}
    assert len(names) == 1
    assert not names & {"pyspark-shell", "", " "}
    assert own_application(" shop ", {}).name == "shop"


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


@pytest.fixture
def worker(tmp_path: Path) -> list[str]:
    """A command that is to Python what a worker of Spark is: a module of PySpark."""
    module = tmp_path / "pyspark" / "worker_of_the_test.py"
    module.parent.mkdir()
    (module.parent / "__init__.py").touch()
    module.write_text(ASK)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    return ["env", f"PYTHONPATH={path}", sys.executable, "-P", "-m", "pyspark.worker_of_the_test"]


@pytest.mark.processes
def test_a_program_that_started_a_jvm_is_one_application_with_what_the_jvm_starts(worker: list[str]) -> None:
    """PySpark leaves a variable in the JVM's environment; the shell of bin/pyspark, whose JVM it is below, has none."""
    program, started = asked(worker, [SUBMIT, "pyspark-shell"], **{OF_PYSPARK: "/tmp/x"})
    assert program.id == started.id
    terminal, started = asked(worker, [SUBMIT, "pyspark-shell"])
    assert terminal.id != started.id


@pytest.mark.processes
def test_a_jvm_that_was_submitted_is_the_application(tmp_path: Path) -> None:
    """Its driver and its other Python processes are below it; what has submitted it is another program."""
    driver = tmp_path / "report.py"
    driver.write_text(
        f"{ASK}\nimport os, subprocess, sys\nchild = [sys.executable, '-c', {ASK!r}]\n"
        "subprocess.run(child, check=True)\ndel os.environ['PYSPARK_GATEWAY_PORT']\nsubprocess.run(child, check=True)\n"
    )
    submitter, first, second, other = asked(
        [sys.executable, "-u", str(driver)], [SUBMIT, str(driver), "secret"], PYSPARK_GATEWAY_PORT="1"
    )
    assert first.id == second.id
    assert len({first.id, submitter.id, other.id}) == 3  # the last one has nothing of the driver: one of its own
    assert (first.name, second.name) == ("report.py", "Spark")


@pytest.mark.processes
def test_a_jvm_that_a_program_submitted_is_another_application(worker: list[str]) -> None:
    """Though it inherits the variable that PySpark left for the program's own JVM."""
    program, started = asked(worker, [SUBMIT, "report.py"], **{OF_PYSPARK: "/tmp/x"})
    assert program.id != started.id


@pytest.mark.processes
def test_a_worker_calls_its_application_by_the_program_and_never_by_words_of_the_jvm(worker: list[str]) -> None:
    _, submitted = asked(worker, [SUBMIT, "secret.py", "secret"])
    assert submitted.name == "Spark"
    program, started = asked(worker, [SUBMIT, "pyspark-shell"], **{OF_PYSPARK: "/tmp/x"})
    assert started.id == program.id
    assert started.name == "Spark"  # the program is code on a command line


@pytest.mark.processes
def test_a_program_below_another_jvm_is_an_application_by_itself() -> None:
    """As in the terminal of an editor that is written in Java."""
    above, found = asked([sys.executable, "-c", ASK], ["com.example.Editor"])
    assert above.id != found.id


def test_a_process_id_that_is_used_again_is_another_application(monkeypatch: pytest.MonkeyPatch) -> None:
    found = own_application().id
    own._first_process.cache_clear()
    assert own_application().id == found
    monkeypatch.setattr(own, "start_ticks", lambda pid: 1)
    own._first_process.cache_clear()
    try:
        assert own_application().id.rpartition("-")[0] == found.rpartition("-")[0]
        assert own_application().id != found
    finally:
        own._first_process.cache_clear()


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
