"""How the tests' JVMs start: quickly."""

from __future__ import annotations

import sys
from pathlib import Path

# tests/harness/class_archive.py makes them: for a class path that begins with our jar, for one without it, and for
# ZooKeeper's.
DRIVER_ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
PLAIN_ARCHIVE = Path(sys.prefix) / "spark-classes-plain.jsa"
ZOOKEEPER_ARCHIVE = Path(sys.prefix) / "zookeeper-classes.jsa"
# Most of a test with a JVM of its own is that JVM's start, which the second compiler makes twice as long.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
# Code that Spark generates for a query, and Java compiles, is not worth it for the few rows of a driver program: it is
# a sixth of the processor time of tests that start some. The session in the tests' own process has it, as users' do.
INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
QUIET = "-Xlog:disable -Xlog:all=error:stderr"  # a JVM that cannot use the archive would warn


def quick_driver() -> str:
    """Return the options of a JVM that Spark starts for a driver with ``recommended_conf(checkpoints_local=True)``."""
    return f"{_quick(DRIVER_ARCHIVE)} {INTERPRETED}"


def quick_plain() -> str:
    """Return the options of Spark's other JVMs: executors, masters, workers, drivers on a cluster."""
    return _quick(PLAIN_ARCHIVE)


def quick_zookeeper() -> str:
    """Return more options of an embedded ZooKeeper, whose own are those of a quick start already."""
    return _from(ZOOKEEPER_ARCHIVE)


def _quick(archive: Path) -> str:
    return f"{QUICK} {_from(archive)}".strip()


def _from(archive: Path) -> str:
    return f"-XX:SharedArchiveFile={archive} {QUIET}" if archive.is_file() else ""
