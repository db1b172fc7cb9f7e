"""Loaded by every Python process of a fault test at its start: lets it die, or its disk fail, at a chosen point.

``JOBPIPE_TESTS_FAULT`` names a file; :class:`tests.faults.points.FaultPoints` writes it, and the first process that
comes to that point removes it and obeys. No module of jobpipe knows of this.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKEN = os.environ.get("JOBPIPE_TESTS_FAULT")
PUBLISHERS, COORDINATOR = ("tests.harness.jobs.publish", "pyspark.daemon", "stops.py"), "jobpipe.coordinator"
NOW = threading.local()  # sealing: this thread is in the transaction of a seal
LEFT = {"order": None, "times": 0}  # an order that goes on in this process


def _ordered(point: str) -> dict[str, Any] | None:
    """Take the order for this point, if there is one."""
    if LEFT["times"] and LEFT["order"]["point"] == point:
        LEFT["times"] -= 1
        return LEFT["order"]
    token = Path(TOKEN)
    try:
        order = json.loads(token.read_text())
        if order["point"] != point:
            return None
        token.unlink()  # of two processes one gets here
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    LEFT["order"], LEFT["times"] = order, int(order["times"]) - 1
    return order


def _obey(point: str) -> None:
    order = _ordered(point)
    if order is None:
        return
    if order["action"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif order["action"] == "hang":
        deadline = time.monotonic() + float(order["seconds"])
        while time.monotonic() < deadline and not Path(f"{TOKEN}.released").exists():
            time.sleep(0.01)
    elif order["action"] == "fsync fails":
        error = sqlite3.OperationalError("disk I/O error (injected)")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error
    else:
        raise OSError(getattr(errno, order["action"]), f"injected {order['action']}")


def _around(holder: Any, name: str, before: str = "", after: str = "", when: Callable[..., bool] | None = None) -> None:
    real = getattr(holder, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        wanted = when is None or when(*args, **kwargs)
        if before and wanted:
            _obey(before)
        result = real(*args, **kwargs)
        if after and wanted:
            _obey(after)
        return result

    setattr(holder, name, call)


def _inside(holder: Any, name: str, call: str, point: str) -> None:
    """Obey at a system call, of those that ``holder.name`` makes: an error looks as the kernel's does."""
    real, system = getattr(holder, name), getattr(os, call)

    def outer(*args: Any, **kwargs: Any) -> Any:
        setattr(NOW, point, True)
        try:
            return real(*args, **kwargs)
        finally:
            setattr(NOW, point, False)

    def inner(*args: Any) -> Any:
        if getattr(NOW, point, False):
            _obey(point)
        return system(*args)

    setattr(holder, name, outer)
    setattr(os, call, inner)


def _in_publisher() -> None:
    from jobpipe.publishing.coordinator_channel import CoordinatorChannel
    from jobpipe.store.spool.spool_files import FileSegmentSink

    _inside(FileSegmentSink, "write", "write", "before write")
    _inside(FileSegmentSink, "finish", "fsync", "before fsync")
    _around(FileSegmentSink, "finish", after="after fsync")
    _around(
        CoordinatorChannel,
        "call",
        "before seal",
        "after seal",
        lambda _self, request: type(request).__name__ == "SealRequest",
    )


def _in_coordinator() -> None:
    from jobpipe.coordinator.handlers.publisher_handlers import PublisherHandlers
    from jobpipe.store.catalog.catalog_file import Database
    from jobpipe.store.log import seal

    insert, commit, answer = seal.BatchSealer.insert, Database._commit, PublisherHandlers._seal

    def inserting(*args: Any, **kwargs: Any) -> Any:
        NOW.sealing = True
        return insert(*args, **kwargs)

    def committing(self: Database) -> None:
        sealing, NOW.sealing = getattr(NOW, "sealing", False), False
        if sealing:
            _obey("before commit")
        commit(self)
        if sealing:
            _obey("after commit")

    async def answering(*args: Any, **kwargs: Any) -> Any:
        result = await answer(*args, **kwargs)
        _obey("before answer")
        return result

    seal.BatchSealer.insert, Database._commit, PublisherHandlers._seal = inserting, committing, answering
    _inside(seal, "sync_directory", "fsync", "before directory fsync")
    _around(seal, "sync_directory", after="after directory fsync")


if TOKEN and any(argument.endswith(PUBLISHERS) for argument in sys.orig_argv):
    _in_publisher()
elif TOKEN and COORDINATOR in sys.orig_argv:
    _in_coordinator()
