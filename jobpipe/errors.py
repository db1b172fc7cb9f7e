"""Every error jobpipe raises, in one tree.

    JobpipeError
    ├── ConfigError            a configuration file or key, an option, a certificate file: what, where, what is expected
    │   ├── AddressError       no interface in the subnet, no port free in the range
    │   ├── CheckpointMismatch a checkpoint belongs to another job, or was begun with other sources, state or sinks
    │   ├── PipelineError      a pipeline's file: every problem with file, line, key, and what to do
    │   └── UnsupportedSpark   no PySpark is installed, or a version that lacks what is needed: which, and what works
    ├── RegistryUnavailable    the registry does not answer, or refuses us
    ├── TopicNotFound          no publisher registered the topic in time
    │   └── TopicAway          it was published before, and is not served now: ask again later
    ├── TopicOwned             another live publisher has the topic
    ├── Fenced                 a newer publisher (epoch) or a newer holder of the name (grant) exists
    ├── NameTaken              another live subscriber has the subscription's name
    ├── SubscriptionNotFound   a topic has no subscription of that name
    ├── FlowNotFound           no flow job of that name has cursors there, or not for that partition
    ├── HoldNotFound           a topic has no hold of that name
    ├── DataLoss               rows that were promised are not there any more: topic and exact missing range
    ├── CheckpointTooOld       Spark replays a batch that is older than the last one sealed
    ├── NewCheckpoint          a query is new to a topic that another one published to; asked for, by on_new_checkpoint
    ├── DuplicateCall          the sink was called twice in one batch
    ├── UnsupportedType        a column's type cannot pass
    ├── RowTooLarge            a row has more bytes than a record batch may have: row, column, limit
    ├── SchemaMismatch         a batch does not fit the schema that was asked for: the columns
    ├── FlowFailed             a flow job's function failed, or its tasks did, again and again at one place
    ├── QueryStopped           the query was stopped in the middle of a batch, which runs again at the next start
    ├── TooManyDeadLetters     more rows of a micro-batch are dead letters than a pipeline's job allows
    ├── PipelineNotFound       the control server has no pipeline, or no job, of that name
    ├── RunNotFound            the control server knows no run of that id
    ├── LauncherUnavailable    what starts a pipeline's jobs does not answer, or takes none now; another try may work
    ├── ControlConflict        what was asked of the control server does not fit the state of the pipeline or job
    ├── StoreError             the control server's database cannot be read or written
    ├── WaitTimeout            a wait with a deadline ended: drain, acknowledgements, room in the spool
    ├── SpoolError             the spool's disk or catalog fails
    │   ├── SegmentCorrupt     committed bytes do not match their checksum
    │   └── SpoolFull          the hard cap is reached, or one batch alone exceeds it
    ├── LinkError              a connection; another attempt may work
    │   ├── LinkClosed         we closed it
    │   ├── LinkEnded          the peer said goodbye
    │   ├── LinkBroken         cut, reset, refused, unexpected end
    │   └── LinkTimeout        silence past the deadline
    ├── NotAuthorized          TLS or permission: another attempt will not help
    │   └── PeerNotTrusted     a certificate that is not of our CA, or bears another name; a stranger, or a reused port
    └── ProtocolError          the bytes break the protocol; close the link, never resynchronise
        ├── LocalProtocolError     our own code asked for an illegal step: a bug
        └── RemoteProtocolError    the peer broke it
            ├── FrameTooLarge
            └── ChecksumMismatch

An error that a peer must see travels as (code, message, fields): see :func:`to_fault` and :func:`from_fault`.
This module imports nothing of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "AddressError",
    "AlreadyRedriven",
    "CheckpointMismatch",
    "CheckpointTooOld",
    "ChecksumMismatch",
    "ConfigError",
    "ControlConflict",
    "DataLoss",
    "DuplicateCall",
    "Fenced",
    "FlowFailed",
    "FlowNotFound",
    "ForkedProcess",
    "FrameTooLarge",
    "HoldNotFound",
    "HostAway",
    "JobpipeError",
    "LauncherUnavailable",
    "LinkBroken",
    "LinkClosed",
    "LinkEnded",
    "LinkError",
    "LinkTimeout",
    "LocalProtocolError",
    "NameTaken",
    "NewCheckpoint",
    "NotAuthorized",
    "PeerNotTrusted",
    "PipelineError",
    "PipelineNotFound",
    "ProtocolError",
    "QueryStopped",
    "RegistryUnavailable",
    "RemoteProtocolError",
    "RowTooLarge",
    "RunNotFound",
    "SchemaMismatch",
    "SegmentCorrupt",
    "SpoolError",
    "SpoolFull",
    "StoreError",
    "SubscriptionNotFound",
    "TooManyDeadLetters",
    "TopicAway",
    "TopicNotFound",
    "TopicOwned",
    "UnsupportedSpark",
    "UnsupportedType",
    "WaitTimeout",
    "from_fault",
    "short_repr",
    "to_fault",
]


class JobpipeError(Exception):
    """Root of all errors of jobpipe.

    ``fields`` holds the facts the message was made from (topic, offset, endpoint, file, key ...), as JSON values,
    so that callers and tests need not parse texts.
    """

    def __init__(self, message: str, /, **fields: Any) -> None:  # fields come from peers, with any name
        super().__init__(message)
        self.message = message
        self.fields = fields

    def _render_traceback_(self) -> list[str]:
        """Tell IPython what to show for this error in a notebook: what happened, without the frames that led here.

        ``traceback.print_exception(sys.last_value)`` shows them.
        """
        return [f"{type(self).__name__}: {self.message}"]

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark pickles errors between its processes; keyword arguments would be lost.
        return (_rebuild, (type(self), self.message, self.fields))


def _rebuild(kind: type[JobpipeError], message: str, fields: dict[str, Any]) -> JobpipeError:
    return kind(message, **fields)


class ConfigError(JobpipeError):
    """A configuration file, key or option is wrong. ``fields["problems"]`` lists all that were found."""


class AddressError(ConfigError):
    """No interface lies in the subnet, or no port of the range is free."""


class CheckpointMismatch(ConfigError):
    """A checkpoint belongs to another job, or does not fit what the job reads, keeps or writes now."""


class PipelineError(ConfigError):
    """A pipeline's file is wrong. ``fields["problems"]`` lists all that were found, each with file, line and key."""


