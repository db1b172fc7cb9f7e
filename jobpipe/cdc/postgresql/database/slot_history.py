"""Whether a database still has what follows the last batch: the right cluster, its history, its slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobpipe.cdc.postgresql.database.database_catalog import Slot
from jobpipe.cdc.postgresql.postgres_note import CaptureNote
from jobpipe.cdc.postgresql.postgres_options import PostgresOptions
from jobpipe.cdc.postgresql.stream.pgoutput import lsn_number, lsn_text
from jobpipe.errors import ConfigError, DataLoss

if TYPE_CHECKING:
    from jobpipe.cdc.postgresql.database.database_catalog import Connection

AGAIN = "To read all tables again, drop the slot (`jobpipe cdc drop`), and start the capture under another name"


@dataclass(frozen=True)
class SlotHistory:
    """Which database cluster this is, and which of its histories it goes on with."""

    system: str
    timeline: int

    @classmethod
    def of(cls, replication: Connection) -> SlotHistory:
        """Ask a connection in replication mode."""
        row = replication.execute("IDENTIFY_SYSTEM").fetchone()
        assert row is not None  # noqa: S101 - it returns one
        return cls(str(row[0]), int(row[1]))


def require_continuous(
    options: PostgresOptions,
    history: SlotHistory,
    replication: Connection,
    slot: Slot | None,
    notes: Sequence[CaptureNote],
    going: Sequence[CaptureNote],
    wal: int,
) -> Slot:
    """See that the stream goes on where the notes end.

    Args:
        replication: a connection in replication mode.
        slot: None if it is gone.
        notes: of all topics that have published something.
        going: those of them from which something goes on; of the others the slot may be further.
        wal: how far the log of the database goes.

    Returns:
        The slot.

    Raises:
        ConfigError: it is another database, or the slot is another one.
        DataLoss: changes are gone; names the range.
    """
    for note in notes:
        if (note.system, note.database) != (history.system, options.database):
            raise ConfigError(
                f"capture {options.name!r}: it has captured database {note.database} of the cluster {note.system}, and "
                f"this is {options.database} of {history.system}. Give the address of the right one, or the capture "
                "another name",
                database=options.database,
            )
    for timeline in sorted({note.timeline for note in notes} - {history.timeline}):
        reached = max(note.reaches for note in notes if note.timeline == timeline)
        switched = _switched(replication, history.timeline, timeline)
        if switched is None or switched < reached:
            known = "another history" if switched is None else f"a history that branched off at {lsn_text(switched)}"
            raise DataLoss(
                f"capture {options.name!r}: changes up to {lsn_text(reached)} are published, and the database goes on "
                f"with {known}: it was restored, or a standby took over that lacked the newest changes. What is "
                f"published has changes that the database never had. {AGAIN}",
                reason="timeline",
                lsn=lsn_text(reached),
            )
    furthest = max(note.reaches for note in notes)
    if furthest > wal:
        raise DataLoss(
            f"capture {options.name!r}: changes up to {lsn_text(furthest)} are published, and the database's log ends "
            f"at {lsn_text(wal)}: an older copy of it was restored. {AGAIN}",
            reason="restored",
            lsn=lsn_text(furthest),
        )
    published = lsn_text(max(note.at for note in notes))
    if slot is None:
        raise DataLoss(
            f"capture {options.name!r}: replication slot {options.slot} is gone, and with it the changes from "
            f"{published} to {lsn_text(wal)}. {AGAIN}",
            reason="slot",
            slot=options.slot,
            lsn=published,
        )
    if slot.plugin != "pgoutput" or slot.database != options.database:
        raise ConfigError(
            f"capture {options.name!r}: replication slot {options.slot} is of plug-in {slot.plugin} and database "
            f"{slot.database}, expected pgoutput and {options.database}. Give slot-name",
            slot=options.slot,
            key="slot-name",
        )
    if slot.wal_status == "lost":
        raise DataLoss(
            f"capture {options.name!r}: PostgreSQL has removed changes from {published} on, since slot {options.slot} "
            f"kept more than max_slot_wal_keep_size. {AGAIN}",
            reason="removed",
            slot=options.slot,
            lsn=published,
        )
    lowest = min((note.at for note in going), default=slot.confirmed)
    if slot.confirmed > lowest:
        raise DataLoss(
            f"capture {options.name!r}: replication slot {options.slot} has gone on to {lsn_text(slot.confirmed)}, and "
            f"changes are published up to {lsn_text(lowest)}: it was made again, something else has read it, or a "
            f"topic's spool was restored. The changes between are lost. {AGAIN}",
            reason="confirmed",
            slot=options.slot,
            lsn=lsn_text(lowest),
        )
    return slot


def _switched(replication: Connection, timeline: int, since: int) -> int | None:
    """Return where the database left a timeline for good; None if it never was on it."""
    if timeline < since:
        return None
    row = replication.execute(f"TIMELINE_HISTORY {timeline}").fetchone()
    assert row is not None  # noqa: S101 - it returns one
    content = row[1]
    text = content.decode() if isinstance(content, bytes) else str(content)
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == str(since):
            return lsn_number(words[1])
    return None
