"""Authentication of every request: who asks, from where; and the headers of every reply for browsers."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response

from jobpipe.control.page.browser_sessions import BrowserSessions
from jobpipe.control.permissions import Caller, Right
from jobpipe.control.rest.problem_json import PROBLEM, problem_of
from jobpipe.errors import JobpipeError, LinkClosed, NotAuthorized
from jobpipe.net.servers.accepted_connection import AcceptedConnection

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CALLER = "caller"  # in the state of a request: the jobpipe.control.permissions.Caller
PEER = "peer"  # the jobpipe.net.servers.accepted_connection.AcceptedConnection that asks, which the listener put there
CALLER_NOW = "caller_now"  # returns the caller as it is known now; None once there is no right any more
LET_IN = "let_in"  # called, without arguments, for a request that has a right
REFUSED = "refused"  # why the listener refuses it, if it does
PUBLIC = frozenset({"/health"})
UI = "/ui/"  # what is below it, and "/", is for browsers
SIGN_IN = f"{UI}sign-in"
OPEN_UI = (SIGN_IN, f"{UI}static/")  # needs no right
SAFE = frozenset({"GET", "HEAD"})
CLOSE = {"connection": "close", "retry-after": "1"}
HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # without any, a form would not say its Origin
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Identities(Protocol):
    """How it is known who makes a request."""

    def caller(self, headers: Headers, peer_names: Collection[str]) -> Caller | None:
        """Return who asks, with the right; None for a stranger."""


@dataclass(frozen=True)
class Tokens:
    """Identity on loopback: one token for each right, in the header Authorization, which no browser sends by itself.

    Attributes:
        sessions: of browsers, which have a cookie instead; None where there is no page.
    """

    tokens: Mapping[Right, str]
    sessions: BrowserSessions | None = None

    def caller(self, headers: Headers, peer_names: Collection[str]) -> Caller | None:
        """Return who has a bearer token, one for each right, which do not tell people apart; or a browser's session."""
        if "authorization" not in headers:
            return None if self.sessions is None else self.sessions.caller("; ".join(headers.getlist("cookie")))
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given, found = token.strip().encode(), None
        for right, known in self.tokens.items():
            if hmac.compare_digest(given, known.encode()):
                found = right
        return Caller(found, "token") if scheme.lower() == "bearer" and found is not None else None


class AuthMiddleware:
    """Lets requests through to ``app`` that name one of ``hosts``, come from no page of another site, and have a right.

    Args:
        hosts: what the header Host may be, exactly, lower-case: a page of another name that resolves to this address
            (DNS rebinding) does not get through.
        scheme: ``http`` or ``https``.
        open_ui: answers browsers that have no right yet: it lets them sign in. None where there is no page.
    """

    def __init__(
        self,
        app: App,
        identities: Identities,
        *,
        hosts: Collection[str],
        scheme: str,
        open_ui: App | None = None,
    ) -> None:
        self._app = app
        self._open_ui = open_ui
        self._identities = identities
        self._hosts = frozenset(hosts)
        self._origins = frozenset(f"{scheme}://{host}" for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._instead(scope) or self._app)(scope, receive, guarded)

    def _instead(self, scope: Scope) -> App | None:
        """Return what answers a request instead of the application; None: it may have it."""
        if (error := scope["state"].get(REFUSED)) is not None:
            return _answer(error, 401 if isinstance(error, NotAuthorized) else 503, CLOSE)
        peer: AcceptedConnection = scope["state"][PEER]
        if peer.is_due:
            return _answer(connection_ends(peer), 503, CLOSE)
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return _refusal(421, "the request names another host than this server; use the address that it printed")
        safe = scope["method"] in SAFE
        if not safe and (why := self._foreign(headers)) is not None:
            log.warning("a request that %s was refused", why)
            return _refusal(403, f"the request {why}; changes are taken from programs")
        path: str = scope["path"]
        if path in PUBLIC and safe:
            return None
        caller = self._identities.caller(headers, peer.names)
        if self._open_ui is not None and path.startswith(OPEN_UI):
            is_done = path == SIGN_IN and safe and caller is not None and not scope["query_string"]
            return RedirectResponse("/", 303) if is_done else self._open_ui
        if caller is None:
            if self._open_ui is not None and safe and wants_page(path, headers):
                return self._open_ui
            return _refusal(
                401,
                "the control server does not know who asks; give its token, or a certificate that the server's "
                "jobpipe.server.access names",
            )
        if (why := _not_of_our_page(headers, safe=safe, has_cookie=caller.until is not None)) is not None:
            log.warning("a request of a browser that %s was refused", why)
            return _refusal(403, f"the request {why}; open the page of this server")
        scope["state"][CALLER] = caller
        scope["state"][CALLER_NOW] = lambda: self._identities.caller(headers, peer.names)
        scope["state"][LET_IN]()
        return None

    def _foreign(self, headers: Headers) -> str | None:
        """Return how a request shows that another site's page made it, as a phrase."""
        origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
        if any(origin.lower() not in self._origins for origin in origins):
            return "comes from another origin"
        if any(site.lower() not in ("same-origin", "none") for site in sites):
            return "comes from another site"
        return None


def wants_page(path: str, headers: Headers) -> bool:
    """Tell whether a browser asks for a page: programs get JSON at ``/``."""
    return path.startswith(UI) or (path == "/" and "text/html" in headers.get("accept", ""))


def _not_of_our_page(headers: Headers, *, safe: bool, has_cookie: bool) -> str | None:
    """Return how a request shows that a browser made it for another page than ours, as a phrase.

    Cookies go along with requests of pages of other ports of this host, certificates with those of any page. All
    browsers send Origin with a change; programs, which have no cookie, do not.
    """
    if not safe:
        return "does not say from which page it comes" if has_cookie and "origin" not in headers else None
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "navigate")
    return None if site in ("same-origin", "none") or mode == "navigate" else "comes from another site"


def connection_ends(peer: AcceptedConnection) -> LinkClosed:
    """Return the error for a request on a connection that has to end."""
    return LinkClosed(
        "the control server ends this connection, since certificates have changed or it is old; connect again",
        peer=peer.address,
    )


def _refusal(status: int, what: str) -> Response:
    return _answer(NotAuthorized(what), status, {"www-authenticate": 'Bearer realm="jobpipe"'} if status == 401 else {})


def _answer(error: JobpipeError, status: int, headers: Mapping[str, str]) -> Response:
    return Response(problem_of(error, status).model_dump_json(), status, headers, media_type=PROBLEM)
