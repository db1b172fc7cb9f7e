"""Which Python Spark starts for its workers: the one that runs us, where no other was chosen.

Spark 4.3 takes ``PYSPARK_DRIVER_PYTHON`` (sources only), else ``PYSPARK_PYTHON``, else the first ``python3`` of the
``PATH``; in a virtual environment that is not activated that is one without jobpipe. A JVM keeps the variables with
which it was started, so ``import jobpipe`` sets the variable before a session exists. It leaves it alone under
spark-submit, whose JVM runs already, and on a cluster, where executors have a Python of their own.

Runs with ``import jobpipe``: nothing but the standard library, and no Spark that is not loaded already.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

VARIABLE = "PYSPARK_PYTHON"
SOURCES = "PYSPARK_DRIVER_PYTHON"
START_SECONDS = 20.0  # for a Python to start and to import jobpipe

_chosen: str | None = None  # what `choose` has set
_warned: set[str] = set()  # messages that were logged, each once a process


@dataclass(frozen=True)
class WorkerPython:
    """The Python that Spark starts for its workers.

    Attributes:
        name: as the environment gives it, ``python3`` where it does not.
        origin: the variable that gives it, or ``the PATH``.
        path: the program; None where there is none of that name.
    """

    name: str
    origin: str
    path: str | None

    def is_ours(self) -> bool:
        """Tell whether it is the interpreter of this process."""
        return self.path is not None and _is_same(self.path, sys.executable)

    def trouble(self) -> str | None:
        """Start it; return why it cannot run jobpipe's workers, None when it can. Takes up to 20 s."""
        if self.path is None:
            return f"there is no program {self.name!r}"
        code = "import sys, jobpipe, pyarrow; sys.stdout.write('%d.%d' % sys.version_info[:2])"
        try:
            done = subprocess.run(
                [self.path, "-c", code], capture_output=True, text=True, errors="replace", timeout=START_SECONDS
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"it does not run: {error}"
        if done.returncode != 0:
            return f"it cannot import jobpipe: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        if done.stdout != (ours := "{}.{}".format(*sys.version_info[:2])):
            return f"it is Python {done.stdout}, and this one is {ours}"
        return None


def choose() -> None:
    """Let Spark start its workers with this interpreter, if none was chosen and the master is local or not yet known.

    Where a session exists already, warn if its workers lack jobpipe: the choice comes too late.
    """
    global _chosen
    context = loaded_context()
    if context is not None and context._gateway is not None:
        _check(context, context._active_spark_context)
        return
    environ = os.environ
    given = (VARIABLE, "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")  # chosen; the JVM runs already; a client has no workers
    if not sys.executable or any(environ.get(name) for name in given):
        return
    if spark_python(environ).is_ours():
        return
    settings = dict(_settings(environ))
    if "spark.pyspark.python" not in settings and is_local(settings.get("spark.master")):
        environ[VARIABLE] = _chosen = sys.executable


def given_python() -> WorkerPython:
    """Return the Python that Spark would start for a source if jobpipe had not been imported here."""
    return spark_python({name: value for name, value in os.environ.items() if (name, value) != (VARIABLE, _chosen)})


def spark_python(environ: Mapping[str, str]) -> WorkerPython:
    """Return the Python that a JVM started with ``environ`` finds and reads sources with."""
    for name in (SOURCES, VARIABLE):
        if value := environ.get(name):
            return WorkerPython(value, name, shutil.which(value, path=environ.get("PATH")))
    return WorkerPython("python3", "the PATH", shutil.which("python3", path=environ.get("PATH")))


def check_session(context: SparkContext) -> None:
    """Warn, once a process, where a session's workers lack jobpipe, or may lack the Python that we chose."""
    _check(type(context), context)


def _check(kind: Any, context: SparkContext | None) -> None:
    """Look at the session, or, where there is none now, at the JVM that the next one will have."""
    master = None if context is None else context.master
    if not is_local(master):
        if _chosen is not None and _chosen == os.environ.get(VARIABLE):
            _warn(
                f"import jobpipe set {VARIABLE}={_chosen}, since no master was known then; executors of {master} start "
                f"that Python too. If it is not there on every node, set {VARIABLE} to theirs before import jobpipe"
            )
        return
    environ = kind._jvm.java.lang.System.getenv
    names = (SOURCES, VARIABLE, "PATH")
    found = [spark_python({name: value for name in names if (value := environ(name))})]
    if context is not None:
        found.append(WorkerPython(context.pythonExec, VARIABLE, shutil.which(context.pythonExec)))
    for python in found:
        if not python.is_ours() and (trouble := python.trouble()) is not None:
            place = f"{python.name} ({python.path or 'not found'}, by {python.origin})"
            _warn(
                f"Spark starts its Python workers with {place}: {trouble}. This session keeps it: import jobpipe "
                f"before the first session is made, or set {VARIABLE}={sys.executable} before this program is started"
            )
            return


def _warn(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        log.warning("%s", message)


def loaded_context() -> Any:
    """Return the class SparkContext if this process has loaded it."""
    since_4 = "pyspark.core.context"
    return getattr(sys.modules.get(since_4 if since_4 in sys.modules else "pyspark.context"), "SparkContext", None)


def is_local(master: str | None) -> bool:
    """Tell whether a master's executors run on the driver's host; None is Spark's default, a local one."""
    return master is None or master.startswith("local")


def _is_same(path: str, other: str) -> bool:
    """Tell whether two programs are one interpreter of one environment: links within a folder do not matter."""
    first, second = Path(path).absolute(), Path(other).absolute()
    return first.parent == second.parent and first.resolve() == second.resolve()


def _settings(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what is known before a session of its master and its Python: the weakest source first."""
    if master := environ.get("MASTER"):
        yield "spark.master", master
    home = environ.get("SPARK_HOME")
    folder = environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    if folder:
        try:
            text = Path(folder, "spark-defaults.conf").read_text(errors="replace")
        except OSError:
            text = ""
        yield from re.findall(r"(?m)^\s*(spark\.(?:master|pyspark\.python))[\s=:]+(\S+)", text)
    try:
        words = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    except ValueError:  # spark-submit will say so
        return
    for word, after in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        given = value if equals else after
        if name == "--master":
            yield "spark.master", given
        elif name in ("--conf", "-c"):
            key, _, setting = given.partition("=")
            yield key, setting
