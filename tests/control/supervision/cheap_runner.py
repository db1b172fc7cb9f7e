"""A runner without Spark: ``python -m tests.control.supervision.cheap_runner SNAPSHOT``.

It holds its lease as the real one does. What it does is in the job's arguments: how it ends (``steady``: only by a
stop), and after how many seconds. It keeps a journal beside the pipeline's file, a line for each thing that it does,
and a lock while it works: two at once are told.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from jobpipe.config import load
from jobpipe.discovery.registry_handler import open_handler
from jobpipe.jobs.runner.job_lease import JobLease, LeaseLost
from jobpipe.pipelines.model.job_states import REPLACED
from jobpipe_registry.job_records import EndRecord

ROWS = 7
SECONDS = 60.0


def main() -> int:
    """Run one attempt."""
    snapshot = json.loads(Path(sys.argv[1]).read_text())
    job, run, attempt = snapshot["job"], snapshot["run"], snapshot["attempt"]
    tree = snapshot["tree"]
    role, seconds = tree["jobs"][job]["arguments"]
    folder = Path(snapshot["folder"])

    def note(what: str) -> None:
        line = f"{time.time():.3f} {attempt} {os.getpid()} {what}\n"
        descriptor = os.open(folder / f"{job}.journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, line.encode())
        os.close(descriptor)

    def replaced(why: str) -> None:
        note("replaced")
        os._exit(REPLACED)

    note("begins")
    handler = open_handler(load(snapshot["config"], environ={}))
    stop = threading.Event()
    job_lease = JobLease(
        handler.jobs, tree["pipeline"]["name"], job, run, attempt, on_replaced=replaced, on_stop=stop.set
    )
    try:
        if not job_lease.acquire(SECONDS, stop.is_set):
            return 0
        lock = os.open(folder / f"{job}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("doubled")
        note("works")
        stopped = stop.wait(None if role == "steady" else float(seconds))
        if role == "dies" and not stopped:
            os.kill(os.getpid(), signal.SIGKILL)
        state = "STOPPED" if stopped else "FAILED" if role == "fails" else "FINISHED"
        note(state)
        os.close(lock)
        error = "Oops" if state == "FAILED" else ""
        job_lease.release(EndRecord(run, attempt, state, time.time(), error=error, rows=ROWS), SECONDS)
    except LeaseLost as error:
        replaced(str(error))
    handler.shutdown()
    return 1 if role == "fails" and not stopped else 0


if __name__ == "__main__":
    sys.exit(main())
