"""U10: what a Python process of Spark's prints when the JVM hangs up on it, as it does after an idle minute."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.docs.troubleshooting import on_page
from tests.spark.kit import PATIENCE, ROOT, until

pytestmark = pytest.mark.spark

WORKER = """
def main(infile, outfile):
    {loads}
    infile.read(1)  # until the JVM hangs up
    {ends}
"""
FLUSHES = "outfile.write(b'what the JVM does not read')"


def printed(folder: Path, loads: str, ends: str) -> str:
    """Return what Spark's daemon and one worker of it print; the worker does this, and the JVM hangs up on it."""
    (folder / "pyspark_hung_up.py").write_text(WORKER.format(loads=loads, ends=ends))
    sockets = tempfile.TemporaryDirectory()  # whose path is short: that of a socket has at most 107 bytes
    settings = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",  # the first write after the end fails, and no secret is exchanged
        "PYTHON_WORKER_FACTORY_SOCK_DIR": sockets.name,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",  # as Spark has it
    }
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark_hung_up"]
    daemon = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **settings},
    )
    assert daemon.stdin
    assert daemon.stdout
    try:
        (length,) = struct.unpack("!i", daemon.stdout.read(4))
        path = daemon.stdout.read(length).decode()
        with socket.socket(socket.AF_UNIX) as jvm:
            jvm.settimeout(PATIENCE)
            jvm.connect(path)
            (worker,) = struct.unpack("!i", jvm.recv(4, socket.MSG_WAITALL))
        until(lambda: not psutil.pid_exists(worker), "the end of the worker")
        return daemon.communicate(timeout=PATIENCE)[1].decode()  # closes its standard input, which ends it
    finally:
        daemon.kill()
        daemon.communicate()
        sockets.cleanup()


@pytest.mark.parametrize(
    "module", ["jobpipe", "pyspark_jobpipe", "jobpipe.spark.source.batch_reader", "jobpipe.spark.sink.segment_writers"]
)
def test_no_trace_of_a_hang_up(tmp_path: Path, module: str) -> None:
    """U10: of the process that looks the source up no more is wanted than an import; tasks load one module."""
    assert printed(tmp_path, f"import {module}", FLUSHES) == ""


def test_processes_without_jobpipe(tmp_path: Path) -> None:
    """Spark's own, in which none of our code runs: the page tells what the trace means."""
    on_page(printed(tmp_path, "pass", FLUSHES), "BrokenPipeError: [Errno")


def test_other_errors_stay(tmp_path: Path) -> None:
    assert "OSError: [Errno 5] no" in printed(tmp_path, "import pyspark_jobpipe", "raise OSError(5, 'no')")
