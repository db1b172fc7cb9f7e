"""A publisher that dies where it is told to. Run as a program: ``crash.py HOME WHERE FAILPOINT``.

It takes over the log, seals the batch after the last one, acknowledges all but that one and removes what is
acknowledged; after each durable answer it prints a line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobpipe.store import Retention, retention
from jobpipe.store.database import Database
from tests.store.build import open_log, seal

FAILPOINTS = ("none", "before-fsync", "before-commit", "after-commit", "before-unlink", "short-write")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(real: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if after:
            real(*args, **kwargs)
        die()

    return call


def arm(failpoint: str) -> None:
    """Let the next call of something kill this process."""
    if failpoint == "before-fsync":
        os.fsync = dying(os.fsync)
    elif failpoint == "before-commit":
        Database._commit = dying(Database._commit)  # type: ignore[method-assign]
    elif failpoint == "after-commit":
        Database._commit = dying(Database._commit, after=True)  # type: ignore[method-assign]
    elif failpoint == "before-unlink":
        retention.remove_files = dying(retention.remove_files)
    elif failpoint == "short-write":
        real = os.write

        def half(fd: int, data: memoryview) -> int:
            real(fd, data[: len(data) // 2])
            die()
            return 0

        os.write = half


def main(home: Path, where: str, failpoint: str) -> None:
    log = open_log(home, fsync=True)
    log.sweep(set())
    log.subscribe("s")
    grant = log.grant("s", {})
    log.first_position("s", log.tail())
    last = log.last_sealed("q")
    batch_id = 0 if last is None else last.batch_id + 1
    if where == "seal":
        arm(failpoint)
    seal(log, batch_id, [[5, 5], [5]], inline=batch_id % 2 == 0, run=str(os.getpid()))
    print("sealed", batch_id, flush=True)
    log.acknowledge("s", grant, log._batches.at(log.head().n - 1))
    if where == "acknowledge":
        arm(failpoint)
    log.flush()
    print("acknowledged", log.head().n - 1, flush=True)
    if where == "retain":
        arm(failpoint)
    log.retain(Retention(time=0, bytes=0, ack_grace=0, subscription_expiry=1e9))
    print("removed", log.tail().n, flush=True)
    log.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
