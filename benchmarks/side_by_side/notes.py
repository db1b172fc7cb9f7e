"""From a flow job's function to the job that counts: rows are noted where the function runs, in a worker of Spark's.

The function gets the time when it holds the rows before it sends anything, so sending costs no row its time.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from benchmarks.side_by_side.arrivals import Arrivals
from jobpipe import FlowContext

FRAME = struct.Struct("<qq")  # when (µs of the wall clock), and how many rows; then their ids, and when each was made


class Notes:
    """Listens on loopback, and adds what comes to the arrivals."""

    def __init__(self, arrivals: Callable[[], Arrivals]) -> None:
        self._arrivals = arrivals
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more; connections end with those who made them."""
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._take, args=(connection,), daemon=True).start()

    def _take(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            while len(head := file.read(FRAME.size)) == FRAME.size:
                at, count = FRAME.unpack(head)
                ids, made = (np.frombuffer(file.read(8 * count), np.int64) for _ in range(2))
                self._arrivals().add(ids, made, at)


def connect(port: int) -> Callable[[], socket.socket]:
    """Return the ``setup`` of a flow whose function notes what it gets."""

    def setup() -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    return setup


def note(batch: pa.RecordBatch, context: FlowContext) -> None:
    """Note the rows."""
    at = time.time_ns() // 1_000
    columns = [batch.column(name).to_numpy().tobytes() for name in ("id", "made")]
    context.setup.sendall(b"".join([FRAME.pack(at, batch.num_rows), *columns]))


def note_and_pass(batch: pa.RecordBatch, context: FlowContext) -> pa.RecordBatch:
    """Return the rows as they are: a link of a chain."""
    return batch
