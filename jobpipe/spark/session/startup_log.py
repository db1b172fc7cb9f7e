"""What Spark logs while its JVM starts: without the lines that come each time, unless the user has a log of his own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from jobpipe.spark.session.launch_settings import conf_folder
from jobpipe.spark.session.python_interpreter import is_local

DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"  # Spark puts them before the user's own, which win
_OPTIONS = (DEFAULT_OPTIONS, "spark.driver.extraJavaOptions")
_VARIABLES = ("LOG4J_CONFIGURATION_FILE", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_SUFFIXES = {".properties", ".xml", ".yaml", ".yml", ".json", ".jsn"}  # not .template, which Spark has for users
_FILE = Path(__file__).with_name("log4j2.properties")


def start_log(given: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the setting that gives a driver's JVM the log of this folder; nothing if the user says how Spark logs.

    Args:
        given: Spark's settings, those of ``spark-defaults.conf`` too.
        environ: of the process that starts the JVM.
    """
    if not is_local(given.get("spark.master")) or not _FILE.is_file():
        return {}
    said = [given.get(key, "") for key in _OPTIONS] + [environ.get(name, "") for name in _VARIABLES[1:]]
    if environ.get(_VARIABLES[0]) or any("log4j" in text for text in said):
        return {}
    folder = conf_folder(environ)
    if folder is not None and any(file.suffix in _SUFFIXES for file in folder.glob("log4j2*")):
        return {}
    own = given.get(DEFAULT_OPTIONS, "")
    return {DEFAULT_OPTIONS: f"-Dlog4j2.configurationFile={_FILE.as_uri()} {own}".rstrip()}
