"""One operation of a server, and how a request for it is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias

from jobpipe.errors import NotAuthorized, RemoteProtocolError, TopicNotFound, short_repr
from jobpipe.operations.messages.message_fields import Fields, R, RequestFor
from jobpipe.wire.wire_messages import ROLES, Request

EVERYBODY = frozenset(ROLES) - {"appender"}  # an appender need not have the right to read


@dataclass(frozen=True)
class Operation(Generic[R]):
    """What may be asked of a server.

    Attributes:
        request: what comes with it; knows the operation's name, and what answers it.
        roles: whose HELLO may ask it.
        right: that the access list must give for the topic; None where the role's right is enough. Those of
            the coordinator are all in :mod:`jobpipe.coordinator.handlers.operation_rights`.
        audited: who asked it, with what result, is written to the audit log.
        expensive: it takes long, or much; few of one identity run at once.
    """

    request: type[RequestFor[R]]
    roles: Collection[str]
    right: str | None = None
    audited: bool = False
    expensive: bool = False

    @property
    def name(self) -> str:
        """As it stands in the request."""
        return self.request.op

    @property
    def reply(self) -> type[Fields]:
        return self.request.reply


Table: TypeAlias = Mapping[str, Operation[Any]]


def table(*operations: Operation[Any]) -> Table:
    """Return operations by their names."""
    return {operation.name: operation for operation in operations}


def read_request(
    known: Table, request: Request, role: str, *, others: Collection[str] = ()
) -> tuple[Operation[Any], RequestFor[Any]]:
    """Return the operation that is asked for, and what came with it. Whether the access list allows it is not asked.

    What was sent is forgotten but for this: a peer may ask with megabytes that are never read, and a long poll would
    hold them.

    Args:
        others: operations of servers of other kinds. Who asks one of these here has the address of a server that ended,
            whose port this one has got: he is to look the address up again.

    Raises:
        TopicNotFound: it is one of ``others``.
        RemoteProtocolError: there is no such operation; or a field is not what it must be: names both.
        NotAuthorized: it is not for this role.
    """
    operation = known.get(request.op)
    if operation is None and request.op in others:
        raise TopicNotFound(f"operation {request.op!r} is not of this port, which was that of another server before")
    if operation is None:
        raise RemoteProtocolError(f"unknown operation {short_repr(request.op)}", op=request.op[:100])
    if role not in operation.roles:
        raise NotAuthorized(f"operation {request.op!r} is not for the role {role!r}", op=request.op)
    try:
        asked = operation.request.from_json(request.args, request.blob)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(
            f"operation {request.op!r}: malformed arguments: {error.message}", **{**error.fields, "op": request.op}
        ) from error
    request.args.clear()
    return operation, asked
