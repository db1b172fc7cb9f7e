"""Arrow Flight over mutual TLS: ``DoGet`` of batches in memory, and one open ``DoGet`` that brings news.

No disk, no catalog, no CRC, no acknowledgement: it is measured as the transport that it is.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from benchmarks.side_by_side.transports.rows import BIG, SMALL, copies
from jobpipe.net.tls.certificates import ensure_home
from jobpipe.net.tls.peer_names import topic_server_name

DONE = None


class Server(fl.FlightServerBase):
    """Serves parts, and news to whoever listens."""

    def __init__(self, folder: Path) -> None:
        files = ensure_home(folder / "home")
        pairs = [(files.cert.read_text(), files.key.read_text())]
        ca = files.ca.read_text()
        where = "grpc+tls://127.0.0.1:0"
        super().__init__(where, tls_certificates=pairs, verify_client=True, root_certificates=ca)
        self._copies = 0
        self._listeners: list[queue.SimpleQueue[pa.RecordBatch | None]] = []
        self._serving = threading.Thread(target=self.serve, daemon=True)
        self._serving.start()

    def open(self, parts: int, gigabytes: float) -> dict[str, Any]:
        """Have so many parts."""
        self._copies = copies(gigabytes / parts)
        return {"port": self.port}

    def say(self, count: int, pause: float) -> list[list[float]]:
        """Send small batches to all who listen."""
        found = []
        for _ in range(count):
            time.sleep(pause)
            began = time.time()
            for listener in self._listeners:
                listener.put(SMALL)
            found.append([began, time.time()])
        return found

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        """Answer a reader."""
        if ticket.ticket == b"news":
            return fl.GeneratorStream(SMALL.schema, self._news())
        return fl.GeneratorStream(BIG.schema, (BIG for _ in range(self._copies)))

    def _news(self) -> Iterator[pa.RecordBatch]:
        mine: queue.SimpleQueue[pa.RecordBatch | None] = queue.SimpleQueue()
        self._listeners.append(mine)
        yield SMALL  # a greeting: from now on it hears all
        while (batch := mine.get()) is not None:
            yield batch

    def end(self) -> None:
        """End."""
        for listener in self._listeners:
            listener.put(DONE)
        self.shutdown()
        self._serving.join(10.0)


class Reader:
    """Reads parts, or news."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._client: fl.FlightClient | None = None
        self._news: fl.FlightStreamReader | None = None

    def connect(self, told: dict[str, Any]) -> None:
        """Connect."""
        files = ensure_home(self._folder / "home")
        self._client = fl.connect(
            f"grpc+tls://127.0.0.1:{told['port']}",
            tls_root_certs=files.ca.read_text(),
            cert_chain=files.cert.read_text(),
            private_key=files.key.read_text(),
            override_hostname=topic_server_name("bench"),
        )

    def listen(self) -> None:
        """Ask for news."""
        assert self._client is not None
        self._news = self._client.do_get(fl.Ticket(b"news"))
        self._news.read_chunk()

    def hear(self, count: int) -> list[float]:
        """Return when each of the next batches came."""
        assert self._news is not None
        found = []
        for _ in range(count):
            self._news.read_chunk()
            found.append(time.time())
        self._news.cancel()
        return found

    def read(self, part: int, seconds: float) -> dict[str, Any]:
        """Read a part."""
        assert self._client is not None
        size, began = 0, time.time()
        while True:
            for chunk in self._client.do_get(fl.Ticket(str(part).encode())):
                size += chunk.data.nbytes if chunk.data is not None else 0
            if time.time() - began >= seconds:
                return {"bytes": size, "began": began, "ended": time.time()}

    def end(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.close()
