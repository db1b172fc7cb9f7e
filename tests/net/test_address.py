"""Endpoints as text, the interface to listen on, and free ports."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import pickle
import secrets
import socket
from collections import namedtuple

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobpipe.errors import AddressError
from jobpipe.net.address import Endpoint, bind_in_range, host_addresses, pick_interface

WAIT = 5.0
_Address = namedtuple("_Address", "family address")
_Stats = namedtuple("_Stats", "isup")

INTERFACES = {
    "lo": ["127.0.0.1", "::1"],
    "eth0": ["10.1.2.3", "fd00::5", "fe80::1%eth0"],
    "eth1": ["10.1.2.9", "192.168.7.7"],
    "down0": ["172.16.0.1"],
}


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """A host with the interfaces of INTERFACES, of which down0 is down; the dict may be changed."""
    present = {name: list(addresses) for name, addresses in INTERFACES.items()}

    def entries() -> dict[str, list[_Address]]:
        return {
            name: [_Address(socket.AF_INET6 if ":" in text else socket.AF_INET, text) for text in texts]
            + [_Address(psutil.AF_LINK, "00:00:00:00:00:00")]
            for name, texts in present.items()
        }

    monkeypatch.setattr(psutil, "net_if_addrs", entries)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: _Stats(not name.startswith("down")) for name in present})
    return present


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:1", "localhost", 1),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("[::1]:28444", "::1", 28444),
        ("[fe80::1%eth0]:5", "fe80::1%eth0", 5),
        ("a.b-c_d.example:80", "a.b-c_d.example", 80),
    ],
)
def test_endpoint_and_its_text(text: str, host: str, port: int) -> None:
    endpoint = Endpoint.parse(text)
    assert endpoint == Endpoint(host, port)
    assert str(endpoint) == text


NO_ENDPOINTS = (
    "|host|host:|:|:1|host:0|host:65536|host:-1|host:1x|host:²|::1:5|[::1]|[::1]5|[host]:1|[10.0.0.1]:1|a b:1|"
    "http://a:1|a/b:1|host:1 |[::1:1|::1]:1|host:000001|[x:y]:1"
)


@pytest.mark.parametrize("text", NO_ENDPOINTS.split("|"))
def test_no_endpoint(text: str) -> None:
    with pytest.raises(AddressError):
        Endpoint.parse(text)


@pytest.mark.parametrize(
    ("host", "port"), [("", 1), ("a", 0), ("a", 70000), ("a", True), ("a", "1"), (None, 1), ("[::1]", 1)]
)
def test_an_endpoint_is_checked_when_made(host: str, port: int) -> None:
    with pytest.raises(AddressError):
        Endpoint(host, port)


@settings(deadline=None)  # the machine may be busy
@given(st.ip_addresses(), st.integers(1, 65535))
def test_any_address_survives_its_text(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    endpoint = Endpoint(str(ip), port)
    assert Endpoint.parse(str(endpoint)) == endpoint


@settings(deadline=None)  # the machine may be busy
@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    with contextlib.suppress(AddressError):
        assert str(Endpoint.parse(text)).rpartition(":")[0] in text


def test_endpoints_are_ordered_and_hashable() -> None:
    assert sorted({Endpoint("b", 1), Endpoint("a", 2), Endpoint("a", 1)}) == [
        Endpoint("a", 1),
        Endpoint("a", 2),
        Endpoint("b", 1),
    ]


@pytest.mark.parametrize(
    ("subnet", "expected"),
    [
        ("10.1.2.0/24", "10.1.2.3"),
        ("10.1.2.8/29", "10.1.2.9"),
        ("192.168.0.0/16", "192.168.7.7"),
        ("127.0.0.0/8", "127.0.0.1"),
        ("fd00::/64", "fd00::5"),
        ("fe80::/10", "fe80::1%eth0"),
        ("10.1.2.99/24", "10.1.2.3"),
    ],
)
@pytest.mark.parametrize("embedded", [True, False])
@pytest.mark.usefixtures("interfaces")
def test_interface_in_the_subnet(subnet: str, expected: str, embedded: bool) -> None:
    assert pick_interface(subnet, embedded=embedded) == expected


@pytest.mark.parametrize("subnet", ["10.9.0.0/16", "172.16.0.0/16", "2001:db8::/32", "0.0.0.0/32"])
@pytest.mark.usefixtures("interfaces")
def test_no_interface_in_the_subnet(subnet: str) -> None:
    with pytest.raises(AddressError) as caught:
        pick_interface(subnet, embedded=True)
    assert caught.value.fields == {
        "subnet": subnet,
        "addresses": {name: texts for name, texts in INTERFACES.items() if name != "down0"},
    }
    assert subnet in caught.value.message
    assert "192.168.7.7" in caught.value.message
    assert pickle.loads(pickle.dumps(caught.value)).fields == caught.value.fields  # noqa: S301  our own bytes


def test_no_subnet_at_all() -> None:
    with pytest.raises(AddressError):
        pick_interface("here", embedded=True)


def test_embedded_is_loopback() -> None:
    assert pick_interface(None, embedded=True) == "127.0.0.1"


class Probe:
    """A UDP socket whose routing table is a class attribute: family to own address."""

    routes: dict[socket.AddressFamily, str] = {}  # noqa: RUF012  set by the test

    def __init__(self, family: socket.AddressFamily, kind: int) -> None:
        assert kind == socket.SOCK_DGRAM
        self.family = family

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self, target: tuple[str, int]) -> None:
        if self.family not in self.routes:
            raise OSError(errno.ENETUNREACH, "unreachable")

    def getsockname(self) -> tuple[str, int]:
        return self.routes[self.family], 1


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ({socket.AF_INET: "192.168.7.7", socket.AF_INET6: "fd00::5"}, "192.168.7.7"),
        ({socket.AF_INET6: "fd00::5"}, "fd00::5"),
        ({socket.AF_INET: "127.0.0.1"}, "10.1.2.3"),
        ({}, "10.1.2.3"),
    ],
)
@pytest.mark.usefixtures("interfaces")
def test_primary_address(
    routes: dict[socket.AddressFamily, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default route decides, and the interfaces where there is none."""
    monkeypatch.setattr(Probe, "routes", routes)
    monkeypatch.setattr(socket, "socket", Probe)
    assert pick_interface(None, embedded=False) == expected


