"""``python -m jobpipe.coordinator``: the coordinator process, started by a publisher or by ``jobpipe topics serve``."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from jobpipe.config import config_from_dict
from jobpipe.coordinator.coordinator import Coordinator
from jobpipe.coordinator.data.data_process_handle import DataProcessHandle
from jobpipe.coordinator.handlers.admin_handlers import AdminHandlers
from jobpipe.coordinator.server_process import answer_ready, handle_signals, run_program
from jobpipe.coordinator.topic_liveness import WatchedParent
from jobpipe.discovery.peer_authentication import PeerAuthentication
from jobpipe.discovery.registry_handler import open_handler
from jobpipe.net.address import Endpoint, bind_in_range, pick_interface, require_plaintext_allowed
from jobpipe.net.servers.link_server import LinkServer

log = logging.getLogger(__name__)


async def run(order: dict[str, Any]) -> None:
    """Serve until there is nothing to do any more, or SIGTERM."""
    config = config_from_dict(order["config"])
    parent = WatchedParent(**order["parent"]) if order.get("parent") else None
    interface = pick_interface(config.subnet, embedded=config.embedded)
    advertised = config.advertise or interface
    trust = PeerAuthentication(config)
    if not trust.encrypted:
        require_plaintext_allowed(Endpoint(interface, config.port_range[0]), allowed=config.allow_plaintext)
    sock = bind_in_range(interface, config.port_range)
    data = DataProcessHandle(
        config, interface=interface, advertised=advertised, instance=order["instance"], secret=order["secret"]
    )
    server: LinkServer | None = None
    host: Coordinator | None = None
    try:
        await asyncio.to_thread(data.start)
        handler = await asyncio.to_thread(open_handler, config)
        host = Coordinator(
            config,
            handler,
            control=Endpoint(advertised, sock.getsockname()[1]),
            data=data,
            parent=parent,
            instance=order["instance"],
            quotas=trust.quotas,
        )
        server = trust.server(AdminHandlers(host, trust, order["secret"]))
        await server.start(sock)
        handle_signals(host.finished)
        # Who has started us is on this host, and need not come by the advertised address.
        answer_ready(endpoint=str(Endpoint(*sock.getsockname()[:2])), data=str(host.data_endpoint))
        await host.live()
    finally:
        if host is not None:
            await host.close()
        if server is not None:
            await server.close(grace=3.0)
        else:
            sock.close()
        await asyncio.to_thread(data.end)


if __name__ == "__main__":
    run_program(run)
