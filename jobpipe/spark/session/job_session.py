"""The session of a job: settings that jobpipe recommends, each with what it buys (measured on PySpark 4.3, 2 cores)."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jobpipe.errors import ConfigError
from jobpipe.spark.session.launch_settings import coming_launch, spark_defaults
from jobpipe.spark.session.local_checkpoint_files import CLASS_PATHS, FILE_IMPL, LOCAL_FS, hindrance, in_process_conf
from jobpipe.spark.session.python_interpreter import is_local
from jobpipe.spark.session.startup_log import start_log
from jobpipe_registry.embedded.embedded_zookeeper import find_java
from jobpipe_registry.registry_errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
HADOOPS_LOCAL_FS = "org.apache.hadoop.fs.local.LocalFs"  # Hadoop's default for FILE_IMPL
SPARKS_SHUFFLE_PARTITIONS = 200  # Spark's default, on any master
_EVERYWHERE = {
    # Every Python task loses 40 ms to delayed ACKs on its TCP socket otherwise.
    UNIX_SOCKETS: "true",
    # Fewer, larger record batches than with the default of 10,000 rows; what that buys is little (docs/tuning.md).
    ARROW_ROWS: "50000",
}


def recommended_conf(checkpoints_local: bool = False) -> dict[str, bool | float | int | str | None]:
    """Return the settings for ``SparkSession.builder.config(map=...)``; :func:`session` is simpler.

    Call it where the session is made: what it returns depends on whether the JVM runs already.

    Args:
        checkpoints_local: all checkpoints are ``file:`` on a local disk. Brings Spark's two logs from about 100 ms to
            3 ms a micro-batch, with the same files as otherwise. If the JVM runs already, as under spark-submit, to
            about 30 ms, with a weaker rename; the log (INFO) says why.

    Raises:
        ConfigError: Spark's own ``spark-defaults.conf`` cannot be read.
    """
    conf: dict[str, bool | float | int | str | None] = {**_EVERYWHERE}
    if checkpoints_local:
        if (why := hindrance()) is None:
            return conf | in_process_conf(spark_defaults(os.environ))
        _warn_of_processes(why)
        from jobpipe.spark.session.spark_versions import CHECKPOINT_BY_FILE_SYSTEM  # `import jobpipe` loads no Spark

        conf["spark.sql.streaming.checkpointFileManagerClass"] = CHECKPOINT_BY_FILE_SYSTEM
    return conf


def session(builder: SparkSession.Builder | None = None) -> SparkSession:
    """Return ``builder.getOrCreate()``, with settings for short micro-batches where nothing else is set.

    It adds what :func:`recommended_conf` returns; on YARN the setting for sockets is left out, since their names would
    be too long there. With a local master it also adds the classes for checkpoints on a local disk, if the JVM does not
    run yet, and as many shuffle partitions as the master has cores, in place of Spark's 200. What the builder,
    ``spark-submit`` or ``spark-defaults.conf`` sets is kept. In a session that exists already only what can still be
    changed is added; in one of Spark Connect nothing is. A JVM that it starts for a local master logs warnings and
    errors, without the lines that each start prints, unless a ``log4j2.properties`` or a Java option says how it logs.

    A checkpoint keeps the number of shuffle partitions with which its query first ran. If a query will later run on
    a cluster, set ``spark.sql.shuffle.partitions`` to what it will need there.

    Args:
        builder: by default ``SparkSession.builder``. The settings are added to it.

    Raises:
        ConfigError: a properties file that Spark will read cannot be read, or there is no Java.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder if builder is None else builder
    own = {key: str(value) for key, value in getattr(builder, "_options", {}).items()}
    if _is_of_connect(builder, own):
        return builder.getOrCreate()
    if SparkContext._active_spark_context is None:
        if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started this program: its JVM has the settings
            SparkContext._ensure_initialized()
        if SparkContext._jvm is None:
            require_java()
        given = coming_launch().conf if SparkContext._jvm is None else dict(SparkConf().getAll())
        given = {key: value for key, value in (given | own).items() if _chosen.get(key) != value}
        found, undone = missing(given), _undone(given)
        if SparkContext._jvm is None:
            found |= start_log(given)
        _chosen.update(found)
        for key, value in (found | undone).items():
            builder = builder.config(key, value)
    spark = builder.getOrCreate()
    _complete(spark)
    return spark


