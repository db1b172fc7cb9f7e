"""What a data process reports to its coordinator for the ledger: lines of JSON on its standard output.

They come in the order in which it took the counts, with a line each second between them. So a coordinator that has read
such a line has all counts from before it; and while the data process stands still, no line comes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import IO, Any

from jobpipe.operations.data_operations import CountedPart, CountRequest

BEAT_SECONDS = 1.0
BUFFER_BYTES = 1 << 20  # of lines that the coordinator has not read; then counts are dropped, which is said


@dataclass(frozen=True)
class Beat:
    """A second has passed since the last one; ``owing``: topics of which a reader has not reported yet what it got."""

    owing: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Doubt:
    """Counts may be lost: of a subscription, of all of a topic, or of all topics."""

    topic: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Counted:
    """A task of a topic's subscription has read so many rows."""

    topic: str
    count: CountRequest


@dataclass(frozen=True)
class Broken:
    """The link broke of a task that has got a part, and has not counted it."""

    topic: str
    part: CountedPart


Line = Beat | Doubt | Counted | Broken


def read_line(line: bytes) -> Line:
    """Return what a line of a data process says."""
    told: Mapping[str, Any] = json.loads(line)
    if "count" in told:
        return Counted(told["topic"], CountRequest.from_json(told["count"]))
    if "broken" in told:
        return Broken(told["topic"], CountedPart.from_json(told["broken"]))
    if "doubt" in told:
        return Doubt(told.get("topic"), told.get("name"))
    return Beat(frozenset(told["owing"]))


class CountPipe:
    """The data process's end. Belongs to its event loop."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._dropped = False  # something, and the coordinator was not told
        self._owing: Callable[[], Collection[str]] = tuple
        self._beats: asyncio.Task[None] | None = None

    async def open(self, pipe: IO[Any], owing: Callable[[], Collection[str]]) -> None:
        """Write to a pipe from now on, also a beat each second.

        Args:
            pipe: where to.
            owing: returns the topics of which a reader has not reported yet what it got.
        """
        self._owing = owing
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, pipe)
        self._beats = asyncio.create_task(self._beat(), name="beats")

    def counted(self, topic: str, count: CountRequest) -> None:
        """Report what a task has read."""
        self._write({"topic": topic, "count": count.to_json()})

    def broken(self, topic: str, part: CountedPart) -> None:
        """Report that the link of a task broke which has not counted a part."""
        self._write({"topic": topic, "broken": part.to_json()})

    def doubt(self, topic: str, name: str | None = None) -> None:
        """Report that counts of a topic, or of one of its subscriptions, may be lost."""
        self._write({"doubt": True, "topic": topic, "name": name})

    def close(self) -> None:
        """Stop writing."""
        if self._beats is not None:
            self._beats.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _write(self, line: Mapping[str, Any]) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > BUFFER_BYTES:
            self._dropped = True
            return
        if self._dropped:  # before any other line: a coordinator that reads that one has no reason to doubt
            self._dropped = False
            transport.write(json.dumps({"doubt": True}).encode() + b"\n")
        transport.write(json.dumps(line).encode() + b"\n")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self._write({"owing": list(self._owing())})
