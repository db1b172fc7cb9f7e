"""Sends a request, and returns its reply: the one place where they become JSON and are read again.

A server is a peer too: what it answers is checked, field by field, before anything is done with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from jobpipe.errors import RemoteProtocolError
from jobpipe.net.links.async_link import Link
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.operations.messages.message_fields import R, RequestFor


async def ask(link: Link, request: RequestFor[R], *, timeout: float, job: str | None = None) -> R:
    """Ask over a link of asyncio.

    Args:
        link: of a client.
        request: what is asked.
        timeout: seconds until the answer must be there.
        job: a publisher's: what proves whose job it is.

    Raises:
        JobpipeError: as :meth:`Link.call`.
        RemoteProtocolError: the answer is malformed.
    """
    reply = await link.call(request.op, _args(request, job), request.blob, timeout=timeout)
    return _read(request, reply.result, reply.blob)


def ask_blocking(link: BlockingLink, request: RequestFor[R], *, timeout: float, job: str | None = None) -> R:
    """Ask over a blocking link; arguments and errors are those of :func:`ask`."""
    reply = link.call(request.op, _args(request, job), request.blob, timeout=timeout)
    return _read(request, reply.result, reply.blob)


def begin_stream(link: BlockingLink, request: RequestFor[Any], *, timeout: float) -> None:
    """Ask for a stream, as :meth:`BlockingLink.start_stream`; :func:`read_reply` reads its end."""
    link.start_stream(request.op, request.to_json(), timeout=timeout)


def read_reply(link: BlockingLink, request: RequestFor[R]) -> R:
    """Return the reply that ended the stream which ``request`` asked for.

    Raises:
        RemoteProtocolError: it is malformed.
    """
    reply = link.stream_reply
    assert reply is not None  # noqa: S101 - the stream was read to its end
    return _read(request, reply.result, reply.blob)


def begin_upload(link: BlockingLink, request: RequestFor[Any], *, length: int, timeout: float) -> None:
    """Ask, and announce ``length`` bytes. Errors are those of :meth:`BlockingLink.start_upload`."""
    link.start_upload(request.op, request.to_json(), length=length, timeout=timeout)


def end_upload(link: BlockingLink, request: RequestFor[Any], *, timeout: float) -> None:
    """Wait for the reply to the upload; errors are those of :func:`ask`."""
    reply = link.end_upload(timeout=timeout)
    _read(request, reply.result, reply.blob)


def _args(request: RequestFor[R], job: str | None) -> dict[str, Any]:
    args = request.to_json()
    return args if job is None else {**args, "job": job}


def _read(request: RequestFor[R], result: Mapping[str, object], blob: bytes) -> R:
    try:
        return cast("R", request.reply.from_json(result, blob))
    except RemoteProtocolError as error:
        raise RemoteProtocolError(
            f"the answer to {request.op!r} is malformed: {error.message}", **{**error.fields, "op": request.op}
        ) from error
