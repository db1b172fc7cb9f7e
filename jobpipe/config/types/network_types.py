"""Types of values that only keys of network and registry have: ports, hosts, addresses, paths, classes, ACLs."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from urllib.parse import urlsplit

from jobpipe.config.types.value_types import BadValueError, ValueType, plain_text, plain_whole, text_of_parts

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\.?", re.ASCII)
_HANDLER = re.compile(r"zookeeper|[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*", re.ASCII)
_ZNODE = re.compile(r"(?:/[A-Za-z0-9._-]+)+", re.ASCII)
# As jobpipe_registry.credentials.parse_acl, which may not be imported here and checks it again.
_GRANT = r"\s*(?:auth|open|[a-z0-9]+:.+?:[crwda]+)\s*"
_ACL = re.compile(rf"{_GRANT}(?:,{_GRANT})*")


def _parse_port_range(raw: object, _base: Path) -> tuple[int, int]:
    if isinstance(raw, (list, tuple)) and len(raw) == 2:
        ends = [plain_whole(end) for end in raw]
    elif isinstance(raw, str):
        ends = [plain_whole(end) for end in raw.split("-")]
    else:
        ends = [plain_whole(raw)]
    if len(ends) > 2 or not 1 <= ends[0] <= ends[-1] <= 65535:
        raise BadValueError
    return ends[0], ends[-1]


def _format_port_range(value: tuple[int, int]) -> str:
    return str(value[0]) if value[0] == value[1] else f"{value[0]}-{value[1]}"


def _parse_subnet(raw: object, _base: Path) -> str:
    text = plain_text(raw)
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError as error:
        raise BadValueError from error


def _parse_host(raw: object, _base: Path) -> str:
    text = plain_text(raw)
    if _HOST.fullmatch(text) is None:
        try:
            ipaddress.ip_address(text)
        except ValueError as error:
            raise BadValueError from error
    return text


def _parse_connect(raw: object, base: Path) -> str:
    text = text_of_parts(raw)
    if text == "embedded":
        return text
    servers, slash, chroot = text.partition("/")
    if slash:
        _parse_znode(slash + chroot, base)
    parts = [part.strip() for part in servers.split(",")]
    for part in parts:
        host, _, port = part.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise BadValueError
        _parse_host(host, base)
        if not 1 <= plain_whole(port) <= 65535:
            raise BadValueError
    return ",".join(parts) + slash + chroot


def _parse_handler(raw: object, _base: Path) -> str:
    text = plain_text(raw)
    if _HANDLER.fullmatch(text) is None:
        raise BadValueError
    return text


def _parse_znode(raw: object, _base: Path) -> str:
    text = plain_text(raw)
    parts = text.split("/")
    if _ZNODE.fullmatch(text) is None or "." in parts or ".." in parts or parts[1] == "zookeeper":
        raise BadValueError
    return text


def _parse_http_url(raw: object, _base: Path) -> str:
    text = plain_text(raw)
    try:
        parts = urlsplit(text)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise BadValueError from error
    if not named or parts.scheme not in ("http", "https") or parts.username is not None or parts.password is not None:
        raise BadValueError
    if not text.isascii() or not text.isprintable() or " " in text or parts.query or parts.fragment or len(text) > 2000:
        raise BadValueError
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        raise BadValueError
    return text


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parse_acl(raw: object, _base: Path) -> str:
    text = text_of_parts(raw)
    if _ACL.fullmatch(text) is None:
        raise BadValueError
    return text


PORT_RANGE = ValueType(
    "port range",
    "a port or a range of ports, such as 28444-28943, within 1-65535",
    _parse_port_range,
    _format_port_range,
)
SUBNET = ValueType("subnet", "a subnet such as 10.162.222.0/24 or fd00::/64", _parse_subnet)
HOST = ValueType("host", "a host name or an IP address, without a port", _parse_host)
CONNECT = ValueType(
    "registry address",
    "embedded, or host:port,host:port of an ensemble, followed by /path for a chroot",
    _parse_connect,
)
HANDLER = ValueType("registry handler", "zookeeper, or package.module:Class", _parse_handler)
ZNODE = ValueType(
    "registry path", "an absolute path such as /jobpipe/topics, outside /zookeeper, without . and ..", _parse_znode
)
ACL = ValueType(
    "ACL", "auth, open, or scheme:id:permissions (of c r w d a), or several of these, separated by commas", _parse_acl
)
HTTP_URL = ValueType(
    "URL", "https://HOST/PATH, or http of loopback, without a user, a password or a query", _parse_http_url
)
