"""A mark next to the checkpoint that says which attempt may write: for one that is cut off from the registry.

Each attempt writes its mark when the registry has just said that it has the lease, and looks from then on whether the
mark is still there. The registry tells an attempt that it was replaced only when it reaches it again; the mark tells it
sooner, where both reach the storage. An earlier attempt may write its mark late, after it stood still: the registry
decides then.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from jobpipe.jobs.runner.job_lease import LeaseLost
from jobpipe.pipelines.checkpoints.checkpoint_storage import storage_of
from jobpipe_registry.job_records import Lease

log = logging.getLogger(__name__)

NAME = "attempt"
POLL_SECONDS = 1.0
_MOST_BYTES = 4096


class Fence:
    """The mark of one attempt, in the folder of its checkpoint.

    Args:
        confirm: sees that the lease is still ours, and raises Replaced if it is not; False: it was not to be known.
    """

    def __init__(self, spark: SparkSession, storage: str, lease: Lease, confirm: Callable[[], bool]) -> None:
        self._instance = lease.instance
        self._attempt = lease.attempt
        self._confirm = confirm
        self._text = json.dumps({"run": lease.run, "attempt": lease.attempt, "instance": lease.instance})
        self._file = storage_of(storage, spark).file(NAME)

    def mark(self) -> None:
        self._file.write(self._text)

    def check(self) -> None:
        """Look at the mark; one that cannot be read now is no other attempt's.

        Raises:
            LeaseLost: it is of another attempt.
        """
        try:
            found = json.loads(self._file.read(_MOST_BYTES))
        except (OSError, ValueError, Py4JError) as error:
            log.warning("the mark of this attempt cannot be read: %s", error)
            return
        if not isinstance(found, dict) or found.get("instance") == self._instance:
            return
        other = found.get("attempt")
        if isinstance(other, int) and other < self._attempt:
            if self._confirm():
                log.warning("attempt %d, which was replaced by this one, wrote its mark late", other)
                self.mark()
            return
        raise LeaseLost(f"attempt {other} of run {found.get('run')} has begun")

    def watch(self, on_replaced: Callable[[str], None]) -> None:
        """Look every second, in a thread that ends with this process."""

        def poll() -> None:
            never = threading.Event()
            while not never.wait(POLL_SECONDS):
                try:
                    self.check()
                except LeaseLost as error:
                    on_replaced(str(error))
                    return

        threading.Thread(target=poll, name="attempt-mark", daemon=True).start()
