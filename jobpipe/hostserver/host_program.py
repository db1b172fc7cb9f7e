"""The host server as a program: one a host, in the foreground, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from jobpipe.config import Config
from jobpipe.coordinator.server_process import handle_signals
from jobpipe.discovery.host_lookup import HostDirectory
from jobpipe.discovery.peer_authentication import PeerAuthentication
from jobpipe.errors import RegistryUnavailable
from jobpipe.hostserver.host_handlers import HostHandlers
from jobpipe.net.address import Endpoint, bind_in_range, pick_interface, require_plaintext_allowed
from jobpipe.net.retry import backoff
from jobpipe.net.servers.link_server import LinkServer
from jobpipe.operations.host_operations import KEEP_SECONDS
from jobpipe.store.spool.host_folder import HostFolder

log = logging.getLogger(__name__)


async def serve_host(config: Config, tell: Callable[[str], object]) -> None:
    """Serve ``hostserver.dir`` until a signal; ``tell`` gets one line when tasks and readers can find the server.

    Raises:
        SpoolError: another server serves the folder.
        ConfigError: the certificates or the access list cannot be used.
        AddressError: no port is free, or no interface fits.
    """
    finished = asyncio.Event()
    handle_signals(finished)
    trust = PeerAuthentication(config)
    folder = HostFolder(config.hostserver_dir)
    directory: HostDirectory | None = None
    server: LinkServer | None = None
    try:
        interface = pick_interface(config.subnet, embedded=config.embedded)
        if not trust.encrypted:
            require_plaintext_allowed(Endpoint(interface, config.hostserver_port[0]), allowed=config.allow_plaintext)
        sock = bind_in_range(interface, config.hostserver_port, key="jobpipe.hostserver.port")
        server = trust.server(HostHandlers(folder, trust, keep_seconds=max(config.subscription_expiry, KEEP_SECONDS)))
        await server.start(sock)
        endpoint = Endpoint(config.advertise or interface, sock.getsockname()[1])
        directory = await _register(config, folder, endpoint, finished)
        if directory is not None:
            folder.announce(str(endpoint))
            tell(f"host server {folder.id} at {endpoint} keeps segments in {folder.path}; SIGTERM stops it")
            await finished.wait()
    finally:
        folder.close()  # first: tasks that come now go to the coordinator
        if directory is not None:
            await asyncio.to_thread(directory.close)
        if server is not None:
            await server.close(grace=3.0)


async def _register(
    config: Config, folder: HostFolder, endpoint: Endpoint, finished: asyncio.Event
) -> HostDirectory | None:
    """Register, waiting for a registry that is away, as after a power cut; None when told to end meanwhile."""
    loop = asyncio.get_running_loop()

    def lost(host: str) -> None:
        log.error("another server of folder %s has registered; this one ends", folder.path)
        loop.call_soon_threadsafe(finished.set)

    def register() -> HostDirectory:
        directory = HostDirectory(config)
        try:
            directory.register(folder.id, endpoint, starts=folder.starts, ssl=config.tls, on_lost=lost)
        except BaseException:
            directory.close()
            raise
        return directory

    for delay in backoff(base=1.0, cap=15.0):
        if finished.is_set():
            return None
        try:
            return await asyncio.to_thread(register)
        except RegistryUnavailable as error:
            log.warning("%s; trying again", error)
        try:
            async with asyncio.timeout(delay):
                await finished.wait()
        except TimeoutError:
            continue
    return None
