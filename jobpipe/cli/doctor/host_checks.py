"""Doctor's checks of this machine: Python, Java, PySpark, network and disk."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jobpipe.cli.common.output import size
from jobpipe.cli.doctor.findings import Finding, fail, ok, warn
from jobpipe.config.reading.file_permissions import USER_REMEDY, folder_problem, user_name, why_nameless
from jobpipe.errors import AddressError

if TYPE_CHECKING:
    from jobpipe.config import Config

PYTHON_LEAST = (3, 11)
JAVA_LEAST = 17
JAVA_SECONDS = 20.0
PORTS_A_JOB = 2  # a coordinator and its data process


def python() -> Finding:
    """Python is new enough."""
    detail = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < PYTHON_LEAST:
        return fail("python", detail, f"use Python {'.'.join(map(str, PYTHON_LEAST))} or later")
    return ok("python", detail)


def pyarrow() -> Finding:
    """Pyarrow can be imported: with PySpark 3.5 it may be too new for NumPy."""
    from jobpipe.spark.session.supported_versions import of_pyarrow

    try:
        import pyarrow as found
    except ImportError as error:
        return fail("pyarrow", "it cannot be imported", str(of_pyarrow(error) or error))
    return ok("pyarrow", found.__version__)


def user() -> Finding:
    """The user has a name: Spark's JVM does not start without one (case P8)."""
    if (why := why_nameless()) is None:
        return ok("user", f"{user_name(os.getuid())} ({os.getuid()})")
    return fail("user", why, f"{USER_REMEDY}; clients and publishers without Spark need only HOME, or JOBPIPE__HOME")


def variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """No variable is one of ours but for its underscores: JOBPIPE_HOME has no effect, JOBPIPE__HOME is meant."""
    from jobpipe.config.definitions.config_model import KEYS

    meant = {re.sub("_+", "_", about.environment): about.environment for about in KEYS}
    for name in sorted(environ):
        if not name.upper().startswith("JOBPIPE__") and (ours := meant.get(re.sub("_+", "_", name.upper()))):
            yield warn("environment", f"{name} has no effect", f"if you mean {ours}, with two underscores, set that")


def java() -> Finding:
    """Java is found, runs, and is new enough for Spark."""
    from jobpipe_registry.embedded.embedded_zookeeper import find_java
    from jobpipe_registry.registry_errors import Unavailable

    install = f"install a Java runtime, version {JAVA_LEAST} or later, and put java on the PATH or set JAVA_HOME"
    try:
        program = find_java()
        shown = subprocess.run(
            [program, "-version"], capture_output=True, text=True, errors="replace", timeout=JAVA_SECONDS, check=True
        ).stderr
    except Unavailable:
        return fail("java", "no java program is found", install)
    except (OSError, subprocess.SubprocessError) as error:
        return fail("java", f"java does not run: {error}", install)
    found = re.search(r'version "(1\.)?(\d+)[^"]*"', shown)
    if found is None:
        return warn("java", f"{program} prints no version", f"make sure that it is {JAVA_LEAST} or later")
    detail = f"{found[0].split(' ', 1)[1].strip(chr(34))} ({program})"
    return ok("java", detail) if int(found[2]) >= JAVA_LEAST else fail("java", detail, install)


def zookeeper() -> Finding:
    """There are jars of ZooKeeper for an embedded registry."""
    from jobpipe_registry.embedded.embedded_zookeeper import find_jars
    from jobpipe_registry.registry_errors import Unavailable

    try:
        jars = find_jars()
    except Unavailable as error:
        return warn("zookeeper", error.reason, "not needed where registerserver.connect names a ZooKeeper")
    return ok("zookeeper", f"{next(iter(sorted(jars.glob('zookeeper-[0-9]*.jar')))).stem} ({jars})")


def spark_version() -> str | None:
    """Return the version of the PySpark that this Python would import, or None. It is not imported."""
    spec = importlib.util.find_spec("pyspark")  # may be that of SPARK_HOME, by PYTHONPATH
    if spec is None or spec.origin is None:
        return None
    try:
        found = re.search(r"__version__[^\"']*[\"']([^\"']+)", Path(spec.origin).with_name("version.py").read_text())
    except OSError:  # in an archive
        found = None
    if found:
        return found[1]
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return "?"


def pyspark() -> Finding:
    """PySpark is installed, in a version that fits."""
    from jobpipe.spark.session.supported_versions import INSTALL, WORKS, is_supported

    version = spark_version()
    if version is None:
        return warn(
            "pyspark",
            "none is installed: publishers and subscribers without Spark work, jobs of Spark do not",
            f"for these, {INSTALL} in the Python above",
        )
    if not is_supported(version):
        return warn("pyspark", version, f"use a version that was tried: {WORKS}")
    return ok("pyspark", version)


