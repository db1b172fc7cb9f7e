"""How the source of a topic's rows stands, as its publisher says: a database whose changes are captured.

For people and alarms: nothing is decided by it.
"""

from __future__ import annotations

from typing import Annotated

from jobpipe.operations.messages.checked_values import Integer, Items, Number, Text
from jobpipe.operations.messages.message_fields import OMITTED, Count, Fields, Nested, message

MAX_TABLES = 16
"""Tables that one report names."""

MAX_SOURCE_SECONDS = 1e10
MAX_PLACE = 200
_Bytes = Annotated[int | None, Integer(), OMITTED]


@message
class TableReading(Fields):
    """A table that is being read: rows read so far, and about how many there are; None: not known."""

    name: Annotated[str, Text(MAX_PLACE)]
    rows: Count
    estimate: Annotated[int | None, Integer(), OMITTED] = None


@message(kw_only=True)
class SourceReport(Fields):
    """How a source stands.

    Attributes:
        position: all transactions before this place in the database's log are published, or wait to be.
        behind_bytes: how much of the log comes after it.
        behind_seconds: since the newest transaction that is published was committed; 0 while none waits, None: not
            known yet.
        retained_bytes: of its log that the database keeps for it; None: not known.
        safe_bytes: that the database may still write before it removes a part of that; None: without end, or not known.
        tables: that are being read; ``more_tables``: so many others.
    """

    position: Annotated[str, Text(MAX_PLACE)]
    behind_bytes: Count
    behind_seconds: Annotated[float | None, Number(0.0, MAX_SOURCE_SECONDS), OMITTED] = None
    retained_bytes: _Bytes = None
    safe_bytes: _Bytes = None
    tables: Annotated[tuple[TableReading, ...], Items(Nested(TableReading), MAX_TABLES), OMITTED] = ()
    more_tables: Annotated[int, Integer(), OMITTED] = 0


@message(kw_only=True)
class SourceStatus(SourceReport):
    """A report as the coordinator has it.

    Attributes:
        age: seconds since it came. It grows while the publisher is stopped, or hangs.
    """

    age: Annotated[float, Number(0.0, MAX_SOURCE_SECONDS)]

    @property
    def lag_seconds(self) -> float | None:
        """All that was committed longer ago is published; None: not known yet."""
        return None if self.behind_seconds is None else self.behind_seconds + self.age
