"""``python -m jobpipe.coordinator``: the coordinator process, started by a publisher or by ``jobpipe serve``."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from typing import Any

from jobpipe.config import Config
from jobpipe.coordinator.host import Host, Parent
from jobpipe.coordinator.process import (
    answer_fault,
    answer_ready,
    handle_signals,
    read_order,
    set_up_logging,
    start_program,
)
from jobpipe.coordinator.service import ControlService
from jobpipe.discovery.handler import open_handler
from jobpipe.discovery.security import client_tls, server_tls
from jobpipe.net.address import Endpoint, bind_in_range, pick_interface
from jobpipe.net.server import Server

log = logging.getLogger(__name__)


async def run(order: dict[str, Any]) -> None:
    """Serve until there is nothing to do any more, or SIGTERM."""
    config = Config.from_dict(order["config"])
    parent = Parent(**order["parent"]) if order.get("parent") else None
    interface = pick_interface(config.subnet, embedded=config.embedded)
    advertised = config.advertise or interface
    tls = server_tls(config)
    client = client_tls(config)
    sock = bind_in_range(interface, config.port_range)
    data: subprocess.Popen[bytes] | None = None
    server: Server | None = None
    host: Host | None = None
    try:
        started, ready = await asyncio.to_thread(
            start_program,
            "jobpipe.coordinator.data_process",
            {"config": config.to_dict(), "host": interface, "instance": order["instance"]},
            timeout=30.0,
            keep_stdin=True,
            log_file=config.home / "logs" / "data.log",
        )
        data = started
        handler = await asyncio.to_thread(open_handler, config)
        host = Host(
            config,
            handler,
            control=Endpoint(advertised, sock.getsockname()[1]),
            data=Endpoint(advertised, ready["port"]),
            tls=client,
            parent=parent,
            instance=order["instance"],
            data_process=started,
        )
        server = Server(ControlService(host), tls=tls)
        await server.start(sock)
        handle_signals(host.finished)
        answer_ready(endpoint=str(host.control_endpoint), data=str(host.data_endpoint))
        await host.live()
    finally:
        if host is not None:
            await host.close()
        if server is not None:
            await server.close(grace=3.0)
        else:
            sock.close()
        if data is not None:
            await asyncio.to_thread(_end_data, data)


def _end_data(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()  # its sign to end
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    """Run the program."""
    set_up_logging()
    try:
        asyncio.run(run(read_order()))
    except Exception as error:  # noqa: BLE001 - told to the starter, or logged when it no longer listens
        answer_fault(error)


if __name__ == "__main__":
    main()