def worker_python() -> Finding:
    """The Python that Spark starts for its workers can import jobpipe. It is started."""
    from jobpipe.spark.session.python_interpreter import VARIABLE, given_python

    found = given_python()
    detail = f"Spark starts {found.name} ({found.path or 'not found'}, by {found.origin})"
    if found.is_ours() or (trouble := found.trouble()) is None:
        return ok("worker python", detail)
    remedy = f"activate the environment of {sys.executable}, or export {VARIABLE}={sys.executable}"
    if found.origin != "the PATH":
        remedy = f"export {found.origin}={sys.executable}"
    else:
        remedy += (
            ". In a program that this Python runs, `import jobpipe` before the session is enough; under spark-submit "
            "it is not"
        )
    return fail("worker python", f"{detail}: {trouble}", remedy)


def unix_sockets() -> Finding:
    """Spark's defaults switch the slow TCP path between JVM and Python off."""
    from jobpipe.spark.session.job_session import UNIX_SOCKETS

    if _spark_defaults().get(UNIX_SOCKETS) == "true":
        return ok("spark settings", f"{UNIX_SOCKETS}=true")
    return warn(
        "spark settings",
        f"{UNIX_SOCKETS} is not set in Spark's defaults",
        f"make your sessions by jobpipe.session(), or give them .config('{UNIX_SOCKETS}', 'true'): without it every "
        "Python task loses about 40 ms",
    )


def local_files() -> Finding:
    """Spark's defaults spare the processes that Hadoop starts for checkpoints on a local disk."""
    from jobpipe.spark.session.local_checkpoint_files import FILE_IMPL, JAR, LOCAL_FS

    given = _spark_defaults()
    keys = ("spark.driver.defaultExtraClassPath", "spark.driver.extraClassPath")
    paths = [place for key in keys for place in given.get(key, "").split(os.pathsep)]
    if given.get(FILE_IMPL) != LOCAL_FS:
        return warn(
            "local files",
            "Spark's defaults let Hadoop start about 20 processes (chmod, readlink) for each micro-batch whose "
            "checkpoint is on a local disk",
            "make your sessions by jobpipe.session(); for spark-submit, "
            f"put `{keys[0]} {JAR}` and `{FILE_IMPL} {LOCAL_FS}` into spark-defaults.conf",
        )
    if str(JAR) not in paths:
        detail = (
            f"{LOCAL_FS}, set as {FILE_IMPL}, is not on the class path: no checkpoint on a local disk can be opened"
        )
        return fail("local files", detail, f"set {keys[0]} to {JAR}")
    return ok("local files", f"{FILE_IMPL}={LOCAL_FS}")


def running_sessions() -> Iterator[Finding]:
    """The Spark sessions of this user's Python programs on this host were started with the recommended settings.

    As far as the command lines of their JVMs tell: what a program sets later does not stand there.
    """
    from jobpipe.spark.session.job_session import lacking
    from jobpipe.spark.session.launch_settings import running_drivers

    for pid, launch in running_drivers():
        name = f"{launch.conf.get('spark.app.name') or 'without a name'} (process {pid})"
        if found := lacking(launch.conf):
            remedy = (
                "if its program makes the session, make it by jobpipe.session(builder), or set these yourself; a "
                "checkpoint keeps its number of shuffle partitions"
            )
            yield warn("spark session", "\n".join((f"{name} was started without", *found)), remedy)
        else:
            yield ok("spark session", f"{name} has the recommended settings")


def _spark_defaults() -> dict[str, str]:
    from jobpipe.errors import ConfigError
    from jobpipe.spark.session.launch_settings import spark_defaults

    try:
        return spark_defaults(os.environ)
    except ConfigError:  # Spark will say so
        return {}


def network(config: Config) -> Iterator[Finding]:
    """The subnet is one of ours, and its address has free ports in the range."""
    from jobpipe.net.address import bind_in_range, pick_interface

    try:
        host = pick_interface(config.subnet, embedded=config.embedded)
    except AddressError as error:
        yield fail("subnet", error.message, "set jobpipe.sinkserver.subnet to a subnet of this host")
        return
    yield ok("subnet", f"publishers listen on {host} (subnet {config.subnet or 'not set'})")
    ports = "-".join(map(str, config.port_range))
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(PORTS_A_JOB):
                stack.enter_context(bind_in_range(host, config.port_range))
    except AddressError as error:
        remedy = f"a publisher needs {PORTS_A_JOB}; stop programs that use them, or widen jobpipe.sinkserver.port.range"
        yield fail("ports", error.message, remedy)
        return
    yield ok("ports", f"{PORTS_A_JOB} or more of {ports} are free")


def spool(config: Config) -> Finding:
    """The spool's folder can be written and has room up to the cap."""
    place = config.spool_dir
    folder = next((path for path in (place, *place.parents) if path.exists()), Path("/"))
    try:
        if (why := folder_problem(place)) is not None:
            return fail("spool", why, "see docs/security.md: chown and chmod as it says, or set jobpipe.spool.dir")
        with tempfile.TemporaryFile(dir=folder):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as error:
        remedy = f"make {folder} writable, or set jobpipe.spool.dir"
        return fail("spool", f"{place}: {error.strerror}", remedy)
    detail = f"{place}, {size(free)} free, cap of each topic {size(config.spool_max_bytes)}"
    if free < config.spool_max_bytes:
        return warn("spool", detail, "the disk is full before the cap: lower jobpipe.spool.max_bytes, or make room")
    return ok("spool", detail)
