"""How a browser signs in on loopback: a code or a token, once, for a cookie that proves the same right.

A cookie is ``RIGHT.UNTIL.NONCE.MAC``, signed with a key made of the right's token. So the server keeps none of them,
they outlive it, and all of them end when the token is replaced. Browsers send it with requests of pages of this site
alone (SameSite=Strict), and no script can read it (HttpOnly).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jobpipe.control.permissions import Caller, Right

SESSION_SECONDS = 12 * 3600
CODE_SECONDS = 15 * 60
CODES = 64  # that wait to be used; the oldest make room
MOST_COOKIES = 20  # of our name, that are looked at
_NONCE_BYTES = 16
_PURPOSE = b"jobpipe browser session, version 1"


@dataclass(frozen=True)
class _Code:
    right: Right
    until: float


class BrowserSessions:
    """Makes codes and cookies, and knows its own. Thread safe.

    Args:
        tokens: of the server, by right.
        port: of the server: cookies do not tell ports apart, and two servers of a host must not take each other's.
        clock: seconds since 1970.
    """

    def __init__(self, tokens: Mapping[Right, str], port: int, clock: Callable[[], float] = time.time) -> None:
        self._tokens = {right: token.encode() for right, token in tokens.items()}
        self._keys = {right: hmac.digest(token, _PURPOSE, "sha256") for right, token in self._tokens.items()}
        self._cookie = f"jobpipe-{port}"
        self._clock = clock
        self._lock = threading.Lock()
        self._codes: dict[str, _Code] = {}  # by their hashes, the oldest first

    def make_code(self, right: Right) -> str:
        """Return a code that signs one browser in, within :data:`CODE_SECONDS`."""
        code = secrets.token_urlsafe(24)
        with self._lock:
            while len(self._codes) >= CODES:
                del self._codes[next(iter(self._codes))]
            self._codes[_hash(code)] = _Code(right, self._clock() + CODE_SECONDS)
        return code

    def take_code(self, code: str) -> Right | None:
        """Return the right of a code, which cannot be used again; None for one that is wrong, used or too old."""
        with self._lock:
            found = self._codes.pop(_hash(code), None)
        return found.right if found is not None and self._clock() < found.until else None

    def right_of_token(self, token: str) -> Right | None:
        """Return the right of a token; None for a wrong one."""
        found = None
        for right, known in self._tokens.items():
            if hmac.compare_digest(token.encode(), known):
                found = right
        return found

    def cookie(self, right: Right) -> str:
        """Return the header ``Set-Cookie`` of a new session."""
        until = int(self._clock()) + SESSION_SECONDS
        signed = f"{right}.{until}.{secrets.token_urlsafe(_NONCE_BYTES)}"
        return self._header(f"{signed}.{self._mac(right, signed)}", SESSION_SECONDS)

    def no_cookie(self) -> str:
        """Return the header ``Set-Cookie`` that ends a session in its browser."""
        return self._header("", 0)

    def caller(self, cookies: str) -> Caller | None:
        """Return who has a session, by the header ``Cookie``; None for a stranger."""
        # Other programs of this host set what they like, also twice and by our name; a parser would stop there.
        pairs = (part.strip().partition("=") for part in cookies.split(";"))
        values = [value for name, _, value in pairs if name == self._cookie][:MOST_COOKIES]
        return next(filter(None, map(self._caller, values)), None)

    def _caller(self, cookie: str) -> Caller | None:
        signed, _, mac = cookie.rpartition(".")
        name, _, rest = signed.partition(".")
        until = rest.partition(".")[0]
        if name not in list(Right) or not (until.isascii() and until.isdecimal() and len(until) < 12):
            return None
        right = Right(name)
        if right not in self._keys or not hmac.compare_digest(mac.encode(), self._mac(right, signed).encode()):
            return None
        return Caller(right, "browser", float(until)) if self._clock() < float(until) else None

    def _mac(self, right: Right, signed: str) -> str:
        return hmac.new(self._keys[right], signed.encode(), "sha256").hexdigest()

    def _header(self, value: str, seconds: int) -> str:
        return f"{self._cookie}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict"


def sign_in_path(code: str) -> str:
    """Return the path of a server that signs a browser in."""
    return f"/ui/sign-in?code={code}"


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
