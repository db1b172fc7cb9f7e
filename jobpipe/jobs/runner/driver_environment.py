"""What the environment says of Python and Spark, put right for a driver that this process starts.

Variables meant for notebooks, shells and clients of Spark Connect are inherited by jobs, too. The driver of a job is
this process, with a session of its own: what would lead it elsewhere is taken away, with a line in the log.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from collections.abc import MutableMapping
from pathlib import Path

from jobpipe.errors import ConfigError
from jobpipe.spark.session import python_interpreter

log = logging.getLogger(__name__)

CONNECT = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_CONNECT_MODE", "SPARK_API_MODE")
GATEWAY = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
HOME = "SPARK_HOME"
_CORE = re.compile(r"spark-core_[\d.]+-(\d+)\.(\d+)\..*\.jar")


def prepare_environment(master: str, environ: MutableMapping[str, str] = os.environ, *, has_jvm: bool = False) -> None:
    """Make the environment that of a driver with a classic session, before anything of Spark is started.

    Args:
        master: of the session.
        has_jvm: the driver's JVM has started this process: which Spark and Python it takes is settled.

    Raises:
        ConfigError: SPARK_HOME has another Spark than PySpark here, and PySpark has none of its own.
    """
    for name in CONNECT:
        if environ.get(name, "classic").lower() not in ("classic", "0", ""):
            log.warning("%s is ignored: the session of a pipeline's job is classic, not one of Spark Connect", name)
        environ.pop(name, None)
    if has_jvm:
        return
    for name in GATEWAY:  # of a JVM that another program has started
        environ.pop(name, None)
    _choose_home(environ)
    _choose_python(environ, master)


def _choose_python(environ: MutableMapping[str, str], master: str) -> None:
    """Let sources be read by the Python of the workers, and these, on this host, be started with one that has jobpipe.

    Where executors run on other hosts, PYSPARK_PYTHON is theirs.
    """
    driver = environ.pop(python_interpreter.SOURCES, None)
    if (
        driver is not None
        and not python_interpreter.spark_python({**environ, python_interpreter.SOURCES: driver}).is_ours()
    ):
        log.warning(
            "%s=%s is ignored: the driver of this job is %s", python_interpreter.SOURCES, driver, sys.executable
        )
    if not python_interpreter.is_local(master):
        return
    workers = python_interpreter.spark_python(environ)
    if workers.is_ours():
        return
    trouble = workers.trouble() if workers.origin == python_interpreter.VARIABLE else None
    if trouble is not None:
        what = "%s=%s is ignored: %s. Spark's workers are started with %s"
        log.warning(what, python_interpreter.VARIABLE, workers.name, trouble, sys.executable)
    if trouble is not None or workers.origin != python_interpreter.VARIABLE:
        environ[python_interpreter.VARIABLE] = sys.executable


def _choose_home(environ: MutableMapping[str, str]) -> None:
    """Take SPARK_HOME away if its Spark is not that of the PySpark here."""
    given = environ.get(HOME)
    if given is None:
        return
    from jobpipe.spark.session.spark_versions import INSTALLED

    ours = "{}.{}".format(*INSTALLED.split("."))
    found = _version_of(Path(given))
    if found == ours:
        return
    has = f"has Spark {found}" if found else "has no Spark"
    spec = importlib.util.find_spec("pyspark")
    own = None if spec is None or spec.origin is None else _version_of(Path(spec.origin).parent)
    if own != ours:
        raise ConfigError(
            f"{HOME}={given} {has}, and PySpark here is {INSTALLED}; set {HOME} to a Spark {ours}, or unset "
            f"it and pip install pyspark=={INSTALLED}",
            key=HOME,
        )
    log.warning("%s=%s is ignored: it %s, and PySpark here is %s", HOME, given, has, INSTALLED)
    del environ[HOME]


def _version_of(home: Path) -> str | None:
    """Return the first two numbers of the version of the Spark in a folder; None if there is none."""
    if not (home / "bin" / "spark-submit").is_file():
        return None
    try:
        names = os.listdir(home / "jars")
    except OSError:
        return None
    return next((f"{match[1]}.{match[2]}" for match in map(_CORE.fullmatch, names) if match), None)
