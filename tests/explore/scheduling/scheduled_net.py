"""Links without sockets: transports that carry bytes to each other in virtual time, and what listens where.

Bytes of one direction keep their order; how long they take is drawn by the seed. A cut, a kill or an abort loses what
is on its way. A process that stands still is connected to, as by a kernel, and answers when it goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import Callable
from typing import Any

from tests.explore.scheduling.scheduled_process import PROCESS, Process
from tests.explore.scheduling.scheduled_time import VirtualLoop
from tests.explore.virtual_time import Handle

LEAST = 1e-6  # seconds between two arrivals: the order of a heap's equals is not theirs


class _NoSocket:
    def setsockopt(self, *option: Any) -> None:
        pass


class Wire(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, protocol: Any, process: Process | None, place: tuple[str, int]) -> None:
        super().__init__()
        self.peer: Wire
        self.process = process
        self.number = next(network.numbers)
        self._network = network
        self._loop = network.loop
        self._protocol = protocol
        self._place = place
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, process)
        self._closing = False
        self._lost = False
        self._reading = True
        self._waiting: list[bytes] = []  # arrived while not read
        self._arrival = 0.0
        self._coming: dict[Handle, None] = {}

    def begin(self) -> None:
        """Tell the protocol that it is connected."""
        self._loop.call_soon(self._protocol.connection_made, self, context=self.context)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self._place, "socket": _NoSocket()}.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0  # what is written is on its way

    def write(self, data: Any) -> None:
        if not self._closing and not self.peer._lost:
            self.peer.arrive(self.peer._receive, bytes(data))

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self._loop.call_soon(self._receive, data, context=self.context)

    def close(self) -> None:
        """End after what was written has gone."""
        if not self._closing:
            self._closing = True
            self.peer.arrive(self.peer._ended)
            self._loop.call_soon(self.lose, None, context=self.context)

    def abort(self) -> None:
        """End now; what is on its way may be lost."""
        if not self._lost:
            self._closing = True
            if self._loop.rng.random() < 0.5:
                self.peer.drop_what_comes()
            self.peer.arrive(self.peer.lose, ConnectionResetError("reset by the other end"))
            self._loop.call_soon(self.lose, None, context=self.context)

    def arrive(self, what: Callable[..., None], *args: Any) -> None:
        """Let something happen at this end, after all that is on its way."""
        self._arrival = max(self._arrival + LEAST, self._loop.time() + self._network.delay())
        timer: Handle

        def happen() -> None:
            self._coming.pop(timer, None)
            what(*args)

        timer = self._loop.call_at(self._arrival, happen, context=self.context)
        self._coming[timer] = None

    def drop_what_comes(self) -> None:
        for timer in self._coming:
            timer.cancel()
        self._coming.clear()

    def lose(self, error: Exception | None) -> None:
        """The connection is gone."""
        if not self._lost:
            self._lost = self._closing = True
            self.drop_what_comes()
            self._network.wires.pop(self, None)
            self._protocol.connection_lost(error)

    def _receive(self, data: bytes) -> None:
        if self._lost:
            return
        if self._network.on_bytes is not None:
            self._network.on_bytes(self)
        if self._reading:
            self._protocol.data_received(data)
        else:
            self._waiting.append(data)

    def _ended(self) -> None:
        if not self._lost:
            self._protocol.eof_received()
            self.close()


class Network:
    """Where coordinators listen, and all connections."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.numbers = itertools.count()
        self.on_link: Callable[[Wire], None] | None = None  # told of each new connection
        self.on_bytes: Callable[[Wire], None] | None = None  # told where bytes have arrived
        self.wires: dict[Wire, None] = {}
        self._listeners: dict[int, tuple[Process, Callable[[], Any]]] = {}
        self._ports = itertools.count(20_000)

    def delay(self) -> float:
        """Seconds that the next bytes are on their way."""
        rng = self.loop.rng
        return rng.uniform(0.0001, 0.002) if rng.random() < 0.9 else rng.uniform(0.0, 0.3)

    def listen(self, process: Process, accept: Callable[[], Any]) -> int:
        """Give a process a port; ``accept`` makes the protocol of each connection, in its context."""
        port = next(self._ports)
        self._listeners[port] = process, accept
        return port

    def cut(self, wire: Wire) -> None:
        """Cut a connection: both ends hear of it, the far one perhaps much later, and nothing passes meanwhile."""
        wire.drop_what_comes()
        wire.arrive(wire.lose, ConnectionResetError("cut"))
        far = wire.peer
        far.drop_what_comes()
        late = self.loop.rng.uniform(0.0, 8.0) if self.loop.rng.random() < 0.4 else 0.0
        self.loop.call_later(late, far.lose, ConnectionResetError("cut"), context=far.context)

    def killed(self, process: Process) -> None:
        """The kernel ends the connections of a process that was killed."""
        for wire in [wire for wire in self.wires if wire.process is process]:
            self.wires.pop(wire, None)
            wire.peer.arrive(wire.peer.lose, ConnectionResetError("the process was killed"))

    async def connect(self, make: Callable[[], Any], host: str, port: int, **options: Any) -> tuple[Wire, Any]:
        """Stand in for ``loop.create_connection``."""
        await asyncio.sleep(self.delay())
        process, accept = self._listeners.get(port, (None, None))
        if process is None or accept is None or not process.alive:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        mine = Wire(self, make(), PROCESS.get(), (host, port))
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        theirs = Wire(self, context.run(accept), process, (host, 40_000))
        mine.peer, theirs.peer = theirs, mine
        self.wires |= {mine: None, theirs: None}
        if self.on_link is not None:
            self.on_link(mine)
        theirs.begin()
        mine._protocol.connection_made(mine)
        return mine, mine._protocol
