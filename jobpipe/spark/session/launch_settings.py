"""How Spark was started, or will be: its settings, for processes that have no session, and where jobpipe is.

Spark 4.3 makes a Python data source in a process of its own and tells it the options of ``load()``, nothing of the
session. But that process descends from the driver's JVM, and the command line of that names whatever was settled before
it started: ``spark-submit --conf``, the properties files and, where the application is run by ``python``, what it gave
to ``builder.config``, which PySpark hands on as ``--conf``. :func:`jobpipe.register` warns of what is set later.

How the sources rank was tried with spark-submit 4.3.0: ``--conf``, ``--extra-properties-file``, ``--properties-file``,
``spark-defaults.conf`` (without ``--properties-file``, or with ``--load-spark-defaults``), ``-D`` of Java.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import sys
import zipimport
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from jobpipe.errors import ConfigError
from jobpipe.own_application import SHELL, jvm_above

PREFIX = "spark.jobpipe."
SUBMIT = "org.apache.spark.deploy.SparkSubmit"
LAUNCHER = "org.apache.spark.launcher.Main"  # runs for a moment, to print the command with SUBMIT
ARGUMENTS = "PYSPARK_SUBMIT_ARGS"  # what PySpark gives to spark-submit, after the settings of the session
# The options of spark-submit that take no value; all others take one (SparkSubmitOptionParser, 4.3.0).
SWITCHES = {"--help", "-h", "--supervise", "--usage-error", "--verbose", "-v", "--version", "--load-spark-defaults"}
JAVA_PAIRS = {  # the options of java that take the next word
    *("-cp", "-classpath", "--class-path", "-p", "--module-path", "--upgrade-module-path", "--add-modules"),
    *("--limit-modules", "--add-opens", "--add-exports", "--add-reads", "--patch-module"),
}
SHORT = {"-c": "--conf"}


@dataclass
class LaunchSettings:
    """How the driver's JVM was started.

    Attributes:
        conf: the ``spark.*`` settings of its command line and files, as Spark resolved them.
        submitted: with the program, as spark-submit does it: ``builder.config`` of that program is not in ``conf``.
        program: the name of the file that was submitted; "" if there is none, or it is not Python's.
    """

    conf: dict[str, str] = field(default_factory=dict)
    submitted: bool = False
    program: str = ""

    @property
    def application(self) -> str:
        """The application's name, "" if it was not given at the start."""
        return self.conf.get("spark.app.name", "")

    @property
    def name(self) -> str:
        """What people call the application: its name, or else the file that was submitted; "" if neither is known."""
        return self.application or self.program

    @property
    def parallelism(self) -> int:
        """Spark's default parallelism, as far as it was settled at the start: set, or by the cores; else 2."""
        if self.conf.get("spark.default.parallelism", "").isdigit():
            return int(self.conf["spark.default.parallelism"]) or 1
        local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,.*)?\])?", self.conf.get("spark.master", ""))
        if local is not None:
            return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
        most = self.conf.get("spark.cores.max", "")
        if most.isdigit():
            return max(2, int(most))
        counts = [self.conf.get(f"spark.executor.{name}", "") for name in ("instances", "cores")]
        return max(2, int(counts[0]) * int(counts[1])) if all(count.isdigit() for count in counts) else 2

    @property
    def settings(self) -> dict[str, str]:
        return {key: value for key, value in self.conf.items() if key.startswith(PREFIX)}


def launch() -> LaunchSettings:
    """Return how the JVM that this process descends from was started; without settings where there is none.

    Raises:
        ConfigError: a properties file that Spark has read cannot be read any more.
    """
    found = java_command()
    return LaunchSettings() if found is None else parse_command(found[0], os.environ, found[1])


def application_name() -> str:
    """Return the application's name for people, "" if it is not known; never fails."""
    with contextlib.suppress(ConfigError):
        return launch().name
    return ""


def launch_of(jvm: psutil.Process) -> LaunchSettings:
    """Return how a JVM of this user was started.

    Raises:
        psutil.Error: it is gone.
        ConfigError: as :func:`launch`.
    """
    return parse_command(jvm.cmdline()[1:], jvm.environ(), Path(jvm.cwd()))


def java_command() -> tuple[list[str], Path] | None:
    """Return the arguments of the JVM that this process descends from, and its working folder; None without one."""
    found = jvm_above()
    if found is None:
        return None
    with contextlib.suppress(psutil.Error):  # of another user, or gone
        return found.cmdline()[1:], Path(found.cwd())
    return None


def parse_command(arguments: Sequence[str], environ: Mapping[str, str], folder: Path) -> LaunchSettings:
    """Return what the arguments of a driver's ``java`` say.

    Args:
        arguments: without the program.
        environ: the JVM's environment, which its Python processes inherit.
        folder: what relative paths start from.
    """
    rest = list(arguments)
    conf: dict[str, str] = {}
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in JAVA_PAIRS and rest:
            rest.pop(0)
        elif word.startswith("-Dspark."):
            key, _, value = word.removeprefix("-D").partition("=")
            conf[key] = value
    main = rest.pop(0) if rest else ""
    return _submitted(rest, environ, folder, conf, defaults=main == SUBMIT)


