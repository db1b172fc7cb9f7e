"""Checkpoints on a local disk without 20 processes a micro-batch, by classes of ours in the JVM.

For each file of Spark's two logs Hadoop starts ``chmod``, where its native library is missing as it is in PySpark from
PyPI, and for each rename ``readlink``, in any case. The classes of ``java/`` ask the operating system instead; all else
is Hadoop's. They must be on the class path of the JVM, and so be settled before it starts: where that is too late, a
session that names them could start no query.

``defaultExtraClassPath`` leaves ``extraClassPath``, and so the user's own class path, as it is: Spark joins the two.
What an administrator has set as the default in ``spark-defaults.conf`` is kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from jobpipe.spark.session.launch_settings import ARGUMENTS, java_command
from jobpipe.spark.session.python_interpreter import loaded_context

JAR = Path(__file__).absolute().parents[1] / "java" / "jobpipe-local-files.jar"
LOCAL_FS = "jobpipe.hadoop.InProcessLocalFs"
FILE_IMPL = "spark.hadoop.fs.AbstractFileSystem.file.impl"
CLASS_PATHS = ("spark.driver.defaultExtraClassPath", "spark.executor.defaultExtraClassPath")


def in_process_conf(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with which checkpoints of ``file:`` start no process.

    An executor needs the class only if it keeps state in such a checkpoint, and then it runs on this host.

    Args:
        given: settings that stay in force; what they say of these class paths is kept.
    """
    return {
        **{key: os.pathsep.join(filter(None, (given.get(key), str(JAR)))) for key in CLASS_PATHS},
        FILE_IMPL: LOCAL_FS,
    }


def hindrance() -> str | None:
    """Return why a session that is made now cannot have these settings, or None if it can."""
    from jobpipe.spark.session.spark_versions import HAS_DEFAULT_CLASS_PATH  # `import jobpipe` loads no Spark

    if not HAS_DEFAULT_CLASS_PATH:
        return f"this Spark has no {CLASS_PATHS[0]}, which began with 4.0"
    if not JAR.is_file():
        return f"{JAR} is no file, as where jobpipe is loaded from an archive"
    if os.pathsep in str(JAR):
        return f"a class path cannot name {JAR}"
    if os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_CONNECT_MODE_ENABLED"):
        return "the session is one of Spark Connect, whose JVM runs elsewhere"
    running = _running_class_path()
    if running is None and re.search(r"driver.default(ExtraClassPath|-class-path)", os.environ.get(ARGUMENTS, "")):
        return f"{ARGUMENTS} sets a default class path, which would win over one of the session"
    if running is not None and str(JAR) not in running.split(os.pathsep):
        return f"the JVM runs already, without {JAR} on its class path"
    return None


def _running_class_path() -> str | None:
    """Return the class path of the JVM that the next session will have; None if it starts with that session."""
    context = loaded_context()
    if context is not None and context._jvm is not None:
        return str(context._jvm.java.lang.System.getProperty("java.class.path"))
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    arguments, _ = java_command() or ([], Path())  # of spark-submit, which started this program
    return next((after for word, after in pairwise(arguments) if word == "-cp"), "")
