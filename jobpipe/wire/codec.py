"""Control payloads: ``u32 length of the JSON | JSON object, UTF-8 | blob``.

Unknown keys are ignored, so that a later minor change may add some; the types of known ones are strict.
DATA has no control payload: it is raw bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from jobpipe.errors import LocalProtocolError, RemoteProtocolError, to_fault
from jobpipe.wire.frames import Kind
from jobpipe.wire.wire_messages import (
    ROLES,
    Data,
    Fault,
    Goodbye,
    Hello,
    Message,
    Part,
    Ping,
    Pong,
    Reply,
    Request,
    SharedJson,
    Welcome,
)

MAX_ID = 2**53 - 1  # the largest integer every JSON reader keeps exactly
MAX_FAULT_TEXT = 2000
_VALUE = 64  # bytes that a value of JSON takes in memory, besides its text: an empty list or object
_LENGTH = struct.Struct("!I")
T = TypeVar("T")


def fault(request_id: int | None, error: BaseException) -> Fault:
    """Return the FAULT that carries an error; fields that are not JSON travel as text, long texts are cut.

    A link fault (no id) keeps no fields if it would not fit the limit before WELCOME.
    """
    code, text, fields = to_fault(error)
    text = text[:MAX_FAULT_TEXT]
    try:
        safe = json.loads(json.dumps(fields, default=str, allow_nan=False))
        size = len(_encoder.encode(safe))
    except (TypeError, ValueError, RecursionError):
        safe, size = {}, 0
    if request_id is None:
        text = text[:1000] if len(_encoder.encode(text[:1000])) < 2400 else text[:200]  # escaped, one may be 12 bytes
        safe = safe if size < 1024 else {}
    return Fault(request_id, code, text, safe)


# ---------------------------------------------------------------------------------------------------------- encoding

# ASCII only, so that even a lone surrogate passes; sorted, so that the same message is always the same bytes.
_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def encode(message: Message) -> tuple[bytes, bytes]:
    """Return the control payload of a message as (length and JSON, blob): large blobs are not copied.

    Raises:
        LocalProtocolError: a value in it is not JSON.
    """
    blob = b""
    body: dict[str, Any]
    if isinstance(message, Reply) and isinstance(message.result, SharedJson) and message.result.text:
        head = b'{"id":%d,"result":%b}' % (message.id, message.result.text)
        return _LENGTH.pack(len(head)) + head, message.blob
    match message:
        case Request(id, op, args, blob, upload):
            body = {"args": args, "id": id, "op": op}
            if upload:
                body["upload"] = upload
        case Reply(id, result, blob):
            body = {"id": id, "result": result}
        case Part(id, header):
            body = {"header": header, "id": id}
        case Fault(request_id, code, text, fields):
            body = {"code": code, "fields": fields, "id": request_id, "message": text}
        case Ping(nonce) | Pong(nonce):
            body = {"nonce": nonce}
        case Goodbye(reason):
            body = {"reason": reason}
        case Hello():
            body = {name: getattr(message, name) for name in Hello.__dataclass_fields__}
            if not message.proof:
                del body["proof"]
        case Welcome():
            body = {name: getattr(message, name) for name in Welcome.__dataclass_fields__}
        case Data():
            raise LocalProtocolError("DATA has no control payload")
    try:
        head = _encoder.encode(body).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError(f"{message.kind.name} is not JSON: {error}", kind=message.kind.name) from error
    return _LENGTH.pack(len(head)) + head, blob


def share(result: Mapping[str, Any]) -> SharedJson:
    """Return a JSON object that is encoded now, for many replies.

    Raises:
        LocalProtocolError: a value in it is not JSON.
    """
    try:
        text = _encoder.encode(result).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError(f"a result is not JSON: {error}") from error
    shared = SharedJson(result)
    shared.text = text
    return shared


def decode(kind: Kind, payload: bytes, weight: int = 0) -> Message:
    """Return the message of a payload whose CRC was right; ``weight`` is that of a REQUEST, see :func:`weight_of`.

    Raises:
        RemoteProtocolError: it does not hold what its kind demands.
    """
    if kind is Kind.DATA:
        if not payload:
            raise RemoteProtocolError("DATA frame without a byte", kind="DATA")
        return Data(payload)
    if len(payload) < _LENGTH.size:
        raise RemoteProtocolError(f"{kind.name} payload of {len(payload)} bytes is too short", kind=kind.name)
    (length,) = _LENGTH.unpack_from(payload)
    end = _LENGTH.size + length
    if end > len(payload):
        raise RemoteProtocolError(
            f"{kind.name} announces {length} bytes of JSON, {len(payload) - 4} are there", kind=kind.name
        )
    if end < len(payload) and kind not in (Kind.REQUEST, Kind.REPLY):
        raise RemoteProtocolError(f"{kind.name} must not carry a blob", kind=kind.name)
    try:
        body = _decoder.decode(payload[_LENGTH.size : end].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"{kind.name} holds no JSON: {error}", kind=kind.name) from error
    if not isinstance(body, dict):
        raise RemoteProtocolError(f"{kind.name} holds no JSON object", kind=kind.name)
    return _build(kind, _Body(kind, body), payload[end:], weight)


def blob_bytes(payload: bytes) -> int:
    """Return how many bytes follow the JSON of a control payload; 0 if its lengths contradict each other."""
    if len(payload) < _LENGTH.size:
        return 0
    return max(0, len(payload) - _LENGTH.size - int(_LENGTH.unpack_from(payload)[0]))


def weight_of(payload: bytes) -> int:
    """Return about how many bytes a payload takes in memory once it is decoded: 3 bytes of JSON may make 64."""
    end = _LENGTH.size + (_LENGTH.unpack_from(payload)[0] if len(payload) >= _LENGTH.size else 0)
    count = payload.count
    return len(payload) + _VALUE * (count(b",", 0, end) + count(b"[", 0, end) + count(b"{", 0, end))


@dataclass(frozen=True, slots=True)
class _Body:
    """The JSON object of a payload, read with strict types."""

    kind: Kind
    values: Mapping[str, Any]

    def _wrong(self, what: str, key: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self.kind.name}: {what}", kind=self.kind.name, key=key)

    def get(self, key: str, type_: type[T]) -> T:
        value = self.values.get(key)
        if type(value) is not type_:  # not isinstance: True is no number
            raise self._wrong(f"{key} must be {type_.__name__}", key)
        return value

    def optional(self, key: str, type_: type[T]) -> T | None:
        return None if self.values.get(key) is None else self.get(key, type_)

    def number(self, key: str, low: int = 0) -> int:
        value = self.get(key, int)
        if not low <= value <= MAX_ID:
            raise self._wrong(f"{key} {value} is out of range", key)
        return value

    def versions(self) -> tuple[int, int]:
        value = self.get("versions", list)
        if len(value) != 2 or any(type(item) is not int for item in value) or not 0 < value[0] <= value[1] < 256:
            raise self._wrong("versions is no [lowest, highest]", "versions")
        return value[0], value[1]

    def role(self) -> str:
        value = self.get("role", str)
        if value not in ROLES:
            raise self._wrong("unknown role", "role")
        return value


def _build(kind: Kind, body: _Body, blob: bytes, weight: int) -> Message:
    match kind:
        case Kind.REQUEST:
            upload = body.number("upload") if "upload" in body.values else 0
            return Request(body.number("id", 1), body.get("op", str), body.get("args", dict), blob, upload, weight)
        case Kind.REPLY:
            return Reply(body.number("id", 1), body.get("result", dict), blob)
        case Kind.PART:
            return Part(body.number("id", 1), body.get("header", dict))
        case Kind.FAULT:
            request_id = None if body.values.get("id") is None else body.number("id", 1)
            return Fault(request_id, body.get("code", str), body.get("message", str), body.get("fields", dict))
        case Kind.PING:
            return Ping(body.number("nonce"))
        case Kind.PONG:
            return Pong(body.number("nonce"))
        case Kind.GOODBYE:
            return Goodbye(body.get("reason", str))
        case Kind.HELLO:
            return Hello(
                topic=body.get("topic", str),
                role=body.role(),
                name=body.optional("name", str),
                instance=body.get("instance", str),
                epoch=body.number("epoch"),
                log=body.optional("log", str),
                versions=body.versions(),
                heartbeat=body.get("heartbeat", bool),
                proof=body.optional("proof", str) or "",
            )
        case _:
            return Welcome(
                topic=body.get("topic", str),
                log=body.get("log", str),
                epoch=body.number("epoch"),
                instance=body.get("instance", str),
                version=body.number("version", 1),
            )
