"""The epochs of a catalog that is not served: read, and lowered where they have come to the end of the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobpipe.errors import SpoolError
from jobpipe.store.catalog.catalog_file import Database
from jobpipe.store.spool.spool_files import CATALOG


@dataclass(frozen=True)
class CatalogEpochs:
    """The epochs that a log was taken over with.

    Attributes:
        path: The catalog.
        epoch: The newest: what the registry must not lie below.
        lowered: What it becomes by :func:`lower_epochs`; the same where nothing is too high.
    """

    path: Path
    epoch: int
    lowered: int


def read_epochs(directory: Path, topic: str, most: int) -> CatalogEpochs | None:
    """Return the epochs of the catalog in a topic's directory; None if there is no catalog.

    Args:
        directory: ``<spool_dir>/<topic>``.
        topic: Whose it must be.
        most: Epochs above this are too high.

    Raises:
        SpoolError: it cannot be read, or is another topic's.
    """
    path = directory / CATALOG
    if not path.is_file():
        return None
    database = Database.open_to_read(path, topic)
    try:
        return _catalog_epochs(database, path, most)
    finally:
        database.close()


def _catalog_epochs(database: Database, path: Path, most: int) -> CatalogEpochs:
    with database.read():
        epoch = int(database.value("SELECT epoch FROM meta"))
        if epoch <= most:
            return CatalogEpochs(path, epoch, epoch)
        right = int(database.value("SELECT max(epoch) FROM epochs WHERE epoch <= ?", most) or 0)
        above = int(database.value("SELECT count(*) FROM epochs WHERE epoch > ?", most))
    return CatalogEpochs(path, epoch, right + above + 1)


def lower_epochs(directory: Path, topic: str, most: int, readable: int, *, fsync: bool, shared: bool) -> CatalogEpochs:
    """Replace the epochs that are too high by the next ones that are not, and return what is there then.

    A process that still has the catalog open under one of the old epochs is fenced: the new ones were never given out.

    Args:
        directory, topic, most: As for :func:`read_epochs`.
        readable: The highest epoch that a subscriber can have been told: batches sealed under higher ones have not been
            read, so they may get other epochs.
        fsync, shared: As for :meth:`TopicLog.open`.

    Raises:
        SpoolError: batches were sealed under an epoch that is too high, and subscribers may have read them; nothing is
            changed. Or the catalog cannot be changed.
    """
    path = directory / CATALOG
    database = Database.create_or_open(path, topic, fsync=fsync, shared=shared)
    try:
        with database.take_over():
            next_n = int(database.value("SELECT next_n FROM meta"))
            fresh = int(database.value("SELECT max(epoch) FROM epochs WHERE epoch <= ?", most) or 0)
            rows = database.all("SELECT epoch, first_n FROM epochs WHERE epoch > ? ORDER BY epoch", most)
            for row in rows:
                if row["epoch"] <= readable and row["first_n"] < next_n:
                    raise SpoolError(
                        f"catalog {path}: batches from offset {row['first_n']} on were sealed under epoch "
                        f"{row['epoch']}, and subscribers may hold positions of it, so it cannot be lowered. Publish "
                        f"under another topic name, or remove {directory} for a new log, which subscribers read with "
                        "new checkpoints",
                        file=str(path),
                        topic=topic,
                        epoch=row["epoch"],
                    )
            for row in rows:
                fresh += 1
                for change in (
                    "UPDATE epochs SET epoch = ? WHERE epoch = ?",
                    "UPDATE batches SET epoch = ? WHERE epoch = ?",
                    "UPDATE slots SET epoch = ? WHERE epoch = ?",
                ):
                    database.execute(change, fresh, row["epoch"])
            # One above all: who took over under the highest of the old ones must not seal on under its new number.
            database.execute("UPDATE meta SET epoch = ? WHERE epoch > ?", fresh + 1, most)
        return _catalog_epochs(database, path, most)
    finally:
        database.close()
