"""``python -m jobpipe.coordinator.data.data_process``: the data server; ends when its standard input does."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from jobpipe.config import config_from_dict
from jobpipe.coordinator.data.count_pipe import CountPipe
from jobpipe.coordinator.data.data_server import DataService
from jobpipe.coordinator.server_process import answer_ready, handle_signals, run_program
from jobpipe.discovery.peer_authentication import PeerAuthentication
from jobpipe.net.address import bind_in_range


async def run(order: dict[str, Any]) -> None:
    """Serve until SIGTERM or the end of standard input."""
    config = config_from_dict(order["config"])
    trust = PeerAuthentication(config)
    counts = CountPipe()
    service = DataService(config, order["instance"], trust, order["secret"], counts)
    server = trust.server(service)
    sock = bind_in_range(order["host"], config.port_range)
    port = sock.getsockname()[1]
    await server.start(sock)
    finished = asyncio.Event()
    handle_signals(finished)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def follow_starter() -> None:
        # Each line says where a topic's spool is, or where host servers are; its end is the coordinator's.
        while line := await reader.readline():
            told = json.loads(line)
            if "hosts" in told:
                service.hosts = told["hosts"]
            else:
                service.directories[told["topic"]] = Path(told["directory"])
                service.places[told["topic"]] = told["place"]
        finished.set()

    follower = asyncio.create_task(follow_starter())
    answer_ready(port=port)
    await counts.open(sys.stdout, lambda: service.owing)
    await finished.wait()
    follower.cancel()
    transport.close()
    await server.close(grace=0.5)  # pooled links of idle readers do not answer a goodbye
    await service.close()
    counts.close()


if __name__ == "__main__":
    run_program(run)
