"""What is stored in the nodes: small JSON objects with a version, strict in types, lenient to unknown fields.

Records are read from nodes that any client with write permission may have filled, so every value is checked, and so is
the size before anything is parsed. A record that exists obeys the rules: they hold at construction, too.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from jobpipe_registry.host.process_identity import PidScope
from jobpipe_registry.names import MAX_PARALLELISM
from jobpipe_registry.registry_errors import BadRecord

MAX_RECORD_BYTES = 4096  # a listing of hundreds stays small; a record of ours has about 300 bytes
RECORD_VERSION = 1
MAX_EPOCH = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly: epochs travel as JSON numbers."""

MAX_STEP = 1_000_000
"""By how much the registry's epoch may lie above that of the topic's log.

Each take-over raises it by one and takes a good part of a second, so a registry would have to see a take-over each
second for eleven days that never reach the log. A larger step is not ours: it was written by hand, and going on
from there would use up the numbers that the topic has left.
"""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")


def require_integer(record: object, field: str, low: int, high: int) -> None:
    """Raise BadRecord unless a field is an integer in this range."""
    value = getattr(record, field)
    if type(value) is not int or not low <= value <= high:  # bool is an int, but not here
        raise BadRecord(field, f"an integer from {low} to {high}")


def require_text(record: object, field: str, longest: int = 255, *, least: int = 1) -> None:
    """Raise BadRecord unless a field is printable text of such a length."""
    value = getattr(record, field)
    if not isinstance(value, str) or not least <= len(value) <= longest or not value.isprintable():
        raise BadRecord(field, f"{least} to {longest} printable characters")


def require_seconds(record: object, field: str) -> None:
    """Raise BadRecord unless a field is a time: seconds since 1970, made a float."""
    value = getattr(record, field)
    if type(value) is int and abs(value) < 2**53:
        object.__setattr__(record, field, value := float(value))  # JSON writers may drop the fraction
    if type(value) is not float or not math.isfinite(value) or value < 0:
        raise BadRecord(field, "seconds since 1970")


def _endpoint(record: object, field: str) -> None:
    require_text(record, field, 261)
    host, _, port = getattr(record, field).rpartition(":")
    right_port = port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535
    if not right_port or not (_is_name(host) or (host[:1] == "[" and host[-1:] == "]" and _is_ipv6(host[1:-1]))):
        raise BadRecord(field, "host:port, or [IPv6 address]:port")


def _host(record: object, field: str) -> None:
    require_text(record, field)
    if not _is_name(getattr(record, field)) and not _is_ipv6(getattr(record, field)):
        raise BadRecord(field, "a host name or an IP address")


def _is_name(host: str) -> bool:
    """Whether it may be a host name or an IPv4 address: its form must not break a client that dials it."""
    return _NAME.fullmatch(host) is not None


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class Record:
    """JSON form of a frozen dataclass."""

    def to_bytes(self) -> bytes:
        """Return the JSON form, UTF-8.

        Raises:
            BadRecord: it has more than ``MAX_RECORD_BYTES`` bytes.
        """
        fields = {"version": RECORD_VERSION, **dataclasses.asdict(self)}  # type: ignore[call-overload]
        data = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
        if len(data) > MAX_RECORD_BYTES:
            raise BadRecord("", f"at most {MAX_RECORD_BYTES} bytes")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the record of a node; unknown fields are ignored.

        Raises:
            BadRecord: too large, no JSON object, another version, a field is missing or has a wrong type or value.
        """
        if len(data) > MAX_RECORD_BYTES:
            raise BadRecord("", f"at most {MAX_RECORD_BYTES} bytes")
        try:
            fields: Any = json.loads(data, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise BadRecord("", "a JSON object") from error
        if not isinstance(fields, dict):
            raise BadRecord("", "a JSON object")
        version = fields.get("version")
        if type(version) is not int or version != RECORD_VERSION:
            raise BadRecord("version", str(RECORD_VERSION))
        values = {}
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if field.name in fields:
                values[field.name] = fields[field.name]
            elif field.default is dataclasses.MISSING:
                raise BadRecord(field.name, "a value")
        return cls(**values)


@dataclass(frozen=True)
class RegisterRecord(Record):
    """One ``parallel-k`` node: partition ``index`` of ``parallelism``, and whom to ask for it.

    ``coordinator`` is the control endpoint, "host:port", the same as ``host`` and ``port``; ``data`` is the data
    endpoint. ``instance`` is random, one per publisher process.

    Raises:
        BadRecord: a field breaks its rule.
    """

    host: str
    port: int
    parallelism: int
    index: int
    coordinator: str
    data: str
    epoch: int
    instance: str
    ssl: bool

    def __post_init__(self) -> None:
        _host(self, "host")
        require_integer(self, "port", 1, 65535)
        require_integer(self, "parallelism", 1, MAX_PARALLELISM)
        require_integer(self, "index", 1, self.parallelism)
        _endpoint(self, "coordinator")
        _endpoint(self, "data")
        require_integer(self, "epoch", 0, MAX_EPOCH)
        require_text(self, "instance", 128)
        if type(self.ssl) is not bool:
            raise BadRecord("ssl", "true or false")


@dataclass(frozen=True)
class OwnerRecord(Record):
    """Who publishes a topic. ``started`` is the process's start time, seconds since 1970, as psutil gives it.

    Place, pid and start time together prove that a process is dead, also where its pid was given to another one.
    ``boot`` and ``pid_namespace`` belong to the place, see :class:`.process_identity.PidScope`; ``ticks`` is the start
    time that no change of the clock moves. They are empty, or 0, where the system does not tell them.

    Raises:
        BadRecord: a field breaks its rule.
    """

    host: str
    pid: int
    started: float
    endpoint: str
    epoch: int
    instance: str
    name: str
    boot: str = ""
    pid_namespace: int = 0
    ticks: int = 0

    @property
    def place(self) -> PidScope:
        return PidScope(self.host, self.boot, self.pid_namespace)

    def __post_init__(self) -> None:
        require_text(self, "host")
        require_integer(self, "pid", 1, 2**31 - 1)
        require_seconds(self, "started")
        _endpoint(self, "endpoint")
        require_integer(self, "epoch", 0, MAX_EPOCH)
        require_text(self, "instance", 128)
        require_text(self, "name")
        require_text(self, "boot", 64, least=0)
        require_integer(self, "pid_namespace", 0, 2**63 - 1)
        require_integer(self, "ticks", 0, 2**63 - 1)


def parse_epoch(data: bytes) -> int:
    """Return a stored epoch.

    Raises:
        BadRecord: it is no decimal number from 0 to :data:`MAX_EPOCH`; guessing would break fencing.
    """
    if not 1 <= len(data) <= len(str(MAX_EPOCH)) or not data.isdigit() or int(data) > MAX_EPOCH:
        raise BadRecord("epoch", f"a decimal number up to {MAX_EPOCH}")
    return int(data)
