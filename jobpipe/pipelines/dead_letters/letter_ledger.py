"""Notes of the dead letters of micro-batches that are not finished: a small file for each, next to the checkpoint.

A note is written before the dead letters are sealed, and removed after the good rows were written. So an attempt that
repeats a micro-batch knows which rows were dead before, and sees if it has sorted them in another way.

A micro-batch of a stream has its number as the name of its note, a run of a BATCH job a hash of its id.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from jobpipe.pipelines.checkpoints.checkpoint_storage import StorageFile, storage_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

FOLDER = "dead-letters"
MOST_BYTES = 1 << 20  # of a note
MOST_OF_RUNS = 1000  # notes of runs of a BATCH job
_OF_RUN = re.compile("[0-9a-f]{16}")


def note_of_run(run: str) -> str:
    """Return the name of a run's note, by the run's id."""
    return hashlib.sha256(run.encode()).hexdigest()[:16]


class LetterLedger:
    """The notes of one job, in any file system that Spark knows.

    Args:
        storage: folder or URI of the job's checkpoint.
    """

    def __init__(self, spark: SparkSession, storage: str) -> None:
        self._storage = storage_of(storage, spark)
        self._noted = {name: self._file(name).read(MOST_BYTES) for name in self._storage.names(FOLDER)}

    def of(self, batch: str) -> str | None:
        """Return what is noted of a batch; None if nothing is."""
        return self._noted.get(batch)

    def note(self, batch: str, text: str) -> None:
        """Note it; it is durable when this returns."""
        self._file(batch).write(text)
        self._noted[batch] = text

    def forget(self, batch: str) -> None:
        """Remove what is noted of a batch, if anything is."""
        if batch in self._noted:
            self._file(batch).delete()
            del self._noted[batch]

    def forget_other_runs(self, own: str, check: Callable[[], None]) -> None:
        """Remove the notes of runs before this one, if there are too many.

        A run that failed may be made again under its id, and needs its note then. No attempt of another run is under
        way: an attempt that comes after this one writes its mark first, and its notes later. So if ``check`` finds no
        such mark now, all notes that were read are of attempts before.

        Args:
            own: the name of the note of the run that this attempt is of.
            check: raises, or ends this process, if another attempt has taken this one's place.
        """
        others = [name for name in self._noted if _OF_RUN.fullmatch(name) and name != own]
        if len(others) <= MOST_OF_RUNS:
            return
        check()
        log.warning("notes of dead letters of %d runs that failed, and were not made again, are removed", len(others))
        for name in others:
            self.forget(name)

    def _file(self, name: str) -> StorageFile:
        return self._storage.file(f"{FOLDER}/{name}")