def coming_launch() -> LaunchSettings:
    """Return how the first session of this program will start its JVM, apart from the settings of ``builder.config``.

    Raises:
        ConfigError: a properties file that Spark will read cannot be read.
    """
    try:
        words = shlex.split(os.environ.get(ARGUMENTS, ""))
    except ValueError:  # spark-submit will say so
        words = []
    return _submitted(words, os.environ, Path(), {}, defaults=True)


def running_drivers() -> Iterator[tuple[int, LaunchSettings]]:
    """Yield the process id of each driver's JVM that this user's Python programs started here, and how.

    Programs under spark-submit are left out: what they tell ``builder.config`` does not stand in a command line.
    """
    for process in psutil.process_iter():
        try:
            if process.uids().real == os.getuid() and _is_python_driver(command := process.cmdline()):
                yield process.pid, parse_command(command[1:], process.environ(), Path(process.cwd()))
        except (psutil.Error, ConfigError):  # it has ended; or a file with its settings is gone
            continue


def _is_python_driver(command: Sequence[str]) -> bool:
    """Tell whether a command is that of a driver's JVM; not if it names files as only that process sees them."""
    if SUBMIT not in command or LAUNCHER in command or Path(command[0]).name != "java":
        return False
    return command[-1] == SHELL and not any(word.startswith(("/dev/", "/proc/self/")) for word in command)


def _submitted(
    words: Sequence[str], environ: Mapping[str, str], folder: Path, conf: dict[str, str], *, defaults: bool
) -> LaunchSettings:
    """Return what the words after spark-submit say, ``conf`` being the weakest source.

    Args:
        defaults: Spark reads ``spark-defaults.conf`` too, unless the words say otherwise.
    """
    rest = list(words)
    given: dict[str, list[str]] = {}
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        if name not in SWITCHES and not equals and rest:
            value = rest.pop(0)
        given.setdefault(SHORT.get(name, name), []).append(value)
    files = [Path(each[-1]) for name in _FILES if (each := given.get(name))]
    if defaults and ("--properties-file" not in given or "--load-spark-defaults" in given):
        conf |= spark_defaults(environ, folder)
    for path in files:
        conf |= _read(folder / path)
    for pair in given.get("--conf", ()):
        key, _, value = pair.partition("=")
        conf[key] = value
    conf |= {key: given[option][-1] for option, key in _OPTIONS.items() if option in given}
    if defaults and (master := environ.get("MASTER")):
        conf.setdefault("spark.master", master)
    settings = {key: value for key, value in conf.items() if key.startswith("spark.")}
    program = Path(rest[0]).name if rest and rest[0].endswith(".py") else ""
    return LaunchSettings(settings, rest[:1] != [SHELL], program)


_FILES = ("--properties-file", "--extra-properties-file")
_OPTIONS = {  # those with which spark-submit overrides a setting, as far as we ask for them
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-default-class-path": "spark.driver.defaultExtraClassPath",
}


def spark_defaults(environ: Mapping[str, str], folder: Path = Path()) -> dict[str, str]:
    """Return what ``spark-defaults.conf`` sets, nothing without one; relative paths start from ``folder``.

    Raises:
        ConfigError: it cannot be read.
    """
    place = conf_folder(environ)
    path = folder / (place or "") / "spark-defaults.conf"
    return _read(path) if place and os.path.isfile(path) else {}


def conf_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of Spark's configuration, which need not be there; None if there is no Spark."""
    home = environ.get("SPARK_HOME") or _installed_home()
    place = environ.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    return Path(place) if place else None


def _installed_home() -> str | None:
    """Return the folder of the installed PySpark, which its own scripts take if there is no SPARK_HOME."""
    spec = importlib.util.find_spec("pyspark")
    return str(Path(spec.origin).parent) if spec is not None and spec.origin else None


def _read(path: Path) -> dict[str, str]:
    import javaproperties  # only the driver has a use for it

    try:
        with path.open(encoding="utf-8", errors="replace") as file:  # as Spark does
            return {key: value.strip() for key, value in javaproperties.load(file).items()}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: Spark is started with this properties file, and it cannot be read for its settings ({error})",
            file=str(path),
        ) from error


def require_installed() -> None:
    """Check that jobpipe is installed, not loaded from a file that was sent along.

    Raises:
        ConfigError: names the file.
    """
    spec = sys.modules[__name__.partition(".")[0]].__spec__  # an import of it here would be a circle
    if spec is not None and isinstance(spec.loader, zipimport.zipimporter):
        raise ConfigError(
            f"jobpipe was loaded from {spec.loader.archive}, as with --py-files. Spark does not give such files to all "
            "processes that find and follow a source. Install jobpipe into the Python of every node, or send the whole "
            "Python by --archives; docs/deploy.md says how",
            file=spec.loader.archive,
        )
