"""A TCP proxy that breaks connections on purpose: stands before a coordinator, a data process or ZooKeeper.

    with FaultProxy("127.0.0.1:2181") as proxy:
        connect_to(proxy.endpoint)
        proxy.delay(0.1)                     # every byte arrives 100 ms late, both ways
        proxy.cut("down", at=100)            # the next connection ends after 100 bytes towards the client
        proxy.flip("up", at=7, bit=3, open_ones=True)
        proxy.heal()

It works below TLS, since it knows bytes only; :meth:`FaultProxy.duplicate_frame` alone reads jobpipe's frame headers
and needs plaintext. Directions are seen from the client: ``up`` goes to the server, ``down`` comes from it. Faults at a
byte count from the beginning of each connection made from now on; with ``open_ones`` from where the connections that
are open now have got to.

The proxy runs in a thread of its own; every method blocks until it is done and may be called from any thread.
Each direction of each connection holds at most ``buffer`` bytes: beyond it the sender has to wait, as on a full link.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, TypeAlias, TypeVar

from jobpipe.wire.frames import HEADER

__all__ = ["Direction", "FaultProxy"]

Direction: TypeAlias = Literal["up", "down"]
T = TypeVar("T")

BOTH: tuple[Direction, Direction] = ("up", "down")
PIECE = 16 * 1024  # bytes handled at once
CALL_SECONDS = 10.0
DIAL_SECONDS = 5.0
RATE_STEP_SECONDS = 0.02  # a rate is kept in steps of this length


@dataclass(frozen=True)
class _Mark:
    """A fault at one byte of one direction; ``at`` is an index of the connection's bytes."""

    kind: Literal["cut", "flip", "copy"]
    at: int
    end: int = 0  # of what is copied
    bit: int = 0
    reset: bool = False


@dataclass
class _Order:
    """A mark for connections still to be made; ``times`` None is for all of them."""

    direction: Direction
    mark: _Mark | None  # None: duplicate frame ``frame``
    times: int | None
    frame: int = -1


class _Flow:
    """What holds for one direction of all connections."""

    def __init__(self) -> None:
        self.delay = 0.0
        self.rate: float | None = None
        self.dropping = False
        self.free_at = 0.0  # when the rate lets the next byte pass
        self.passed = 0  # bytes forwarded since the start


