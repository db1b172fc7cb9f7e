"""The blocking link of Spark's workers."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Iterator

import pytest

from jobpipe.errors import (
    ChecksumMismatch,
    DataLoss,
    ForkedProcess,
    JobpipeError,
    LinkBroken,
    LinkClosed,
    LinkEnded,
    LinkError,
    LinkTimeout,
    LocalProtocolError,
    NotAuthorized,
    RemoteProtocolError,
)
from jobpipe.net.address import Endpoint
from jobpipe.net.links import blocking_link
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.wire import Data, Fault, Goodbye, Message, Part, Ping, Reply, Side
from tests.net.kit import (
    HELLO,
    NAME,
    TIMING,
    Authority,
    Mode,
    Remote,
    bound,
    descriptors,
    frames,
    peer,
    read_all,
)

QUICK = dataclasses.replace(TIMING, hello=0.2, welcome=0.2, heartbeat=0.1, silence=0.2, write=0.3, handshake=0.3)


def connect(mode: Mode, endpoint: Endpoint, timing: LinkTimeouts = TIMING, name: str | None = None) -> BlockingLink:
    hello = dataclasses.replace(HELLO, name=name)
    return BlockingLink.connect(endpoint, hello, tls=mode.client, server_hostname=mode.hostname, timing=timing)


@pytest.fixture
def remote(mode: Mode) -> Iterator[Remote]:
    """A server in a thread."""
    with Remote(mode) as remote:
        yield remote


@pytest.fixture
def link(mode: Mode, remote: Remote) -> Iterator[BlockingLink]:
    """A link to it; no descriptor is left after both have gone."""
    with connect(mode, remote.endpoint) as link:
        yield link


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = descriptors()
    yield
    left = {name: target for name, target in descriptors().items() if before.get(name) != target}
    assert not left


def read_stream(link: BlockingLink, chunks: int) -> list[tuple[dict[str, object], int]]:
    """All parts of a stream: header and CRC of their bytes."""
    got = []
    buffer = memoryview(bytearray(1024 * 1024))
    while (part := link.next_part()) is not None:
        crc = 0
        for _ in range(chunks):
            length = link.next_chunk_length()
            link.read_chunk_into(buffer[:length])
            crc = zlib.crc32(buffer[:length], crc)
        got.append((part.header, crc))
    return got


def test_a_call_is_answered(link: BlockingLink, mode: Mode) -> None:
    """Arguments, blob, greeting and names arrive; the server does not expect heartbeats."""
    reply = link.call("echo", {"n": 1}, b"blob", timeout=5)
    assert (reply.result, reply.blob) == ({"n": 1}, b"blob")
    assert (link.welcome.epoch, link.hello.heartbeat) == (1, False)
    assert link.peer_names == (("*.topic.jobpipe", "node.jobpipe") if mode.authority else ())
    assert link.usable()


def test_a_fault_leaves_the_link_usable(link: BlockingLink) -> None:
    """It is an answer like others."""
    with pytest.raises(DataLoss) as caught:
        link.call("fail", timeout=5)
    assert caught.value.fields["earliest"] == 7
    assert link.usable()
    assert link.call("echo", timeout=5).result == {}


def test_a_stream_is_read_into_the_callers_buffer(link: BlockingLink) -> None:
    """Parts, chunks, the final answer; then the link serves again."""
    size = 256 * 1024
    link.start_stream("stream", {"parts": 3, "chunks": 4, "size": size}, timeout=5)
    assert not link.usable()
    got = read_stream(link, 4)
    assert [header for header, _ in got] == [{"part": 0}, {"part": 1}, {"part": 2}]
    assert len({crc for _, crc in got}) == 1
    assert link.stream_reply is not None
    assert link.stream_reply.blob == b"end"
    assert link.usable()
    assert link.call("echo", timeout=5).result == {}


def test_a_fault_ends_a_stream(link: BlockingLink) -> None:
    """Between parts; the link goes on."""
    link.start_stream("stream", {"parts": 3, "fail_at": 1}, timeout=5)
    with pytest.raises(DataLoss) as caught:
        read_stream(link, 1)
    assert caught.value.fields["part"] == 1
    assert link.usable()
    link.start_stream("fail", timeout=5)
    with pytest.raises(DataLoss):
        link.next_part()
    assert link.usable()
    link.start_stream("stream", {"parts": 1, "chunks": 0, "fail_at": 1}, timeout=5)
    assert link.next_part() is not None
    with pytest.raises(RemoteProtocolError):
        link.next_chunk_length()
    assert not link.usable()


def test_a_wrong_checksum_cuts_the_link(link: BlockingLink) -> None:
    """Case 18: the bytes are not handed on as good."""
    link.start_stream("stream", {"wrong_crc": True}, timeout=5)
    assert link.next_part() is not None
    with pytest.raises(ChecksumMismatch):
        link.read_chunk_into(memoryview(bytearray(link.next_chunk_length())))
    assert not link.usable()
    with pytest.raises(ChecksumMismatch):
        link.call("echo", timeout=5)


def test_an_upload_arrives(link: BlockingLink) -> None:
    """In any pieces; the link goes on, also after an early refusal."""
    data = os.urandom(3 * 1024 * 1024 + 7)
    for args, error in (({}, None), ({"refuse": True}, DataLoss), ({"part": True}, None), ({}, None)):
        link.start_upload("put", args, length=len(data), timeout=5)
        link.send_data(data[:1000])
        link.send_data(memoryview(data)[1000:])
        if error is not None:
            with pytest.raises(error):
                link.end_upload(timeout=5)
        else:
            reply = link.end_upload(timeout=5)
            assert args or reply.result == {"size": len(data), "crc": zlib.crc32(data)}
        assert link.usable()


def test_misuse_of_an_upload(link: BlockingLink) -> None:
    """Neither more nor less than announced."""
    with pytest.raises(LocalProtocolError):
        link.start_upload("put", length=0, timeout=5)
    link.start_upload("put", length=10, timeout=5)
    with pytest.raises(LocalProtocolError):
        link.send_data(b"x" * 11)
    with pytest.raises(LocalProtocolError):
        link.end_upload(timeout=5)
    with pytest.raises(LocalProtocolError):
        link.call("echo", timeout=5)
    assert not link.usable()
    link.send_data(b"x" * 10)
    assert link.end_upload(timeout=5).result["size"] == 10


def test_misuse_of_a_stream(link: BlockingLink) -> None:
    """A half-read link is cut, never reused."""
    with pytest.raises(LocalProtocolError):
        link.next_part()
    assert link.usable()
    link.start_stream("stream", timeout=5)
    assert link.next_part() is not None
    size = link.next_chunk_length()
    with pytest.raises(LocalProtocolError):
        link.read_chunk_into(memoryview(bytearray(size + 1)))
    assert not link.usable()


def test_an_unread_chunk_is_noticed(link: BlockingLink) -> None:
    """A reader that loses count gets an error, not another part's bytes."""
    link.start_stream("stream", {"chunks": 2}, timeout=5)
    assert link.next_part() is not None
    with pytest.raises(RemoteProtocolError):
        link.next_part()
    assert not link.usable()