class UnsupportedSpark(ConfigError):
    """No PySpark is installed where it is needed, or a version that lacks what is needed; says what works."""


class RegistryUnavailable(JobpipeError):
    """The registry does not answer in time, or refuses us."""


class TopicNotFound(JobpipeError):
    """No publisher registered the topic before the deadline."""


class TopicAway(TopicNotFound):
    """The topic was published before and is not served now: what is asked of it can be asked again later."""


class TopicOwned(JobpipeError):
    """Another live publisher has the topic; the message names it."""


class Fenced(JobpipeError):
    """A newer publisher, or a newer holder of the subscription's name, has taken over; this one must end."""


class NameTaken(JobpipeError):
    """Another live subscriber has the subscription's name; the message names it."""


class SubscriptionNotFound(JobpipeError):
    """The topic has no subscription of that name: it was never made, was dropped, or expired."""


class FlowNotFound(JobpipeError):
    """No flow job of that name has cursors in the topic, or none for that partition."""


class HoldNotFound(JobpipeError):
    """The topic has no hold of that name: it was never made, or was released."""


class DataLoss(JobpipeError):
    """Promised rows are not there any more; the message names topic and missing range."""


class CheckpointTooOld(JobpipeError):
    """Spark replays a batch id below the last one sealed for its query: the checkpoint is an old copy."""


class NewCheckpoint(JobpipeError):
    """A query publishes for the first time to a topic that another one published to: its checkpoint may be gone."""


class DuplicateCall(JobpipeError):
    """The sink was called twice for one batch within one run."""


class AlreadyRedriven(JobpipeError):
    """A row of the topic, which a batch is to publish again, was published again already; nothing was sealed."""


class UnsupportedType(JobpipeError):
    """A column has a type that cannot pass; the message names column and type."""


class RowTooLarge(JobpipeError):
    """One row has more bytes than a record batch may have; the message names row, largest column and limit."""


class SchemaMismatch(JobpipeError):
    """Rows do not fit the schema asked for; the message names the columns."""


