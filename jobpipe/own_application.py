"""Which application this process belongs to: what publishers and subscribers tell the bus of themselves.

The processes of one Spark application are a program and a JVM, one of which started the other, and the Python processes
that the JVM starts for data sources. All of them find the same one of the two first: the program, if it started the
JVM, else the JVM. A program without Spark is an application by itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from jobpipe.operations.messages.application import MAX_NAME, Application
from jobpipe_registry.host.process_identity import PidScope, start_ticks

PIPELINE, JOB, RUN = "JOBPIPE_PIPELINE", "JOBPIPE_JOB", "JOBPIPE_RUN"
"""Environment variables of a pipeline's attempts, which all their processes inherit."""

SHELL = "pyspark-shell"
"""Stands in the command of a JVM, where the file of a submitted application stands, if Python started it; also Spark's
name of an application that was given none."""

_SPARK = "org.apache.spark."  # begins the main class of Spark's own JVMs


def own_application(name: str = "", environ: Mapping[str, str] = os.environ) -> Application:
    """Return this process's application.

    Args:
        name: Spark's name of it, if that is known; else it is that of the program.
        environ: the environment; a pipeline's attempt is named there.
    """
    first, program = _first_process(os.getpid())
    return Application(
        id=first,
        name=_cut(name if name not in ("", SHELL) else program),
        pipeline=_cut(environ.get(PIPELINE, "")),
        job=_cut(environ.get(JOB, "")),
        run=_cut(environ.get(RUN, "")),
    )


def jvm_above() -> psutil.Process | None:
    """Return the JVM that this process descends from; None without one."""
    for ancestor in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):
            command = ancestor.cmdline()
            if command and Path(command[0]).name == "java":
                return ancestor
    return None


def program_of(command: Sequence[str]) -> str:
    """Return how people call the program of a Python process: the name of its file or module; "" for none."""
    words = list(command[1:])
    while words:
        word = words.pop(0)
        if word == "-m":
            return words[0] if words else ""
        if word in ("-W", "-X"):
            words = words[1:]
        elif word == "-c":
            return ""
        elif not word.startswith("-"):
            return Path(word).name
    return ""


@functools.lru_cache(1)
def _first_process(pid: int) -> tuple[str, str]:
    """Return the application's id and program; cached for one process id, since a fork is another process."""
    here = psutil.Process(pid)
    first = here
    with contextlib.suppress(psutil.Error):  # of another user, or gone
        first = _first_of(here, jvm_above())
    command: list[str] = []
    with contextlib.suppress(psutil.Error):
        command = first.cmdline()
    of_python = bool(command) and Path(command[0]).name.startswith("python")
    program = program_of(command) if of_python else ""
    if not program and not _is_worker():  # below spark-submit, or with another interpreter
        program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] != "-c" else ""
    start = start_ticks(first.pid) or round(first.create_time())
    told_apart = hashlib.sha256(repr((PidScope.here(), start)).encode()).hexdigest()[:8]
    name = program or ("Spark" if first != here else "python")
    return _cut(f"{socket.gethostname()[:200]}-{first.pid}-{told_apart}"), name


def _first_of(here: psutil.Process, jvm: psutil.Process | None) -> psutil.Process:
    """Return the process whose start began the application; raises psutil.Error."""
    if jvm is None:
        return here
    command = jvm.cmdline()
    if not _is_worker() and not any(word.startswith(_SPARK) for word in command):
        return here  # a program that some other JVM has started, such as an editor
    parent = jvm.parent()
    if parent is not None and command[-1:] == [SHELL]:
        above = parent.cmdline()
        if above and Path(above[0]).name.startswith("python"):
            return parent
    return jvm


def _is_worker() -> bool:
    """Tell whether Spark has started this process, or the one that it is a fork of."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def _cut(text: str) -> str:
    """Return a text as a message takes it: UTF-8, and not too long."""
    return text.encode("utf-8", "replace").decode()[:MAX_NAME]