def test_no_answer_in_time_cuts_the_link(link: BlockingLink, remote: Remote) -> None:
    """A late answer must not be taken for another's."""
    with pytest.raises(LinkTimeout):
        link.call("poll", timeout=0.05)
    assert not link.usable()


def test_a_server_that_leaves_makes_the_link_unusable(mode: Mode, remote: Remote) -> None:
    """A pool finds out without a request; a request finds out at once."""
    link = connect(mode, remote.endpoint)
    remote.do(remote.server.close())
    assert not link.usable()
    with pytest.raises(LinkEnded):
        link.call("echo", timeout=5)
    link.close()


def test_close_says_goodbye_once(mode: Mode, remote: Remote) -> None:
    """And is idempotent; in the middle of a stream it cuts."""
    link = connect(mode, remote.endpoint)
    link.close()
    link.close()
    remote.do(_left(remote))
    first = remote.echo.why
    assert isinstance(first, LinkEnded)
    with pytest.raises(LinkClosed):
        link.call("echo", timeout=5)
    remote.echo.left.clear()
    link = connect(mode, remote.endpoint)
    link.start_stream("stream", {"chunks": 100_000, "size": 65536}, timeout=5)
    link.next_part()
    link.close()
    remote.do(_left(remote))
    assert type(remote.echo.why) is LinkBroken


async def _left(remote: Remote) -> None:
    await remote.echo.left.wait()


