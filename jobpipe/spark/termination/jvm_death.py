"""Ends the driver's Python process when its JVM is gone.

A JVM that dies, or that a cluster manager kills, leaves the Python process behind: nothing would publish any more, yet
the coordinator would see a living parent and refuse every other publisher.
"""

from __future__ import annotations

import logging
import os
import signal
import threading

import psutil
from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
GRACE_SECONDS = 10.0  # from SIGTERM to the hard end

_watched: set[tuple[int, int]] = set()  # (our process id, JVM's): one watcher each


def end_with_jvm(spark: SparkSession) -> None:
    """Watch the session's JVM from a daemon thread; when it is gone send SIGTERM to this process, then end it.

    Does nothing when the JVM runs on another host.
    """
    jvm = spark.sparkContext._jvm
    if jvm is None:
        return
    pid = int(jvm.java.lang.ProcessHandle.current().pid())
    key = (os.getpid(), pid)
    if key in _watched:
        return
    try:
        process = psutil.Process(pid)
        if "java" not in process.name():
            return
    except psutil.NoSuchProcess:  # another host, or another name space of processes
        return
    _watched.add(key)
    threading.Thread(target=_watch, args=(process,), name="jobpipe-jvm-watch", daemon=True).start()


def _watch(process: psutil.Process) -> None:
    never = threading.Event()
    while _lives(process):
        never.wait(POLL_SECONDS)
    log.error("the JVM (pid %d) of this Spark driver is gone; this process ends too", process.pid)
    os.kill(os.getpid(), signal.SIGTERM)
    never.wait(GRACE_SECONDS)
    os._exit(1)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