class FlowFailed(JobpipeError):
    """A flow job's function failed; the message names topic, offset, partition and rows."""


class ForkedProcess(JobpipeError):
    """Something is used in a fork of the process that opened it, and whose alone it is."""


class QueryStopped(JobpipeError):
    """The query was stopped while its callback, or the sink, worked; Spark runs the batch again at the next start."""


class TooManyDeadLetters(JobpipeError):
    """More rows of a micro-batch are dead letters than ``errors.max-ratio`` of a pipeline's job allows.

    Or more rows of a record batch than a ``batch-function`` is asked about one by one.
    """


class PipelineNotFound(JobpipeError):
    """The control server has no pipeline of that name, or the pipeline no such job."""


class RunNotFound(JobpipeError):
    """The control server knows no run of that id."""


class LauncherUnavailable(JobpipeError):
    """What starts the jobs of a pipeline, as a cluster's master, does not answer, or takes none now.

    ``fields["perhaps_started"]`` says whether the job may have been started all the same: the answer was lost.
    """

    @property
    def perhaps_started(self) -> bool:
        """Whether the job may have been started."""
        return bool(self.fields.get("perhaps_started"))


class ControlConflict(JobpipeError):
    """What was asked of the control server does not fit the state of the pipeline or job."""


class StoreError(JobpipeError):
    """The control server's database cannot be read or written: the disk, or a file of another version."""


class WaitTimeout(JobpipeError):
    """A wait with a deadline ended before its condition came true."""


class SpoolError(JobpipeError):
    """The spool's disk, directory or catalog fails."""


class SegmentCorrupt(SpoolError):
    """Committed bytes do not match their checksum or length."""


class SpoolFull(SpoolError):
    """The hard cap ``spool.max_bytes`` is reached, or one batch alone exceeds it."""


class LinkError(JobpipeError):
    """A connection failed in a way that another attempt may mend."""


class LinkClosed(LinkError):
    """We closed the link ourselves."""


class LinkEnded(LinkError):
    """The peer said goodbye."""


class LinkBroken(LinkError):
    """The link was cut, reset or refused, or ended without goodbye."""


class LinkTimeout(LinkError):
    """The peer was silent past the deadline."""


class HostAway(LinkError):
    """The host server that keeps a segment is not registered, or does not answer; it may come back."""


class NotAuthorized(JobpipeError):
    """TLS or a permission refuses us; another attempt will not help."""


class PeerNotTrusted(NotAuthorized):
    """The peer's certificate is not of our CA, or carries another name: another program may have the address now."""


class ProtocolError(JobpipeError):
    """The protocol was broken. Never resynchronise: close the link."""


class LocalProtocolError(ProtocolError):
    """Our own code asked for an illegal step; a bug."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol."""


class FrameTooLarge(RemoteProtocolError):
    """A frame header announces more bytes than the limit."""


class ChecksumMismatch(RemoteProtocolError):
    """A payload does not match its CRC-32."""


_BY_CODE: dict[str, type[JobpipeError]] = {}


def _collect(kind: type[JobpipeError]) -> None:
    _BY_CODE[kind.__name__] = kind
    for child in kind.__subclasses__():
        _collect(child)


_collect(JobpipeError)


def to_fault(error: BaseException) -> tuple[str, str, dict[str, Any]]:
    """Return (code, message, fields) of an error for the wire; foreign errors keep only their text."""
    if isinstance(error, JobpipeError):
        return type(error).__name__, error.message, error.fields
    return "JobpipeError", f"{type(error).__name__}: {error}", {}


def from_fault(code: str, message: str, fields: dict[str, Any]) -> JobpipeError:
    """Return the error that a peer sent; an unknown code becomes a plain :class:`JobpipeError`."""
    return _BY_CODE.get(code, JobpipeError)(message, **fields)


def short_repr(value: object) -> str:
    """Return a value from outside for an error or a log line: quoted and short, however large or deep it is."""
    if isinstance(value, str):
        return repr(value[:100])[:200]
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, (Mapping, Sequence)):
        return f"{'an object' if isinstance(value, Mapping) else 'a list'} of {len(value)}"
    return type(value).__name__
