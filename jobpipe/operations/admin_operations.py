"""What administrators ask of the coordinator, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from jobpipe.operations.messages.checked_values import CheckedName, Integer, Items, Number, Text
from jobpipe.operations.messages.message_fields import (
    MAX_HOLD_SECONDS,
    Count,
    Fields,
    Flag,
    FreeText,
    Name,
    Nested,
    RequestFor,
    Start,
    message,
)
from jobpipe.operations.publisher_operations import MAX_REQUIRED
from jobpipe.operations.reader_operations import LeaseName

MAX_SECONDS = 1e12
Seconds = Number(-MAX_SECONDS, MAX_SECONDS)


@message
class Driver(Fields):
    """The process that publishes, which is what its user can stop."""

    pid: Annotated[int, Integer(0, 2**31 - 1)]
    application: FreeText


@message
class HandoverReply(Fields):
    """Whether the topic was released; else who publishes it, as far as that is known."""

    released: Flag
    driver: Annotated[Driver | None, Nested(Driver)] = None


@message
class HandoverRequest(RequestFor[HandoverReply], op="handover"):
    """Release the topic, if its publisher is gone."""


@message
class MovedReply(Fields):
    """Where a subscription stood and stands, in offsets; None for nowhere. In JSON ``before`` is ``from``."""

    name: Name
    before: Annotated[int | None, Integer()] = None
    to: Annotated[int | None, Integer()] = None

    @classmethod
    def from_json(cls, values: Mapping[str, object], blob: bytes = b"") -> Self:
        return super().from_json({**values, "before": values.get("from")}, blob)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "from": self.before, "to": self.to}


@message
class SeekRequest(RequestFor[MovedReply], op="seek"):
    """Move a subscription that has no holder."""

    name: Name
    to: Start
    dry_run: Flag


@message
class DropRequest(RequestFor[MovedReply], op="drop"):
    """Delete a subscription that has no holder."""

    name: Name
    dry_run: Flag


@message
class LeaseReply(Fields):
    """A lease: the offsets that it holds, whose it is, and for how long; times in seconds. ``id`` is its name."""

    id: LeaseName
    first: Count
    last: Count
    left: Annotated[float, Seconds]
    connected: Flag
    owner: Annotated[str | None, Text(1024)] = None
    since: Annotated[float | None, Seconds] = None


@message
class DropLeaseRequest(RequestFor[LeaseReply], op="drop_lease"):
    """Take a lease away from its owner; ``id`` is its name."""

    id: LeaseName
    dry_run: Flag


@message
class HoldReply(Fields):
    """A hold, or the gap that is left of one; attributes as :class:`jobpipe.store.subscriptions.holds.Hold`."""

    name: Name
    owner: Annotated[str, Text(1024)]
    offset: Count
    max_time: Annotated[float, Seconds]
    since: Annotated[float, Seconds]
    lost: Count
    left: Annotated[float | None, Seconds] = None
    gap: Annotated[str | None, Text(1024)] = None


@message
class HoldRequest(RequestFor[HoldReply], op="hold"):
    """Keep what lies from ``to`` on until a scheduled job has read it, or move that on.

    Attributes:
        name: as a subscription's.
        max_time: seconds for which it may stay where it is; the publisher's ``jobpipe.hold.max_time`` if that is less.
    """

    name: Name
    to: Start
    max_time: Annotated[float | None, Number(1.0, MAX_HOLD_SECONDS)] = None


@message
class ReleaseHoldRequest(RequestFor[HoldReply], op="release_hold"):
    """Give a hold back, or forget a gap."""

    name: Name
    dry_run: Flag


@message
class RequiredReply(Fields):
    """The subscriptions that are required, and whether this one was before."""

    before: Flag
    required: Annotated[tuple[str, ...], Items(CheckedName(), MAX_REQUIRED)]


@message
class RequireRequest(RequestFor[RequiredReply], op="require"):
    """Make a subscription required from now on, or not required any more."""

    name: Name
    required: Flag
    dry_run: Flag
