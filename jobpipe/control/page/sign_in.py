"""What a browser gets that has no right yet: the form to sign in, and the files that all pages need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from jobpipe.control.page.browser_sessions import BrowserSessions
from jobpipe.control.page.rendering import render
from jobpipe.control.permissions import Right

STATIC = Path(__file__).parent / "static"
BODY_BYTES = 4096
_MEDIA = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class SignIn:
    """The application; ``sessions`` is None where certificates say who asks."""

    def __init__(self, sessions: BrowserSessions | None) -> None:
        self._sessions = sessions
        # They are read once, so that no request names a file.
        self._files: Mapping[str, tuple[bytes, str]] = {
            path.name: (path.read_bytes(), _MEDIA[path.suffix]) for path in STATIC.iterdir() if path.suffix in _MEDIA
        }
        self.app = Starlette(
            routes=[
                Route("/ui/static/{name}", self._file),
                Route("/ui/sign-in", self._with_code, methods=["GET"]),
                Route("/ui/sign-in", self._with_token, methods=["POST"]),
                Route("/ui/sign-in", self._sign_out, methods=["DELETE"]),
                Route("/{path:path}", self._stranger),
            ]
        )

    async def _file(self, request: Request) -> Response:
        found = self._files.get(request.path_params["name"])
        if found is None:
            return Response("not found\n", 404, media_type="text/plain")
        return Response(found[0], media_type=found[1])

    async def _with_code(self, request: Request) -> Response:
        """Sign in by the address that the server printed."""
        code = request.query_params.get("code", "")
        if self._sessions is None or not code or request.method != "GET":
            return self._form(200)
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return self._form(403, "Another page led here. Paste the address into the browser's own bar.")
        right = self._sessions.take_code(code)
        if right is None:
            return self._form(403, "That address has been used, or is too old.")
        return self._signed_in(right, self._sessions)

    async def _with_token(self, request: Request) -> Response:
        """Sign in by a token that was typed into the form."""
        content = bytearray()
        try:
            async for part in request.stream():
                content += part
                if len(content) > BODY_BYTES:
                    return self._form(413, "That is no token.")
        except ClientDisconnect:
            return self._form(400)
        if self._sessions is None:
            return self._form(403)
        given = parse_qs(content.decode("utf-8", "replace"), max_num_fields=4).get("token", [""])[0]
        right = self._sessions.right_of_token(given.strip())
        if right is None:
            return self._form(403, "The server does not have that token.")
        return self._signed_in(right, self._sessions)

    async def _sign_out(self, request: Request) -> Response:
        headers = {} if self._sessions is None else {"set-cookie": self._sessions.no_cookie()}
        return Response(status_code=204, headers=headers)

    async def _stranger(self, request: Request) -> Response:
        return self._form(401)

    def _form(self, status: int, problem: str = "") -> Response:
        by_certificate = self._sessions is None
        text = render("sign_in.html", signed_in=False, by_certificate=by_certificate, problem=problem)
        return Response(text, status, media_type="text/html")

    def _signed_in(self, right: Right, sessions: BrowserSessions) -> Response:
        # A redirection would go on from the page that led here, for which the cookie is another site's.
        text = render("sign_in.html", signed_in=True, by_certificate=False, problem="")
        return Response(text, headers={"set-cookie": sessions.cookie(right)}, media_type="text/html")
