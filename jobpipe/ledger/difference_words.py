"""Differences in words: which rows, how many, why, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from jobpipe.errors import JobpipeError, RemoteProtocolError, short_repr
from jobpipe.operations.messages.ledger_messages import MAX_NAMED, RowDifference
from jobpipe.plural import counted

REASONS: Mapping[str, str] = {
    "counted": "its readers counted other rows than were published",
    "unread": "no reader has reported that it read them",
    "removed": "they were removed before it had read them",
}
REMEDIES: Mapping[str, str] = {
    "counted": "compare the range with what the job wrote, and read it again from its first offset if rows are missing",
    "unread": "see whether the query reads all its rows; a limit, or a foreachBatch that ignores them, does not",
    "removed": "publish the rows again from where they came; a larger spool, or a required subscription, keeps others",
}
_OTHER_REASON = "this version does not know the reason"
_OTHER_REMEDY = "use the version of jobpipe that the coordinator has"


def hop_name(topic: str, subscription: str) -> str:
    """Return the name of a hop, quoted and short."""
    return f"topic {short_repr(topic)}, subscription {short_repr(subscription)}"


def range_words(difference: RowDifference) -> str:
    """Return the offsets and partitions: ``offsets 41 to 43, partition 2``."""
    last = max(difference.first, difference.end - 1)
    said = f"offset {last:,}" if last == difference.first else f"offsets {difference.first:,} to {last:,}"
    if not difference.partitions:
        return said
    what = "partition" if len(difference.partitions) == 1 else "partitions"
    more = ", and perhaps more" if len(difference.partitions) >= MAX_NAMED else ""
    return f"{said}, {what} {', '.join(f'{each:,}' for each in difference.partitions)}{more}"


def count_words(difference: RowDifference) -> str:
    """Return range and counts: ``offsets 41 to 43, partition 2: 99 rows read of 100 published``."""
    return f"{range_words(difference)}: {counted(difference.read, 'row')} read of {difference.published:,} published"


def difference_words(difference: RowDifference) -> str:
    """Return one sentence: range, counts, reason, and when it was found."""
    why = REASONS.get(difference.reason, _OTHER_REASON)
    return f"{count_words(difference)}; {why}; found {moment_words(difference.found)}"


def remedy_words(reason: str) -> str:
    """Return what to do about a difference with this reason."""
    return REMEDIES.get(reason, _OTHER_REMEDY)


def no_ledger_words(error: JobpipeError) -> str:
    """Return why a coordinator told no ledger."""
    if isinstance(error, RemoteProtocolError) and error.message.startswith("unknown operation"):
        return "its coordinator is of an older version, which does not count rows"
    return error.message


def moment_words(at: float) -> str:
    """Return a time in seconds since 1970, in UTC; in numbers if no calendar has it."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{at:.0f} s after 1970"


def minute_words(minute: int) -> str:
    """Return a minute since 1970, in UTC: ``2026-11-30 09:14``."""
    return moment_words(60.0 * minute).removesuffix(":00 UTC")