def test_a_host_with_loopback_only(interfaces: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(interfaces):
        if name != "lo":
            del interfaces[name]
    monkeypatch.setattr(Probe, "routes", {})
    monkeypatch.setattr(socket, "socket", Probe)
    with pytest.raises(AddressError) as caught:
        pick_interface(None, embedded=False)
    assert caught.value.fields["addresses"] == {"lo": ["127.0.0.1", "::1"]}


def test_this_host_has_loopback() -> None:
    assert any("127.0.0.1" in texts for texts in host_addresses().values())


def free_ports(count: int) -> int:
    """Return the first of ``count`` ports in a row that nobody has, below the range of outgoing connections."""
    for first in range(21000, 31000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    sock = stack.enter_context(socket.socket())
                    sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")


def test_every_port_of_the_range_is_used_once() -> None:
    first = free_ports(4)
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(bind_in_range("127.0.0.1", (first, first + 3))).getsockname()[1] for _ in range(4)]
        assert sorted(taken) == list(range(first, first + 4))
        with pytest.raises(AddressError) as caught:
            bind_in_range("127.0.0.1", (first, first + 3))
    fields = caught.value.fields
    assert (fields["host"], fields["port_range"]) == ("127.0.0.1", [first, first + 3])
    assert f"{first}-{first + 3}" in caught.value.message
    assert "127.0.0.1" in caught.value.message


def test_the_start_is_random(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(3)
    monkeypatch.setattr(secrets, "randbelow", lambda count: count - 1)
    with (
        bind_in_range("127.0.0.1", (first, first + 2)) as last,
        bind_in_range("127.0.0.1", (first, first + 2)) as wrapped,
    ):
        assert last.getsockname()[1] == first + 2
        assert wrapped.getsockname()[1] == first


def test_the_socket_listens_and_is_not_inherited() -> None:
    first = free_ports(1)
    with bind_in_range("127.0.0.1", (first, first)) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        assert not sock.get_inheritable()
        with socket.create_connection(("127.0.0.1", first), WAIT):
            sock.settimeout(WAIT)
            sock.accept()[0].close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104  it is the one in the way
def test_a_port_somebody_listens_on_is_taken(host: str) -> None:
    first = free_ports(1)
    with socket.create_server((host, first)), pytest.raises(AddressError):
        bind_in_range("127.0.0.1", (first, first))


def test_a_port_in_time_wait_is_free() -> None:
    first = free_ports(1)
    with bind_in_range("127.0.0.1", (first, first)) as sock:
        sock.settimeout(WAIT)
        with socket.create_connection(("127.0.0.1", first), WAIT) as client:
            served, _ = sock.accept()
            served.settimeout(WAIT)
            served.close()  # the side that closes first keeps TIME_WAIT
            assert client.recv(1) == b""
    states = [c.status for c in psutil.net_connections("tcp4") if c.laddr and c.laddr.port == first]
    assert psutil.CONN_TIME_WAIT in states
    bind_in_range("127.0.0.1", (first, first)).close()


def test_a_host_that_is_not_ours() -> None:
    with pytest.raises(AddressError) as caught:
        bind_in_range("203.0.113.1", (28444, 28943))
    assert caught.value.fields["host"] == "203.0.113.1"


def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(AddressError):
        bind_in_range("no such host", (28444, 28943))


def test_ipv6_loopback() -> None:
    if not any("::1" in texts for texts in host_addresses().values()):
        pytest.skip("this host has no IPv6")
    with bind_in_range("::1", (28444, 28943)) as sock:
        assert sock.family == socket.AF_INET6
        assert sock.getsockname()[0] == "::1"
