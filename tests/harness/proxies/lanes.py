"""One direction of one proxied connection: passes bytes on, late, slowly, not at all, changed, twice, up to a cut.

Knows nothing of listening, nor of who gives the orders: :mod:`tests.harness.proxies.proxy`. Everything runs in its
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from jobpipe.wire.frames import HEADER

Direction: TypeAlias = Literal["up", "down"]

BOTH: tuple[Direction, Direction] = ("up", "down")
PIECE = 16 * 1024  # bytes handled at once
RATE_STEP_SECONDS = 0.02  # a rate is kept in steps of this length


@dataclass(frozen=True)
class Mark:
    """A fault at one byte of one direction; ``at`` is an index of the connection's bytes."""

    kind: Literal["cut", "flip", "copy"]
    at: int
    end: int = 0  # of what is copied
    bit: int = 0
    reset: bool = False


@dataclass
class Order:
    """A mark for connections still to be made; ``times`` None is for all of them."""

    direction: Direction
    mark: Mark | None  # None: duplicate frame ``frame``
    times: int | None
    frame: int = -1


class Flow:
    """What holds for one direction of all connections."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.rate: float | None = None
        self.dropping = False
        self.free_at = 0.0  # when the rate lets the next byte pass
        self.passed = 0  # bytes forwarded since the start


class Way:
    """What holds for all connections."""

    def __init__(self) -> None:
        self.flows: dict[Direction, Flow] = {"up": Flow(), "down": Flow()}
        self.paused = False
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """Wake all lanes: something has changed."""
        self._bell.set()
        self._bell = asyncio.Event()

    async def change(self) -> None:
        """Wait for the next :meth:`ring`."""
        await self._bell.wait()


class Cut(Exception):
    """The connection ends here, on purpose."""

    def __init__(self, reset: bool) -> None:
        super().__init__()
        self.reset = reset


class Lane:
    """One direction of one connection.

    Args:
        slots: Most pieces held.
    """

    def __init__(
        self, direction: Direction, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slots: int
    ) -> None:
        self.direction = direction
        self.writer = writer
        self.position = 0  # bytes of the sender that have passed
        self.marks: list[Mark] = []
        self.held = False
        self.frame = -1  # to duplicate
        self._way = way
        self._reader = reader
        self._queue: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue(slots)
        self._copying: Mark | None = None
        self._copy = bytearray()
        self._frames = 0
        self._pending = bytearray()  # of a frame not yet whole

    async def pump(self) -> None:
        """Pass everything on until its end; the other direction, and what is held, may live on.

        Raises:
            Cut: at a mark.
        """
        self.writer.transport.set_write_buffer_limits(high=0)  # drain() means: the kernel has it
        reading = asyncio.create_task(self._read())
        try:
            while (item := await self._queue.get()) is not None:
                arrived, data = item
                while (wait := arrived + self._flow.delay - time.monotonic()) > 0:
                    await self._sleep(wait)
                for piece in self._pieces(data):
                    await self._send(piece)
            await self._gate()
            if self._flow.dropping:
                return
            if await reading:  # the sender ended by RST: so do we
                abort(self.writer, reset=True)
            else:
                self.writer.write_eof()
        except OSError:
            return  # the receiver is gone
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    @property
    def _flow(self) -> Flow:
        return self._way.flows[self.direction]

    async def _read(self) -> bool:
        """Fill the queue up to the end; tell whether that was an error."""
        broken = False
        try:
            while data := await self._reader.read(PIECE):
                await self._queue.put((time.monotonic(), data))
        except OSError:
            broken = True
        await self._queue.put(None)
        return broken

    async def _gate(self) -> None:
        while self._way.paused or self.held:
            await self._way.change()

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but no longer than until something is changed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._way.change()

    async def _send(self, data: bytes) -> None:
        while data:
            await self._gate()
            flow = self._flow
            if flow.dropping:
                self.position += len(data)
                return
            data = self._strike(data)
            size = self._room(len(data))
            if flow.rate is not None:
                size = min(size, max(int(flow.rate * RATE_STEP_SECONDS), 1))
                flow.free_at = max(flow.free_at, time.monotonic()) + size / flow.rate
                await asyncio.sleep(flow.free_at - time.monotonic())
            passed, data = data[:size], data[size:]
            if self._copying is not None:
                self._copy += passed
            self.position += size  # counted first: what has arrived is counted
            flow.passed += size
            self.writer.write(passed)
            await self.writer.drain()
            if self._copying is not None and self.position >= self._copying.end:
                self.writer.write(bytes(self._copy))
                self._copying = None
                self._copy.clear()
                await self.writer.drain()
            if any(mark.kind == "cut" and mark.at <= self.position for mark in self.marks):
                self._strike(b"\0")  # at once: the next byte may be long in coming

    def _strike(self, data: bytes) -> bytes:
        """Do what is marked for the next byte, the first of ``data``."""
        due = [mark for mark in self.marks if mark.at <= self.position]
        self.marks = [mark for mark in self.marks if mark.at > self.position]
        for mark in due:
            if mark.kind == "cut":
                raise Cut(mark.reset)
            if mark.kind == "flip":
                data = bytes([data[0] ^ (1 << mark.bit)]) + data[1:]
            else:
                self._copying = mark
        return data

    def _room(self, length: int) -> int:
        """Return how many bytes may pass before the next mark, or the end of a copy."""
        ends = [mark.at for mark in self.marks] + ([self._copying.end] if self._copying else [])
        return min([length, *(end - self.position for end in ends if end > self.position)])

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what to send for ``data``: as it came, or by whole frames while one waits to be duplicated."""
        if self.frame < 0:
            yield data
            return
        self._pending += data
        while len(self._pending) >= HEADER.size:
            end = HEADER.size + int(HEADER.unpack_from(self._pending)[4])
            if len(self._pending) < end:
                return
            frame = bytes(self._pending[:end])
            del self._pending[:end]
            yield frame
            self._frames += 1
            if self._frames > self.frame:
                self.frame = -1
                yield frame
                yield bytes(self._pending)
                self._pending.clear()
                return


def arm(orders: list[Order], lanes: tuple[Lane, Lane]) -> list[Order]:
    """Give a new connection its marks; return the orders that are left for those to come."""
    for order in orders:
        lane = lanes[BOTH.index(order.direction)]
        if order.mark is None:
            lane.frame = order.frame
        else:
            lane.marks.append(order.mark)
        order.times = None if order.times is None else order.times - 1
    return [order for order in orders if order.times is None or order.times > 0]


async def pump(lanes: tuple[Lane, Lane]) -> bool:
    """Pass both directions on until both end, or one is cut; tell whether the end shall be an RST."""
    reset = False
    try:
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(lane.pump())
    except* Cut as cut:
        reset = any(isinstance(error, Cut) and error.reset for error in cut.exceptions)
    return reset


def abort(writer: asyncio.StreamWriter, *, reset: bool = False) -> None:
    """Close a connection now: by FIN, unless the peer's bytes are unread, or by RST."""
    sock = writer.get_extra_info("socket")
    if reset and sock is not None and not writer.transport.is_closing():
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
