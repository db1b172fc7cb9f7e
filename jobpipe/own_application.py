"""Which application this process belongs to: what publishers and subscribers tell the bus of themselves.

The processes of one Spark application are a program and a JVM, one of which started the other, and the Python processes
that the JVM starts for data sources. All of them find the same one of the two first: the program, if it started the
JVM, else the JVM. A program without Spark is an application by itself, and so is each process that it starts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from jobpipe.operations.messages.application import MAX_NAME, MAX_RUN, Application
from jobpipe_registry.host.process_identity import PidScope, start_ticks
from jobpipe_registry.names import JOB_NAME

PIPELINE, JOB, RUN = "JOBPIPE_PIPELINE", "JOBPIPE_JOB", "JOBPIPE_RUN"
"""Environment variables of a pipeline's attempts, which all their processes inherit."""

NAMELESS = "Spark", "python"
"""What an application is called of which no process knows more: one of Spark, and another one."""

_SPARK = "org.apache.spark."  # begins the main class of Spark's own JVMs
SHELL = "pyspark-shell"
"""Ends the command of a JVM that Python has started, and of that of `bin/pyspark`."""
_OF_PYSPARK = "_PYSPARK_DRIVER_CONN_INFO_PATH"  # in the environment of a JVM that Python has started (java_gateway.py)
_OF_JVM = "PYSPARK_GATEWAY_PORT"  # in that of a driver that a JVM has started (PythonRunner.scala)
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MAX_HOST = 64


def own_application(name: str = "", environ: Mapping[str, str] = os.environ) -> Application:
    """Return this process's application.

    Args:
        name: Spark's name of it, if that is known; else it is that of the program.
        environ: the environment; a pipeline's attempt is named there.
    """
    first, program = _first_process(os.getpid())
    pipeline, job, run = (environ.get(variable, "") for variable in (PIPELINE, JOB, RUN))
    of_job = JOB_NAME.fullmatch(pipeline) is not None and JOB_NAME.fullmatch(job) is not None
    return Application(
        id=first,
        name=_printable(name if name.strip() not in ("", SHELL) else program),
        pipeline=pipeline if of_job else "",
        job=job if of_job else "",
        run=re.sub(r"[^!-~]", "?", run)[:MAX_RUN] if of_job else "",
    )


def jvm_above() -> psutil.Process | None:
    """Return the JVM that this process descends from; None without one."""
    for ancestor in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):
            command = ancestor.cmdline()
            if command and Path(command[0]).name == "java":
                return ancestor
    return None


def program_of(command: Sequence[str], folder: Path) -> str:
    """Return the name of the file or module that a Python process runs; "" for code on its command line, or none.

    Nothing else of the command is ever returned: there may be secrets in it, and a title of the process in its place.

    Args:
        command: its words.
        folder: from which a relative path starts.
    """
    words = list(command[1:])
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            return _file(word, folder)
        if word == "--check-hash-based-pycs":  # the one long option with a value
            words = words[1:]
            continue
        if word.startswith("--") or word == "-":
            return ""
        found = re.match(r"-[^cmWX]*([cmWX])(.*)", word, re.DOTALL)  # of several letters, one may take what follows
        if found is None:
            continue
        letter, value = found[1], found[2]
        if letter == "c":
            return ""
        if not value and words:
            value = words.pop(0)
        if letter == "m":
            return value if _MODULE.fullmatch(value) else ""
    return ""


def _file(word: str, folder: Path) -> str:
    path = folder / word
    try:
        return path.name if path.exists() else ""
    except (OSError, ValueError):  # too long for a path, or no path at all
        return ""


def _own_program() -> str:
    """Return the name of the file or module that this process runs; "" for none."""
    main = sys.modules.get("__main__")
    if (spec := getattr(main, "__spec__", None)) is not None:
        return str(spec.name).removesuffix(".__main__")
    return Path(getattr(main, "__file__", None) or "").name


@functools.lru_cache(1)
def _first_process(pid: int) -> tuple[str, str]:
    """Return the application's id and program; cached for one process id, since a fork is another process."""
    here = psutil.Process(pid)
    first = here
    with contextlib.suppress(psutil.Error):  # of another user, or gone
        first = _first_of(here, jvm_above())
    if not _is_worker():
        program = _own_program()
    else:
        program = ""
        with contextlib.suppress(psutil.Error):
            command = first.cmdline()
            if command and Path(command[0]).name.startswith("python"):
                program = program_of(command, Path(first.cwd()))
    start = start_ticks(first.pid) or round(first.create_time())
    told_apart = hashlib.sha256(repr((PidScope.here(), start)).encode()).hexdigest()[:8]
    host = re.sub(r"[^!-~]", "?", socket.gethostname())[:_MAX_HOST]
    return f"{host}-{first.pid}-{told_apart}", program or NAMELESS[1 if first == here else 0]


def _first_of(here: psutil.Process, jvm: psutil.Process | None) -> psutil.Process:
    """Return the process whose start began the application; raises psutil.Error."""
    if jvm is None:
        return here
    command = jvm.cmdline()
    if not _is_worker():  # is it the driver of that JVM, or just started from somewhere below it?
        of_jvm = here.ppid() == jvm.pid or _OF_JVM in os.environ
        return jvm if of_jvm and any(word.startswith(_SPARK) for word in command) else here
    if command[-1:] != [SHELL] or _OF_PYSPARK not in jvm.environ():
        return jvm
    return jvm.parent() or jvm


def _is_worker() -> bool:
    """Tell whether Spark has started this process, or the one that it is a fork of."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def _printable(text: str) -> str:
    """Return a text as a message takes it: short, and without control characters or lone surrogates."""
    return "".join(char if char.isprintable() else "?" for char in text.strip()[:MAX_NAME])