def test_an_interrupted_read_cuts_the_link(link: BlockingLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt, a cancelled task: nobody knows how much was read."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    link.start_stream("stream", timeout=5)
    with monkeypatch.context() as patch:
        patch.setattr(link, "_fill", interrupt)
        with pytest.raises(KeyboardInterrupt):
            link.next_part()
    assert not link.usable()


def test_one_user_at_a_time(link: BlockingLink, remote: Remote) -> None:
    """A second thread is refused, the first is not disturbed."""
    got: list[Reply] = []
    thread = threading.Thread(target=lambda: got.append(link.call("poll", timeout=10)))
    thread.start()
    remote.do(_started(remote))
    with pytest.raises(LocalProtocolError):
        link.call("echo", timeout=5)
    remote.loop.call_soon_threadsafe(remote.echo.gate.set)
    thread.join(10)
    assert got[0].result == {"woken": True}


async def _started(remote: Remote) -> None:
    await remote.echo.started.wait()


@pytest.mark.processes
def test_a_fork_does_not_use_its_parents_link(link: BlockingLink) -> None:
    """Spark forks its workers: two processes on one TLS stream would destroy it."""

    def child(results: object) -> None:
        try:
            link.call("echo", timeout=1)
        except ForkedProcess:
            os._exit(0 if not link.usable() else 2)
        os._exit(1)

    process = multiprocessing.get_context("fork").Process(target=child, args=(None,))
    process.start()
    process.join(20)
    assert process.exitcode == 0
    process.close()
    assert link.call("echo", timeout=5).result == {}


def test_a_refused_client_learns_why(mode: Mode, remote: Remote) -> None:
    """Before WELCOME."""
    with pytest.raises(NotAuthorized) as caught:
        connect(mode, remote.endpoint, name="intruder")
    assert caught.value.fields == {"name": "intruder"}
    with pytest.raises(RemoteProtocolError):
        connect(mode, remote.endpoint, name="elsewhere")


def test_a_reconnect_resumes_the_tls_session(authority: Authority) -> None:
    """And the server still knows the client's certificate."""
    tls = authority.client()
    with Remote(Mode(authority)) as remote:
        for reused in (False, True):
            with BlockingLink.connect(remote.endpoint, HELLO, tls=tls, server_hostname=NAME, timing=TIMING) as link:
                assert isinstance(link._socket, ssl.SSLSocket)
                assert link._socket.session_reused is reused
                link.call("echo", timeout=5)
                assert remote.echo.link is not None
                assert "node.jobpipe" in remote.echo.link.peer_names
    assert sum(key[0] is tls for key in blocking_link._sessions) == 1


# ------------------------------------------------------------------------------------------------------ hostile peers


def scripted(*said: Message, then: bytes = b"") -> contextlib.AbstractContextManager[Endpoint]:
    """A server in plaintext that greets, says all this at once, and stays."""

    def script(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(frames(Side.SERVER, *said) + then)
        read_all(sock)

    return peer(script)


def test_pings_are_answered_while_waiting() -> None:
    """On the way to the answer."""
    with scripted(Ping(7), Ping(8), Reply(1, {"n": 1})) as endpoint, connect(Mode(None), endpoint) as link:
        assert link.call("x", timeout=5).result == {"n": 1}


@pytest.mark.parametrize(
    ("said", "then", "expected"),
    [
        ((Goodbye("bye"),), b"", LinkEnded),
        ((Fault(None, "Fenced", "newer epoch"),), b"", JobpipeError),
        ((Part(1),), b"", RemoteProtocolError),
        ((), b"GET / HTTP/1.1\r\n\r\n", RemoteProtocolError),
        ((), b"JPIP\x01\x04\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00", RemoteProtocolError),
    ],
)
def test_what_a_server_may_say_instead_of_an_answer(
    said: tuple[Message, ...], then: bytes, expected: type[JobpipeError]
) -> None:
    """Each ends the link."""
    with scripted(*said, then=then) as endpoint:
        link = connect(Mode(None), endpoint)
        with pytest.raises(expected):
            link.call("x", timeout=5)
        assert not link.usable()
        with pytest.raises(expected):
            link.call("x", timeout=5)


def test_a_cut_at_every_byte() -> None:
    """Case 14: at each of them an error, never a short result."""
    whole = frames(Side.SERVER, Part(1, {"n": 1}), Data(b"12345"), Reply(1, {"end": True}))

    def attempt(endpoint: Endpoint) -> bytes:
        buffer = bytearray(5)
        with BlockingLink.connect(endpoint, HELLO, tls=None, server_hostname=None, timing=TIMING) as link:
            link.start_stream("x", timeout=5)
            assert link.next_part() is not None
            assert link.next_chunk_length() == 5
            link.read_chunk_into(memoryview(buffer))
            assert link.next_part() is None
        return bytes(buffer)

    length = 0

    def script(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(whole[:length])
        sock.shutdown(socket.SHUT_WR)
        read_all(sock)

    with peer(script) as endpoint:
        for length in range(len(whole)):  # noqa: B007 - the script reads it
            with pytest.raises(LinkBroken):
                attempt(endpoint)
        length = len(whole)
        assert attempt(endpoint) == b"12345"


def hang(sock: socket.socket) -> None:
    """Take everything, say nothing."""
    read_all(sock)


def hang_up(sock: socket.socket) -> None:
    """Accept, and go."""


def stop_after_welcome(sock: socket.socket) -> None:
    """Greet, then nothing."""
    sock.recv(65536)
    sock.sendall(frames(Side.SERVER))
    read_all(sock)


def stop_in_chunk(sock: socket.socket) -> None:
    """Half a DATA frame, then nothing."""
    sock.recv(65536)
    sock.sendall(frames(Side.SERVER, Part(1), Data(bytes(1000)))[:-500])
    read_all(sock)


def trickle(sock: socket.socket) -> None:
    """One byte at a time, for ever."""
    sock.recv(65536)
    data = frames(Side.SERVER, Part(1), Data(bytes(100_000)))
    sock.sendall(data[:-100_000])
    stop = threading.Event()
    for _ in range(100_000):
        sock.sendall(b"\0")
        stop.wait(0.01)


def deaf(sock: socket.socket) -> None:
    """Greet, then read nothing more."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.recv(65536)
    sock.sendall(frames(Side.SERVER))
    threading.Event().wait(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_hangs_is_noticed(authority: Authority, tls: bool) -> None:
    """Case 62, from the other side: in the handshake, and before WELCOME."""
    with peer(hang) as endpoint:
        start = time.monotonic()
        with pytest.raises(LinkTimeout):
            connect(Mode(authority if tls else None), endpoint, QUICK)
        assert time.monotonic() - start < 5


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_hangs_up_is_a_broken_link(authority: Authority, tls: bool) -> None:
    """Before WELCOME."""
    with peer(hang_up) as endpoint, pytest.raises(LinkBroken):
        connect(Mode(authority if tls else None), endpoint, QUICK)


def test_nobody_listens(authority: Authority) -> None:
    """Refused."""
    sock = bound()
    endpoint = Endpoint("127.0.0.1", sock.getsockname()[1])
    sock.close()
    with pytest.raises(LinkBroken):
        connect(Mode(None), endpoint)


@pytest.mark.parametrize("script", [stop_after_welcome, stop_in_chunk, trickle])
def test_a_stream_that_stands_still_is_noticed(script: object) -> None:
    """At each place it may stop."""
    with peer(script) as endpoint:  # type: ignore[arg-type]
        link = connect(Mode(None), endpoint, QUICK)
        link.start_stream("x", timeout=5)

        def read() -> None:
            link.next_part()
            link.read_chunk_into(memoryview(bytearray(link.next_chunk_length())))

        with pytest.raises(LinkTimeout):
            read()
        assert not link.usable()


def test_a_server_that_takes_nothing_is_noticed() -> None:
    """The write deadline."""
    with peer(deaf) as endpoint:
        link = connect(Mode(None), endpoint, QUICK)
        link.start_upload("x", length=64 * 1024 * 1024, timeout=5)
        with pytest.raises(LinkTimeout):
            link.send_data(bytes(64 * 1024 * 1024))
        assert not link.usable()


def test_a_foreign_tls_server_is_no_server_of_ours(authority: Authority) -> None:
    """Case 20: on a port that was reused, with a certificate of another CA, or no TLS at all."""
    other = Authority(
        authority.other_ca, authority.other_cert, authority.other_key, authority.ca, authority.cert, authority.key
    )
    with Remote(Mode(other)) as remote, pytest.raises(NotAuthorized):
        connect(Mode(authority), remote.endpoint)
    with Remote(Mode(None)) as remote, pytest.raises(LinkError):
        connect(Mode(authority), remote.endpoint, QUICK)
    with Remote(Mode(authority)) as remote, pytest.raises(LinkError):
        connect(Mode(None), remote.endpoint, QUICK)
