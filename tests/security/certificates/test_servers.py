"""Cases 67 and 69: servers that are not who they should be get no client, whatever the registry says."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

import jobpipe
from jobpipe.discovery.registry_handler import open_handler
from jobpipe.errors import PeerNotTrusted
from jobpipe.net.address import Endpoint
from jobpipe.net.servers.link_server import LinkServer
from jobpipe.net.tls.certificates import NODE_LIFE, describe, issue
from jobpipe.net.tls.revocation import revoke
from jobpipe.net.tls.tls_context import Credentials, client_context
from jobpipe.wire import Hello
from jobpipe_registry.topic_records import RegisterRecord
from tests.net.kit import NAME, Echo, bound
from tests.security.conftest import Served
from tests.security.kit import TIMING, TOPIC, VERSIONS, Dial, World, settings

HELLO = Hello(TOPIC, "reader", instance="test")


@contextmanager
def rogue(files: Credentials, version: ssl.TLSVersion | None = None) -> Iterator[tuple[Endpoint, Echo]]:
    """Run a server with whatever certificate, that demands none and greets everybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    if version is not None:
        context.maximum_version = version
    echo, ready, places = Echo(), threading.Event(), []
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        server = LinkServer(echo, tls=context, timing=TIMING)
        sock = bound()
        places.append(Endpoint("127.0.0.1", sock.getsockname()[1]))
        await server.start(sock)
        ready.set()
        await ended.wait()
        await server.close(grace=2.0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(20.0)
        yield places[0], echo
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(20.0)
        assert not thread.is_alive()
        loop.close()


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A CA whose list has a server on it."""
    world = World(tmp_path_factory.mktemp("servers"))
    issue(world.folder, "lost", dns=[NAME])
    revoke(world.folder, ["lost"])
    return world


# The first of the module: what is started after its other fixtures has the mark of `nothing_left`, also a ZooKeeper.
@pytest.mark.slow
@pytest.mark.zookeeper
def test_a_rogue_server_gets_no_subscriber(served: Served) -> None:
    """Case 69: a valid certificate of another topic, registered under ours with a higher epoch.

    The subscriber looks past it to the true one; with the rogue alone it fails, and says whom it found.
    """
    world = served.world
    config = served.config(**settings(world.billing))
    handler = open_handler(served.config(**settings(world.payments)))
    try:
        with rogue(world.payments) as (place, echo):
            handler.register(
                TOPIC,
                RegisterRecord(
                    host=place.host,
                    port=place.port,
                    parallelism=2,
                    index=2,
                    coordinator=str(place),
                    data=str(place),
                    epoch=10_000,
                    instance="rogue",
                    ssl=True,
                ),
            )
            with jobpipe.subscribe(TOPIC, name="billing", starting="earliest", config=config) as subscription:
                batches = subscription.batches(timeout=20.0)
                assert next(batches).num_rows > 0
            lonely = "lonely"
            for index in (1, 2):
                handler.register(
                    lonely,
                    RegisterRecord(
                        host=place.host,
                        port=place.port,
                        parallelism=2,
                        index=index,
                        coordinator=str(place),
                        data=str(place),
                        epoch=7,
                        instance="rogue",
                        ssl=True,
                    ),
                )
            with (
                jobpipe.subscribe(lonely, name="billing", config=config) as subscription,
                pytest.raises(PeerNotTrusted, match=r"payments|Hostname mismatch"),
            ):
                next(subscription.batches(timeout=20.0))
            assert echo.link is None, "nobody said HELLO to it"
    finally:
        handler.shutdown()


@pytest.mark.parametrize("blocking", [False, True], ids=["asyncio", "blocking"])
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ("stranger", "unable to get local issuer certificate|self-signed|certificate signature failure"),
        ("expired", "certificate has expired"),
        ("usage", "unsuitable certificate purpose|unsupported certificate purpose"),
        ("lost", "certificate revoked"),
        ("payments", "Hostname mismatch"),
        ("billing", "unsuitable certificate purpose|unsupported certificate purpose"),
    ],
)
def test_a_client_refuses(mine: World, shown: str, why: str, version: ssl.TLSVersion, blocking: bool) -> None:
    if shown == "expired":
        long_ago = datetime.now(UTC) - NODE_LIFE - timedelta(days=1)
        files = issue(mine.folder, "expired", dns=[NAME], replace=True, now=long_ago)
    elif shown == "usage":
        files = issue(mine.folder, "usage", dns=[NAME], usages=["client"], replace=True)
    elif shown == "stranger":
        files = issue(mine.folder.parent / "stranger", "server", dns=[NAME], replace=True)
    elif shown == "lost":
        files = Credentials(mine.folder / "ca.crt", mine.folder / "lost.crt", mine.folder / "lost.key")
    else:
        files = getattr(mine, shown)
    tls = client_context(mine.billing)
    with rogue(files, version) as (place, echo):
        with pytest.raises(PeerNotTrusted, match=why):
            Dial(blocking)(place, HELLO, tls)
        assert echo.link is None, "our HELLO was not heard"


@pytest.mark.parametrize("blocking", [False, True], ids=["asyncio", "blocking"])
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_a_client_takes_the_true_one(mine: World, version: ssl.TLSVersion, blocking: bool) -> None:
    """The same server with the topic's own certificate."""
    with rogue(mine.orders, version) as (place, echo):
        Dial(blocking)(place, HELLO, client_context(mine.billing))
        assert echo.link is not None


def test_names_and_usages(mine: World) -> None:
    assert describe(mine.billing.cert).usages == ("client",)
    assert describe(mine.serving.cert).usages == ("server",)
    assert describe(mine.orders.cert).usages == ("server", "client")