class _Lane:
    """One direction of one connection."""

    def __init__(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.direction = direction
        self.reader = reader
        self.writer = writer
        self.position = 0  # bytes of the sender that have passed
        self.marks: list[_Mark] = []
        self.held = False
        self.copying: _Mark | None = None
        self.copy = bytearray()
        self.frame = -1  # to duplicate
        self._frames = 0
        self._pending = bytearray()  # of a frame not yet whole

    def pieces(self, data: bytes) -> Iterator[bytes]:
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

    def room(self, length: int) -> int:
        """Return how many bytes may pass before the next mark, or the end of a copy."""
        ends = [mark.at for mark in self.marks] + ([self.copying.end] if self.copying else [])
        return min([length, *(end - self.position for end in ends if end > self.position)])


class _Cut(Exception):
    def __init__(self, reset: bool) -> None:
        super().__init__()
        self.reset = reset


class FaultProxy:
    """Forwards TCP connections to ``upstream``, with the faults that it is told.

    Args:
        upstream: ``host:port``; may be changed for the connections to come.
        host: Where to listen.
        port: 0 takes a free one.
        buffer: Most bytes held for each direction of each connection.
    """

    def __init__(self, upstream: str, *, host: str = "127.0.0.1", port: int = 0, buffer: int = 1024 * 1024) -> None:
        self.upstream = upstream
        self._host = host
        self._port = port
        self._slots = max(buffer // PIECE, 1)
        self._flows: dict[Direction, _Flow] = {"up": _Flow(), "down": _Flow()}
        self._orders: list[_Order] = []
        self._lanes: list[tuple[_Lane, _Lane]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused = False
        self._made = 0
        self._failed = 0
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._bell = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        try:
            self._run(self._listen)
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what it sees --------------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """Where it listens, ``host:port``; the same after :meth:`refuse`."""
        return f"{self._host}:{self._port}"

    @property
    def connections(self) -> int:
        """How many connections reached the upstream so far."""
        return self._made

    @property
    def failed(self) -> int:
        """How many did not, since the upstream did not answer."""
        return self._failed

    @property
    def open(self) -> int:
        """How many connections are open now."""
        return len(self._lanes)

    def passed(self, direction: Direction) -> int:
        """Return how many bytes were forwarded so far, all connections together."""
        return self._flows[direction].passed

    # -- faults --------------------------------------------------------------------------------------------------------

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """Deliver every byte so much later; the throughput stays, up to the buffer."""
        self._set(direction, lambda flow: setattr(flow, "delay", seconds))

    def limit_rate(self, bytes_per_second: float | None, direction: Direction | None = None) -> None:
        """Let so many bytes pass in a second, all connections together; None lifts it."""
        self._set(direction, lambda flow: setattr(flow, "rate", bytes_per_second))

    def drop(self, direction: Direction, dropping: bool = True) -> None:
        """Swallow a direction's bytes, and its end, in silence. What was swallowed is gone when it stops."""
        self._set(direction, lambda flow: setattr(flow, "dropping", dropping))

    def pause(self) -> None:
        """Let nothing pass any more, in both directions; new connections are accepted, and hear nothing."""
        self._do(lambda: setattr(self, "_paused", True))

    def resume(self) -> None:
        """End :meth:`pause`: all that was held passes."""
        self._do(lambda: setattr(self, "_paused", False))

    def hold(self, direction: Direction) -> None:
        """Hold a direction of the connections that are open now; connections made later are free.

        What is held outlives its sender: :meth:`release` delivers it although the client has gone on elsewhere.
        """
        self._do(lambda: self._hold(direction, True))

    def release(self, direction: Direction | None = None) -> None:
        """Deliver what :meth:`hold` held."""
        for way in BOTH:
            if direction in (None, way):
                self._do(lambda way=way: self._hold(way, False))  # type: ignore[misc]

    def cut(
        self, direction: Direction, at: int, *, reset: bool = False, times: int | None = 1, open_ones: bool = False
    ) -> None:
        """End a connection when ``at`` bytes of a direction have passed; ``reset`` by RST instead of FIN.

        Args:
            times: How many of the next connections it is for; None for all until :meth:`heal`.
            open_ones: For the connections that are open now instead.
        """
        self._mark(direction, _Mark("cut", at, reset=reset), times, open_ones)

    def flip(
        self, direction: Direction, at: int, *, bit: int = 0, times: int | None = 1, open_ones: bool = False
    ) -> None:
        """Change one bit of byte ``at``."""
        self._mark(direction, _Mark("flip", at, bit=bit), times, open_ones)

    def duplicate(
        self, direction: Direction, at: int, end: int, *, times: int | None = 1, open_ones: bool = False
    ) -> None:
        """Send the bytes from ``at`` to ``end - 1`` twice, one copy after the other."""
        if not 0 <= at < end:
            raise ValueError(f"no bytes from {at} to {end}")
        self._mark(direction, _Mark("copy", at, end=end), times, open_ones)

    def duplicate_frame(self, direction: Direction, number: int, *, times: int | None = 1) -> None:
        """Send jobpipe's frame ``number`` (0 is the first one) of the next connections twice. Plaintext only."""
        self._do(lambda: self._orders.append(_Order(direction, None, times, number)))

    def reset(self) -> int:
        """End all connections that are open by RST; return how many there were."""

        def kill() -> int:
            for lanes in self._lanes:
                for lane in lanes:
                    _abort(lane.writer, reset=True)
            return len(self._lanes)

        return self._do(kill)

    def refuse(self) -> None:
        """Listen no more: connections to come are refused; those that are open stay."""
        self._do(self._unlisten)

    def accept(self) -> None:
        """Listen again, at the same port."""
        self._run(self._listen)

    def heal(self) -> None:
        """End every fault; what is held passes, what is cut or swallowed stays so."""

        def lift() -> None:
            for flow in self._flows.values():
                flow.delay, flow.rate, flow.dropping, flow.free_at = 0.0, None, False, 0.0
            self._orders.clear()
            for lanes in self._lanes:
                for lane in lanes:
                    lane.held = False
                    lane.marks.clear()
            self._paused = False

        self._do(lift)
        self._run(self._listen)

    def close(self) -> None:
        """End everything: connections, listener and thread. Idempotent."""
        if self._loop.is_closed():
            return

        async def end() -> None:
            self._unlisten()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)  # transports that were aborted close their sockets now

        try:
            self._run(end)
        finally:
            self._end_loop()

    # -- from other threads --------------------------------------------------------------------------------------------

    def _run(self, work: Callable[[], object]) -> None:
        if self._loop.is_closed():
            raise RuntimeError("this proxy is closed")

        async def run() -> None:
            made = work()
            if asyncio.iscoroutine(made):
                await made
            self._ring()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_SECONDS)

    def _do(self, work: Callable[[], T]) -> T:
        results: list[T] = []
        self._run(lambda: results.append(work()))
        return results[0]

    def _set(self, direction: Direction | None, change: Callable[[_Flow], None]) -> None:
        def work() -> None:
            for way in BOTH:
                if direction in (None, way):
                    change(self._flows[way])

        self._do(work)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    # -- in the loop ---------------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        self._bell.set()
        self._bell = asyncio.Event()

    def _hold(self, direction: Direction, held: bool) -> None:
        for lane in self._open_lanes(direction):
            lane.held = held

    def _mark(self, direction: Direction, mark: _Mark, times: int | None, open_ones: bool) -> None:
        def arm() -> None:
            if not open_ones:
                self._orders.append(_Order(direction, mark, times))
                return
            for lane in self._open_lanes(direction):
                at = lane.position
                lane.marks.append(replace(mark, at=mark.at + at, end=mark.end + at))

        self._do(arm)

    def _open_lanes(self, direction: Direction) -> list[_Lane]:
        return [lane for lanes in self._lanes for lane in lanes if lane.direction == direction]

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, self._host, self._port, limit=PIECE)
            self._port = self._server.sockets[0].getsockname()[1]

    def _unlisten(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.upstream.rpartition(":")
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                far_reader, far_writer = await asyncio.open_connection(host, int(port), limit=PIECE)
        except OSError:  # TimeoutError is one
            self._failed += 1
            _abort(writer, reset=True)
            return
        except BaseException:  # close() came first
            _abort(writer)
            raise
        lanes = (_Lane("up", reader, far_writer), _Lane("down", far_reader, writer))
        self._arm(lanes)
        self._made += 1
        self._lanes.append(lanes)
        reset = False
        try:
            async with asyncio.TaskGroup() as group:
                for lane in lanes:
                    group.create_task(self._pump(lane))
        except* _Cut as cut:
            reset = any(isinstance(error, _Cut) and error.reset for error in cut.exceptions)
        finally:
            self._lanes.remove(lanes)
            for lane in lanes:
                _abort(lane.writer, reset=reset)

    def _arm(self, lanes: tuple[_Lane, _Lane]) -> None:
        for order in self._orders:
            lane = lanes[BOTH.index(order.direction)]
            if order.mark is None:
                lane.frame = order.frame
            else:
                lane.marks.append(order.mark)
            order.times = None if order.times is None else order.times - 1
        self._orders = [order for order in self._orders if order.times is None or order.times > 0]

    async def _pump(self, lane: _Lane) -> None:
        """Pass one direction on until its end; the other direction, and what is held, may live on."""
        lane.writer.transport.set_write_buffer_limits(high=0)  # drain() means: the kernel has it
        queue: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue(self._slots)
        reading = asyncio.create_task(self._read(lane, queue))
        try:
            while (item := await queue.get()) is not None:
                arrived, data = item
                flow = self._flows[lane.direction]
                while (wait := arrived + flow.delay - time.monotonic()) > 0:
                    await self._sleep(wait)
                for piece in lane.pieces(data):
                    await self._send(lane, flow, piece)
            await self._gate(lane)
            if self._flows[lane.direction].dropping:
                return
            if await reading:  # the sender ended by RST: so do we
                _abort(lane.writer, reset=True)
            else:
                lane.writer.write_eof()
        except OSError:
            return  # the receiver is gone
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, lane: _Lane, queue: asyncio.Queue[tuple[float, bytes] | None]) -> bool:
        """Fill the queue up to the end; tell whether that was an error."""
        broken = False
        try:
            while data := await lane.reader.read(PIECE):
                await queue.put((time.monotonic(), data))
        except OSError:
            broken = True
        await queue.put(None)
        return broken

    async def _gate(self, lane: _Lane) -> None:
        while self._paused or lane.held:
            await self._bell.wait()

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but no longer than until something is changed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._bell.wait()

    async def _send(self, lane: _Lane, flow: _Flow, data: bytes) -> None:
        while data:
            await self._gate(lane)
            if flow.dropping:
                lane.position += len(data)
                return
            data = self._strike(lane, data)
            size = lane.room(len(data))
            if flow.rate is not None:
                size = min(size, max(int(flow.rate * RATE_STEP_SECONDS), 1))
                flow.free_at = max(flow.free_at, time.monotonic()) + size / flow.rate
                await asyncio.sleep(flow.free_at - time.monotonic())
            passed, data = data[:size], data[size:]
            if lane.copying is not None:
                lane.copy += passed
            lane.position += size  # counted first: what has arrived is counted
            flow.passed += size
            lane.writer.write(passed)
            await lane.writer.drain()
            if lane.copying is not None and lane.position >= lane.copying.end:
                lane.writer.write(bytes(lane.copy))
                lane.copying = None
                lane.copy.clear()
                await lane.writer.drain()
            if any(mark.kind == "cut" and mark.at <= lane.position for mark in lane.marks):
                self._strike(lane, b"\0")  # at once: the next byte may be long in coming

    def _strike(self, lane: _Lane, data: bytes) -> bytes:
        """Do what is marked for the next byte, the first of ``data``."""
        due = [mark for mark in lane.marks if mark.at <= lane.position]
        lane.marks = [mark for mark in lane.marks if mark.at > lane.position]
        for mark in due:
            if mark.kind == "cut":
                raise _Cut(mark.reset)
            if mark.kind == "flip":
                data = bytes([data[0] ^ (1 << mark.bit)]) + data[1:]
            else:
                lane.copying = mark
        return data


def _abort(writer: asyncio.StreamWriter, *, reset: bool = False) -> None:
    """Close a connection now: by FIN, unless the peer's bytes are unread, or by RST."""
    sock = writer.get_extra_info("socket")
    if reset and sock is not None and not writer.transport.is_closing():
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
