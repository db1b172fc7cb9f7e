"""The record of what was sealed, kept by the publishing side, apart from the bus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobpipe.testing.numbered_rows import Ranges


class Journal:
    """Batches in the order in which they were sealed; each is first intended, then confirmed.

    A publisher killed between the two leaves its batch open: it may have arrived, whole, or not at all.

    Args:
        path: A file to which every entry is appended at once, for publishers in other processes; entries that are
            there already count.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._intended: dict[int, Ranges] = {}  # in order
        self._sealed: set[int] = set()
        if path is not None and path.exists():
            self._load(path)

    @contextmanager
    def sealing(self, batch_id: int, ranges: Ranges) -> Iterator[None]:
        """Note a batch as intended, and as sealed when the block ends without an error."""
        self.intend(batch_id, ranges)
        yield
        self.seal(batch_id)

    def intend(self, batch_id: int, ranges: Ranges) -> None:
        """Note that a batch is about to be sealed; again for a replay, which changes nothing."""
        self._append("intend", batch_id, ranges)
        self._intended.setdefault(batch_id, dict(ranges))

    def seal(self, batch_id: int) -> None:
        """Note that the publisher was told that a batch is sealed."""
        self._append("sealed", batch_id, {})
        self._sealed.add(batch_id)

    def is_open(self, batch_id: int) -> bool:
        """Whether a batch was intended, and is not known to be sealed: its publisher repeats it, as Spark does."""
        return batch_id in self._intended and batch_id not in self._sealed

    def sealed(self) -> dict[int, list[tuple[int, int]]]:
        """Return what must arrive: by partition, ranges of numbers in order."""
        return self._by_partition(only_sealed=True)

    def possible(self) -> dict[int, list[tuple[int, int]]]:
        """Return what may arrive: :meth:`sealed`, and batches that were intended only."""
        return self._by_partition(only_sealed=False)

    @property
    def batches(self) -> int:
        """How many batches must arrive."""
        return len(self._sealed)

    @property
    def rows(self) -> int:
        """How many rows must arrive."""
        return sum(end - first for ranges in self.sealed().values() for first, end in ranges)

    def _by_partition(self, *, only_sealed: bool) -> dict[int, list[tuple[int, int]]]:
        found: dict[int, list[tuple[int, int]]] = {}
        for batch_id, ranges in self._intended.items():
            if only_sealed and batch_id not in self._sealed:
                continue
            for partition, extent in ranges.items():
                found.setdefault(partition, []).append(extent)
        return found

    def _append(self, what: str, batch_id: int, ranges: Ranges) -> None:
        if self._path is None:
            return
        entry = {"what": what, "batch": batch_id, "ranges": {str(key): list(value) for key, value in ranges.items()}}
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def _load(self, path: Path) -> None:
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # its writer was killed while writing it
            entry = json.loads(line)
            if entry["what"] == "sealed":
                self._sealed.add(entry["batch"])
            else:
                ranges = {int(key): (value[0], value[1]) for key, value in entry["ranges"].items()}
                self._intended.setdefault(entry["batch"], ranges)