def require_java() -> None:
    """Raise ConfigError if there is no java program, before Spark looks for one and says less.

    Raises:
        ConfigError: it is neither below JAVA_HOME nor on the PATH.
    """
    try:
        find_java()
    except Unavailable as error:
        needed = error.reason.partition("; or set registerserver.connect")[0]  # that helps the registry, and not Spark
        raise ConfigError(needed, key="java") from None


_chosen: dict[str, str] = {}  # what this process chose last, by key: the JVM has it for later sessions too


def _undone(given: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's own values of what was chosen for a local session, where one on a cluster comes after it."""
    if is_local(given.get("spark.master")):
        return {}
    own = {FILE_IMPL: HADOOPS_LOCAL_FS, SHUFFLE_PARTITIONS: str(SPARKS_SHUFFLE_PARTITIONS)}
    return {key: value for key, value in own.items() if key in _chosen and key not in given}


def _is_of_connect(builder: SparkSession.Builder, own: Mapping[str, str]) -> bool:
    from pyspark.sql.utils import is_remote

    from jobpipe.spark.session.spark_versions import default_api_mode

    mode = own.get("spark.api.mode", os.environ.get("SPARK_API_MODE", "")).lower()
    if mode not in ("classic", "connect"):
        mode = default_api_mode()
    remote = is_remote() or "spark.remote" in own or "SPARK_REMOTE" in os.environ
    return remote or mode == "connect" or type(builder).__module__.startswith("pyspark.sql.connect.")


def lacking(conf: Mapping[str, str]) -> list[str]:
    """Return what the settings with which a session was started lack, each with what that costs.

    Settings of the user's own are left alone.
    """
    found = []
    if UNIX_SOCKETS not in conf and not _has_long_names(conf):
        found.append(f"{UNIX_SOCKETS}=true: without it every Python task loses about 40 ms")
    if is_local(conf.get("spark.master")):
        if FILE_IMPL not in conf:
            found.append(
                f"jobpipe's {LOCAL_FS}: without it a query whose checkpoint is on a local disk starts 20 processes in "
                "each micro-batch"
            )
        if SHUFFLE_PARTITIONS not in conf:
            found.append(f"{SHUFFLE_PARTITIONS}: each shuffle runs Spark's default of 200 tasks in each micro-batch")
    return found


def _has_long_names(conf: Mapping[str, str]) -> bool:
    """Tell whether Unix sockets would lie in a folder of YARN's: their names would have more than 107 bytes."""
    return conf.get("spark.master", "").startswith("yarn") and "spark.python.unix.domain.socket.dir" not in conf


def missing(given: Mapping[str, str]) -> dict[str, str]:
    """Return what a session whose settings these are lacks before it is made."""
    found = dict(_EVERYWHERE)
    if _has_long_names(given):
        del found[UNIX_SOCKETS]
    if is_local(given.get("spark.master")):
        if not given.get("spark.master", "").startswith("local-cluster"):
            found[SHUFFLE_PARTITIONS] = str(local_cores(given.get("spark.master")))
        if given.get(FILE_IMPL) in (None, LOCAL_FS):
            if (why := hindrance()) is None:
                found |= in_process_conf(given)
            else:
                _warn_of_processes(why)
    return {key: value for key, value in found.items() if key not in given or key in CLASS_PATHS}


def local_cores(master: str | None) -> int:
    """Return how many cores a local master probably has; only its JVM knows what ``*`` is in a container."""
    found = re.match(r"local(\[(\d+)|$)", master or "")
    return int(found[2] or 1) if found else len(os.sched_getaffinity(0))


def _complete(spark: SparkSession) -> None:
    """Add what can be added to a running session, and correct what was guessed."""
    from jobpipe.spark.session.spark_versions import session_conf

    given, master = session_conf(spark), spark.sparkContext.master or ""
    if ARROW_ROWS not in given:
        spark.conf.set(ARROW_ROWS, _EVERYWHERE[ARROW_ROWS])
    if not is_local(master) or master.startswith("local-cluster"):
        return
    guessed = "[*" in master and _chosen.get(SHUFFLE_PARTITIONS) == given.get(SHUFFLE_PARTITIONS)
    if guessed or SHUFFLE_PARTITIONS not in given:
        jvm: Any = spark._jvm
        cores = jvm.java.lang.Runtime.getRuntime().availableProcessors() if "[*" in master else local_cores(master)
        spark.conf.set(SHUFFLE_PARTITIONS, str(cores))


def _warn_of_processes(why: str) -> None:
    log.info("Spark will start processes for the files of its checkpoints: %s (docs/tuning.md)", why)
