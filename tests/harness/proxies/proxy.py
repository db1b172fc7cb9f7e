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
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from tests.harness.proxies.lanes import BOTH, PIECE, Direction, Flow, Lane, Mark, Order, Way, abort, arm, pump

T = TypeVar("T")

CALL_SECONDS = 10.0
DIAL_SECONDS = 5.0


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
        self._way = Way()
        self._orders: list[Order] = []
        self._lanes: list[tuple[Lane, Lane]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._made = 0
        self._failed = 0
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
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
        return self._way.flows[direction].passed

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
        self._do(lambda: setattr(self._way, "paused", True))

    def resume(self) -> None:
        """End :meth:`pause`: all that was held passes."""
        self._do(lambda: setattr(self._way, "paused", False))

    def hold(self, direction: Direction) -> None:
        """Hold a direction of the connections that are open now; connections made later are free.

        What is held outlives its sender: :meth:`release` delivers it although the client has gone on elsewhere.
        """
        self._hold(direction, True)

    def release(self, direction: Direction | None = None) -> None:
        """Deliver what :meth:`hold` held."""
        for way in BOTH:
            if direction in (None, way):
                self._hold(way, False)

    def cut(
        self, direction: Direction, at: int, *, reset: bool = False, times: int | None = 1, open_ones: bool = False
    ) -> None:
        """End a connection when ``at`` bytes of a direction have passed; ``reset`` by RST instead of FIN.

        Args:
            times: How many of the next connections it is for; None for all until :meth:`heal`.
            open_ones: For the connections that are open now instead.
        """
        self._mark(direction, Mark("cut", at, reset=reset), times, open_ones)

    def flip(
        self, direction: Direction, at: int, *, bit: int = 0, times: int | None = 1, open_ones: bool = False
    ) -> None:
        """Change one bit of byte ``at``."""
        self._mark(direction, Mark("flip", at, bit=bit), times, open_ones)

    def duplicate(
        self, direction: Direction, at: int, end: int, *, times: int | None = 1, open_ones: bool = False
    ) -> None:
        """Send the bytes from ``at`` to ``end - 1`` twice, one copy after the other."""
        if not 0 <= at < end:
            raise ValueError(f"no bytes from {at} to {end}")
        self._mark(direction, Mark("copy", at, end=end), times, open_ones)

    def duplicate_frame(self, direction: Direction, number: int, *, times: int | None = 1) -> None:
        """Send jobpipe's frame ``number`` (0 is the first one) of the next connections twice. Plaintext only."""
        self._do(lambda: self._orders.append(Order(direction, None, times, number)))

    def reset(self) -> int:
        """End all connections that are open by RST; return how many there were."""

        def kill() -> int:
            for lanes in self._lanes:
                for lane in lanes:
                    abort(lane.writer, reset=True)
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
            for flow in self._way.flows.values():
                flow.delay, flow.rate, flow.dropping, flow.free_at = 0.0, None, False, 0.0
            self._orders.clear()
            for lanes in self._lanes:
                for lane in lanes:
                    lane.held = False
                    lane.marks.clear()
            self._way.paused = False

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
            self._way.ring()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_SECONDS)

    def _do(self, work: Callable[[], T]) -> T:
        results: list[T] = []
        self._run(lambda: results.append(work()))
        return results[0]

    def _set(self, direction: Direction | None, change: Callable[[Flow], None]) -> None:
        def work() -> None:
            for way in BOTH:
                if direction in (None, way):
                    change(self._way.flows[way])

        self._do(work)

    def _hold(self, direction: Direction, held: bool) -> None:
        def work() -> None:
            for lane in self._open_lanes(direction):
                lane.held = held

        self._do(work)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    # -- in the loop ---------------------------------------------------------------------------------------------------

    def _mark(self, direction: Direction, mark: Mark, times: int | None, open_ones: bool) -> None:
        def arm() -> None:
            if not open_ones:
                self._orders.append(Order(direction, mark, times))
                return
            for lane in self._open_lanes(direction):
                at = lane.position
                lane.marks.append(replace(mark, at=mark.at + at, end=mark.end + at))

        self._do(arm)

    def _open_lanes(self, direction: Direction) -> list[Lane]:
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
            abort(writer, reset=True)
            return
        except BaseException:  # close() came first
            abort(writer)
            raise
        lanes = (
            Lane("up", self._way, reader, far_writer, self._slots),
            Lane("down", self._way, far_reader, writer, self._slots),
        )
        self._orders = arm(self._orders, lanes)
        self._made += 1
        self._lanes.append(lanes)
        reset = False
        try:
            reset = await pump(lanes)
        finally:
            self._lanes.remove(lanes)
            for lane in lanes:
                abort(lane.writer, reset=reset)
