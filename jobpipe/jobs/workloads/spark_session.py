"""The Spark session of an attempt, with the keys of file and launcher."""

from __future__ import annotations

import atexit
import io
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import javaproperties
from pyspark.sql import SparkSession

from jobpipe.jobs.bus_keys import JOB_TIMES
from jobpipe.pipelines.file.field_types import ENCRYPTED, SPARK_JOBPIPE, revealed
from jobpipe.pipelines.file.secret_keys import SECRET_KEYS
from jobpipe.pipelines.model.pipeline import Job, Pipeline
from jobpipe.spark.register import register
from jobpipe.spark.session.job_session import SHUFFLE_PARTITIONS, local_cores, recommended_conf
from jobpipe.spark.session.launch_settings import spark_defaults
from jobpipe.spark.session.python_interpreter import is_local
from jobpipe.spark.session.spark_versions import require_admission_control
from jobpipe.spark.session.startup_log import start_log

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}
LOOPBACK = "127.0.0.1"
REDACTION = "spark.redaction.regex"
_SPARKS_OWN = "(?i)secret|password|token|access[.]?key|credential"  # Spark 4.3's default for it


def master_of(pipeline: Pipeline, job: Job) -> str:
    """Return Spark's master of a job, "" where the cluster that has started the driver knows it."""
    return pipeline.configuration(job).get("spark.master") or pipeline.launcher.plugin.spark_keys().get(
        "spark.master", ""
    )


def session_keys(pipeline: Pipeline, job: Job, storage: str) -> dict[str, str]:
    """Return the keys of a job's session; the file's own come last, their secrets revealed.

    Raises:
        ConfigError: there is no such secret.
    """
    keys = {key: str(value) for key, value in recommended_conf(storage.startswith("file:")).items()}
    keys |= _DEFAULTS | dict(pipeline.launcher.plugin.spark_keys())
    if is_local(master := keys.get("spark.master", "")):
        keys |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        if SHUFFLE_PARTITIONS not in spark_defaults(os.environ):
            keys[SHUFFLE_PARTITIONS] = str(local_cores(master))
    keys |= {"spark.app.name": f"{pipeline.name}.{job.name}", **JOB_TIMES}
    keys["spark.executorEnv.PYTHONPATH"] = _python_path(pipeline.folder)
    given = pipeline.configuration(job)
    own = {key: value for key, value in given.items() if key.startswith(SPARK_JOBPIPE)}  # it reveals its own secrets
    keys |= revealed({key: given[key] for key in given.keys() - own.keys()}, pipeline.folder) | own
    return keys | {REDACTION: _redaction(given, job)}


def _redaction(given: Mapping[str, str], job: Job) -> str:
    """Return which keys of the session, and which options of sources and sinks, Spark shows without their values.

    They would be in its UI, its event log and its plans, in clear. What the file, or Spark's defaults, say stays valid.
    """
    of_spark = given.get(REDACTION) or spark_defaults(os.environ).get(REDACTION) or _SPARKS_OWN
    options = [stage.plugin.options for stage in job.stages]
    free = [given, *(value for each in options for _, value in each if isinstance(value, dict))]
    encrypted = {key for each in free for key, value in each.items() if str(value).startswith(ENCRYPTED)}
    # Hadoop's keys are also shown without the first part, and options in lower case.
    exact = [rf"(\A|\.){re.escape(key.removeprefix('spark.hadoop.'))}\Z" for key in sorted(encrypted)]
    return f"(?:{of_spark})|(?i:{'|'.join([SECRET_KEYS, *exact])})"


def _python_path(folder: Path) -> str:
    """Return the path on which Spark's workers find the modules next to the file."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def prepare_jvm(keys: Mapping[str, str]) -> None:
    """Let the JVM that this process starts have these keys, wherever in it the session is made.

    They go through a file in memory that only this user can open: the command line of a process is shown to all, and
    there may be secrets among them.
    """
    text = io.StringIO()
    log = start_log({**spark_defaults(os.environ), **keys})
    javaproperties.dump({**keys, **log}, text, timestamp=False)
    file = os.memfd_create("spark-properties")  # closed when this process ends
    os.write(file, text.getvalue().encode("latin-1"))
    place = f"/proc/{os.getpid()}/fd/{file}"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {place} --load-spark-defaults pyspark-shell"


def make_session(pipeline: Pipeline, late: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session; the modules of ``libraries`` are sent to executors that do not run on this host.

    Args:
        late: the session's keys, where its JVM runs already and was not given them.

    Raises:
        UnsupportedSpark: this Spark is older than 4.2.
    """
    require_admission_control("a pipeline")
    if late is None:
        spark = SparkSession.builder.getOrCreate()
    else:
        spark = SparkSession.builder.config(map=dict(late)).getOrCreate()
        register(spark)  # the source learns jobpipe's keys from the JVM's command line, where these are not
    if not str(spark.sparkContext.master).startswith("local"):
        for library in pipeline.spec.libraries:
            for file in _packed(pipeline.folder, library.glob.include):
                spark.sparkContext.addPyFile(str(file))
    return spark


def _packed(folder: Path, pattern: str) -> list[Path]:
    """Return what ``addPyFile`` takes for a pattern: a file as it is, a folder as an archive."""
    if not pattern.endswith("/**"):
        return sorted(folder.glob(pattern))
    top = folder / pattern.removesuffix("/**")
    made = tempfile.mkdtemp(prefix="jobpipe-")  # Spark serves it from there as long as this process lives
    atexit.register(_remove, made, os.getpid())
    archive = Path(made) / f"{top.name}.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted(top.rglob("*.py")):
            packed.write(file, file.relative_to(folder))
    return [archive]


def _remove(folder: str, owner: int) -> None:
    """Remove a folder at the end of the process that made it, and not of a fork of it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def add_path(folder: Path) -> None:
    """Let this process import the modules next to the file."""
    sys.path.insert(0, str(folder))
