"""How the tests' JVMs start: quickly."""

from __future__ import annotations

import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"  # tests/harness/class_archive.py makes it
# Most of a test with a JVM of its own is that JVM's start, which the second compiler makes twice as long.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
QUIET = "-Xlog:disable -Xlog:all=error:stderr"  # a JVM that cannot use the archive would warn


def quick_start() -> str:
    """Return the options of a JVM that Spark starts for a driver."""
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} {QUIET}" if ARCHIVE.is_file() else QUICK
