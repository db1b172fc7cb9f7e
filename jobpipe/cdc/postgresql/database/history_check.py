"""Whether the log of a database has the transactions that were published; the stream tells."""

from __future__ import annotations

from collections.abc import Sequence

from jobpipe.cdc.postgresql.database.slot_history import AGAIN
from jobpipe.cdc.postgresql.postgres_note import CaptureNote
from jobpipe.cdc.postgresql.stream.pgoutput import Begin, lsn_text
from jobpipe.errors import DataLoss


class HistoryCheck:
    """Holds what a stream tells against what notes say, until it has come to where they end.

    A copy of a database's files is of the same cluster and timeline, and its slot is where it was when it was copied.
    What it writes takes places in the log at which the database had other transactions, and these are published. So the
    stream begins with what the slot has confirmed, and must bring the newest transaction that is published, at its
    place and of its time, and after it none that was not there.

    Args:
        capture: its name.
        confirmed: by the slot; the stream begins there.
        notes: of all topics that have published something, at least one.
    """

    def __init__(self, capture: str, confirmed: int, notes: Sequence[CaptureNote]) -> None:
        newest = max(notes, key=lambda note: note.at)
        self._capture = capture
        self._at = newest.at
        self._reached = confirmed
        self._last = newest.last
        self._open = None if newest.open is None else newest.open.commit_lsn
        told = [each for note in (newest, *notes) for each in (note.last, note.open) if each is not None]
        self._expected = {each.commit_lsn: each.committed_ms for each in told if each.commit_lsn >= confirmed}

    @property
    def done(self) -> bool:
        """Whether the stream has come to where the notes end."""
        return not self._expected and self._reached >= self._at

    def take(self, begun: Begin) -> None:
        """Take the begin of a transaction, after those that were committed before it. Raises DataLoss."""
        lsn = begun.commit_lsn
        self.reach(lsn)
        committed_ms = self._expected.pop(lsn, begun.committed_ms)
        if committed_ms not in (begun.committed_ms, 0):
            raise self._error(f"another transaction at {lsn_text(lsn)}")
        if self._last is not None and self._last.commit_lsn < lsn < max(self._at, self._open or 0):
            raise self._error(f"a transaction at {lsn_text(lsn)}, where there was none")

    def reach(self, place: int) -> None:
        """Note that all transactions that were committed before a place have come. Raises DataLoss."""
        self._reached = max(self._reached, place)
        if missed := sorted(lsn for lsn in self._expected if lsn < place):
            raise self._error(f"no transaction at {lsn_text(missed[0])}, where one was")

    def _error(self, found: str) -> DataLoss:
        return DataLoss(
            f"capture {self._capture!r}: changes up to {lsn_text(max(self._at, self._open or 0))} are published, and "
            f"the database's log has {found}: an older copy of it was restored, and has written since. {AGAIN}",
            reason="restored",
            lsn=lsn_text(self._at),
        )
