"""The idle links of a process: how many, for how long, and who may use them."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.errors import LinkClosed, LinkEnded, LinkError
from jobpipe.net.address import Endpoint
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.servers import served_link
from jobpipe.subscribing.fetching import link_pool
from jobpipe.subscribing.fetching.link_pool import POOL_PER_ENDPOINT, LinkPool
from tests.net.kit import DEADLINE, HELLO, TIMING, Mode, Remote, bound, descriptors
from tests.pipelines.waiting import eventually

PLAINTEXT = Mode(None)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = descriptors()
    yield
    assert not opened_since(before)


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[LinkPool]:
    links = LinkPool()
    monkeypatch.setattr(link_pool, "_pool", links)
    yield links
    links.close()


@pytest.fixture
def remote() -> Iterator[Remote]:
    with Remote(PLAINTEXT) as remote:
        yield remote


def opened_since(before: dict[str, str]) -> set[tuple[str, str]]:
    """Return the descriptors that are new; garbage of earlier tests may close some of theirs meanwhile."""
    return descriptors().items() - before.items()


def used(links: LinkPool, remote: Remote, at_once: int = 1, topic: str = "orders") -> list[BlockingLink]:
    """Use some links at the same time."""
    if at_once == 0:
        return []
    with links.link(remote.endpoint, topic, None) as link:
        link.call("echo", timeout=5)
        return [link, *used(links, remote, at_once - 1, topic)]


def test_an_idle_link_is_used_again(links: LinkPool, remote: Remote) -> None:
    [first] = used(links, remote)
    assert used(links, remote) == [first]
    assert used(links, remote, topic="other") != [first]


def test_few_are_kept(links: LinkPool, remote: Remote) -> None:
    made = used(links, remote, POOL_PER_ENDPOINT + 2)
    assert sum(link.usable() for link in made) == POOL_PER_ENDPOINT


def test_an_error_cuts_the_link(links: LinkPool, remote: Remote) -> None:
    with pytest.raises(LinkError), links.link(remote.endpoint, "orders", None) as link:
        raise LinkClosed("in the middle of an answer")
    assert not link.usable()
    assert used(links, remote) != [link]


def test_links_to_servers_that_are_gone_are_closed(links: LinkPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers come and go on other ports while one worker reads; the links of each of them were kept for ever."""
    now = time.monotonic()
    monkeypatch.setattr("jobpipe.subscribing.fetching.link_pool.time", SimpleNamespace(monotonic=lambda: now))
    files = descriptors()
    for _ in range(20):
        with Remote(PLAINTEXT) as publisher:
            [link] = used(links, publisher)
        now += link.timing.idle / 4
    assert len(opened_since(files)) == 4
    assert len(links._idle) == 4


@pytest.mark.processes
def test_a_fork_closes_its_copies(links: LinkPool, remote: Remote) -> None:
    [ours] = used(links, remote)
    child = os.fork()
    if child == 0:
        try:
            os._exit(3 if ours.usable() or link_pool._pool is links or links._idle else 0)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert used(links, remote) == [ours]


def test_a_server_that_is_not_there(links: LinkPool) -> None:
    with bound() as nobody:
        host, port = nobody.getsockname()
        nobody.close()
        with pytest.raises(LinkError), links.link(Endpoint(host, port), "orders", None):
            raise AssertionError("nothing answers there")


def test_a_server_that_closes_waits_for_no_idle_link(mode: Mode) -> None:
    """It has said goodbye, which the link reads when it is used again: to end TLS takes two."""
    with Remote(mode, dataclasses.replace(TIMING, goodbye=2 * DEADLINE)) as remote:
        how = {"tls": mode.client, "server_hostname": mode.hostname}
        with BlockingLink.connect(remote.endpoint, HELLO, timing=TIMING, **how) as link:  # type: ignore[arg-type]
            link.call("echo", timeout=5)
            remote.do(remote.server.close(grace=2 * DEADLINE))
            with pytest.raises(LinkEnded, match="the server closes"):
                link.call("echo", timeout=5)


class Paused:
    """A socket that reads no more until it is told to."""

    def __init__(self, wrapped: socket.socket) -> None:
        self._wrapped = wrapped
        self.go = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def recv(self, size: int) -> bytes:
        assert self.go.wait(DEADLINE)
        return self._wrapped.recv(size)


def test_an_answer_that_is_not_sent_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is done, and the link idle, but its bytes wait for the client to read."""
    monkeypatch.setattr(served_link, "UNHEARD_SECONDS", 0.0)

    async def shrink() -> None:
        for each in remote.server._accepted:
            each._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # type: ignore[union-attr]

    async def leave() -> None:
        for each in list(remote.server._accepted):
            each.leave("the server closes")

    async def unsent() -> bool:
        return any(each._transport.get_write_buffer_size() and not each.tasks for each in remote.server._accepted)  # type: ignore[union-attr]

    with (
        Remote(PLAINTEXT, dataclasses.replace(TIMING, goodbye=2 * DEADLINE)) as remote,
        BlockingLink.connect(remote.endpoint, HELLO, timing=TIMING, tls=None) as link,
        ThreadPoolExecutor(2) as pool,
    ):
        link.call("echo", timeout=5)
        remote.do(shrink())
        link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
        link._socket = paused = Paused(link._socket)  # type: ignore[assignment]
        answer = pool.submit(link.call, "echo", blob=b"x" * 480_000, timeout=DEADLINE)
        eventually(lambda: remote.do(unsent()))
        remote.do(leave())
        remote.do(unsent())  # after what leave() has put off for no time
        paused.go.set()
        assert answer.result(DEADLINE)
