"""REST: requests are checked by the table of routes, answered by threads; errors become problem documents."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as StarletteRoute

from jobpipe.control.control_service import Control
from jobpipe.control.page.browser_sessions import BrowserSessions
from jobpipe.control.page.live_updates import LiveUpdates
from jobpipe.control.page.page_snapshot import PageSnapshots
from jobpipe.control.page.pages import MAX_ADDRESS, Address, Pages, asks_coordinators, is_rows
from jobpipe.control.page.rendering import RenderedPage, render
from jobpipe.control.page.rows.rows_page import RowsForm, refused_page
from jobpipe.control.page.rows.rows_requests import RowsRequests
from jobpipe.control.permissions import Caller, Right
from jobpipe.control.rest.auth_middleware import (
    CALLER,
    CALLER_NOW,
    PEER,
    UI,
    Receive,
    Scope,
    Send,
    connection_ends,
    wants_page,
)
from jobpipe.control.rest.openapi import openapi
from jobpipe.control.rest.problem_json import PROBLEM, problem_of
from jobpipe.control.rest.rest_handlers import OPENAPI, Call, Handlers
from jobpipe.control.rest.routing_table import EVENTS, INDEX, METRICS, ROUTES, Query, QueryKind, Route
from jobpipe.control.rest.server_sent_events import EventStreams
from jobpipe.errors import ConfigError, JobpipeError, NotAuthorized, PipelineNotFound, WaitTimeout, short_repr
from jobpipe.jobs.allowed_paths import AllowedPaths
from jobpipe.metrics.metric_samples import LineageSample

log = logging.getLogger(__name__)
T = TypeVar("T")

BODY_BYTES = 4 << 20  # a file of 1 MiB, as JSON
THREADS = 8
SCRAPES = 2  # at a time: they may wait for the registry, and must leave the other threads to others
WAITING = 64  # requests that have, or wait for, a thread of a pool
PLACES = (
    ("Graph", "/"),
    ("Jobs", "/ui/jobs"),
    ("Topics", "/ui/topics"),
    ("Ledger", "/ui/ledger"),
    ("Schedules", "/ui/schedules"),
    ("Dead letters", "/ui/dead-letters"),
    ("Alerts", "/ui/events"),
)


class _HttpError(Exception):
    """An error that HTTP has a status of its own for."""

    def __init__(self, status: int, error: JobpipeError) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error


class Api:
    """The application over one core, and its threads, which :meth:`close` ends.

    Args:
        namespace: that the page names.
        streams: of events, at a time.
    """

    def __init__(
        self, control: Control, roots: AllowedPaths, *, namespace: str = "", streams: int | None = None
    ) -> None:
        self._handlers = Handlers(control, roots)
        self._streams = EventStreams(control) if streams is None else EventStreams(control, streams)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="rest")
        self._scrapers = ThreadPoolExecutor(SCRAPES, thread_name_prefix="metrics")
        self._page_pool = ThreadPoolExecutor(THREADS, thread_name_prefix="pages")
        self._waiting: Counter[ThreadPoolExecutor] = Counter()
        self._document = _document()
        self._pages = Pages(control, PageSnapshots(control, namespace))
        self._live = LiveUpdates(control, self._pages)
        self._rows = RowsRequests(control)
        self.app = Starlette(
            routes=[
                *(self._route(route) for route in ROUTES),
                StarletteRoute(f"{UI}live", self._live_page, methods=["GET"]),
                StarletteRoute(f"{UI}topics/{{topic}}/rows.{{kind}}", self._rows_file, methods=["GET"]),
                StarletteRoute(f"{UI}{{path:path}}", self._page, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _http_problem},
        )

    def sign_in_with(self, sessions: BrowserSessions | None) -> None:
        """Let callers make codes for browsers."""
        self._handlers.sessions = sessions

    def report_lineage(self, lineage: Callable[[], LineageSample] | None) -> None:
        """Let metrics say how lineage events stand."""
        self._handlers.lineage = lineage

    def end_streams(self) -> None:
        """Let streams end, in a second or so; others are refused."""
        self._streams.end()
        self._live.end()

    def close(self) -> None:
        """End the threads; requests that have one are done first."""
        self._streams.close()
        self._live.close()
        self._rows.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._scrapers.shutdown(wait=True, cancel_futures=True)
        self._page_pool.shutdown(wait=True, cancel_futures=True)

    def _route(self, route: Route) -> StarletteRoute:
        async def endpoint(request: Request) -> Response:
            if route is INDEX and wants_page(request.url.path, request.headers):
                return await self._page(request)
            try:
                return await self._answer(route, request)
            except _HttpError as error:
                return _problem(error.error, error.status)
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a document
                return _problem(error, None)

        return StarletteRoute(route.path, endpoint, methods=[route.method])

    async def _answer(self, route: Route, request: Request) -> Response:
        caller: Caller = getattr(request.state, CALLER, Caller(Right.VIEW))
        if route.right is not None and not caller.right.includes(route.right):
            raise NotAuthorized(
                f"this needs the right {route.right}, and the caller only has {caller.right}; use a token, or a "
                f"certificate, that may {route.right}",
                right=route.right.value,
            )
        query = _query(route, request)
        body = await _body(route, request)
        if (peer := getattr(request.state, PEER)).is_due:  # it may have taken its time
            raise _HttpError(503, connection_ends(peer))
        if route.path == OPENAPI:
            return Response(self._document, media_type="application/json")
        if route is EVENTS:
            return self._events(_last_event(request, int(query["after"] or 0)))
        if route is METRICS:
            accept = request.headers.get("accept", "")
            text, media = await self._in_thread(lambda: self._handlers.metrics(accept), self._scrapers)
            return Response(text, media_type=media)
        if (answer := route.answer) is None:
            raise RuntimeError(f"{route.path} has no answer")
        call = Call(path=request.path_params, query=query, body=body, caller=caller)
        found = await self._in_thread(lambda: _encoded(route, answer(self._handlers, call)))
        return Response(found, route.status, media_type="application/json" if route.reply is not None else None)

    async def _page(self, request: Request) -> Response:
        caller: Caller = getattr(request.state, CALLER)
        address = _address(request)
        try:
            if asks_coordinators(address):
                page = await self._rows.run(lambda: self._pages.render(address, caller))
            else:
                page = await self._in_thread(lambda: self._pages.render(address, caller), self._page_pool)
        except JobpipeError as error:
            return _problem(error, None)
        return self._html(request, page)

    def _html(self, request: Request, page: RenderedPage) -> Response:
        caller: Caller = getattr(request.state, CALLER)
        here = max((href for _, href in PLACES if f"{request.url.path}/".startswith(f"{href}/")), key=len, default="/")
        name = next(name for name, href in PLACES if href == here)
        text = render(
            "page.html", page=page, places=PLACES, here=name, right=caller.right, signed_in=caller.until is not None
        )
        return Response(text, page.status, media_type="text/html")

    async def _rows_file(self, request: Request) -> Response:
        topic, kind = request.path_params["topic"], request.path_params["kind"]
        query = request.query_params
        try:
            Address.of(_address(request))
            self._rows.take()
            try:
                return await self._rows.run(lambda: self._rows.read(topic, kind, query))
            except BaseException:
                self._rows.give_back()
                raise
        except PipelineNotFound as error:
            return _problem(error, 404)
        except JobpipeError as error:
            return self._html(request, refused_page(RowsForm.of(topic, query), error))
        except Exception as error:
            log.exception("an export of topic %s cannot be made", short_repr(topic))
            failed = JobpipeError(f"it cannot be made ({type(error).__name__}); the server's log says more")
            return self._html(request, refused_page(RowsForm.of(topic, query), failed))

    async def _live_page(self, request: Request) -> Response:
        caller_now, peer = getattr(request.state, CALLER_NOW), getattr(request.state, PEER)
        address, shape = (request.query_params.get(name, "")[:MAX_ADDRESS] for name in ("address", "shape"))
        if is_rows(address):
            return Response(status_code=204)  # a browser does not ask again
        if not self._live.take():
            return _problem(WaitTimeout("too many pages are open; close some"), 503)
        stream = self._live.stream(address, shape, caller_now, lambda: peer.is_due)
        return _LiveResponse(self._live, stream)

    async def _in_thread(self, work: Callable[[], T], pool: ThreadPoolExecutor | None = None) -> T:
        pool = pool or self._pool
        if self._waiting[pool] >= WAITING:
            raise WaitTimeout(f"server busy: {WAITING} requests are queued; try again in a moment")
        self._waiting[pool] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        finally:
            self._waiting[pool] -= 1

    def _events(self, after: int) -> Response:
        if not self._streams.take():
            raise WaitTimeout("too many clients follow the server's events; stop one, or try again later")
        return _EventsResponse(self._streams, after)


class _LiveResponse(StreamingResponse):
    """A page's stream, which gives its place back however it ends."""

    def __init__(self, live: LiveUpdates, stream: AsyncGenerator[bytes, None]) -> None:
        headers = {"x-accel-buffering": "no", "connection": "close"}
        super().__init__(stream, headers=headers, media_type="text/event-stream")
        self._live, self._stream = live, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._live.leave()
            await self._stream.aclose()


def _address(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


@cache
def _document() -> str:
    return json.dumps(openapi(ROUTES))


class _EventsResponse(Response):
    def __init__(self, streams: EventStreams, after: int) -> None:
        super().__init__()
        self._streams_of_server = streams
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._streams_of_server.send(self._after, scope, receive, send)


def _encoded(route: Route, found: Any) -> bytes:
    return b"" if route.reply is None else _adapter(route.reply).dump_json(found)


@cache  # making one takes 2 ms; there are as many as routes
def _adapter(reply: Any) -> TypeAdapter[Any]:
    return TypeAdapter(reply)


def _problem(error: BaseException, status: int | None) -> Response:
    document = problem_of(error, status)
    headers = {"connection": "close"} if document.status == 413 else {}
    if document.status == 503:
        headers["retry-after"] = "1"
    return Response(document.model_dump_json(), document.status, headers, media_type=PROBLEM)


async def _http_problem(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"{request.method} {short_repr(request.url.path)}"
    remedy = f"GET {OPENAPI} lists all addresses"
    said = f"{what}: not found" if status == 404 else f"{what}: method not allowed"
    response = _problem(JobpipeError(f"{said}; {remedy}"), status)
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response


def _last_event(request: Request, after: int) -> int:
    given = request.headers.get("last-event-id", "")
    if not given:
        return after
    if not (given.isascii() and given.isdecimal() and len(given) < 19):
        raise ConfigError(f"Last-Event-ID: {short_repr(given)} is not the number of an event", key="Last-Event-ID")
    return int(given)


def _query(route: Route, request: Request) -> dict[str, str | int | bool | None]:
    known = {query.name: query for query in route.query}
    found: dict[str, str | int | bool | None] = {query.name: query.default for query in route.query}
    try:
        given = parse_qsl(request.url.query, keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError as error:
        raise ConfigError(f"the query cannot be read: {error}", key="query") from error
    for name, value in given:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise ConfigError(
                f"{short_repr(name)} is not a parameter of {route.path}; there are: {listed}", key=name[:100]
            )
        found[name] = _query_value(known[name], value)
    return found


def _query_value(query: Query, value: str) -> str | int | bool:
    expected = ""
    if query.kind is QueryKind.FLAG:
        if value.lower() in ("", "true", "false"):
            return value.lower() != "false"
        expected = "true or false"
    elif query.kind is QueryKind.WHOLE:
        if value.isascii() and value.isdecimal() and len(value) < 20 and query.least <= int(value) <= query.most:
            return int(value)
        expected = f"a whole number from {query.least} to {query.most}"
    elif query.choices:
        if value in query.choices:
            return value
        expected = " or ".join(query.choices)
    elif value and len(value) <= 200 and value.isprintable():
        return value
    else:
        expected = "a name"
    raise ConfigError(f"{query.name}: {short_repr(value)} is not possible; expected {expected}", key=query.name)


async def _body(route: Route, request: Request) -> BaseModel | None:
    content = bytearray()
    try:
        async for part in request.stream():
            content += part
            if len(content) > BODY_BYTES:
                raise _HttpError(413, ConfigError(f"the body is larger than {BODY_BYTES} bytes", key="body"))
    except ClientDisconnect as error:
        raise ConfigError("the request ended early", key="body") from error
    if not content:
        if route.body is None:
            return None
        raise ConfigError("the JSON body is missing", key="body")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise _HttpError(
            415,
            ConfigError(f"content type {short_repr(kind)} is not accepted; send application/json", key="content-type"),
        )
    if route.body is None:
        raise ConfigError(f"{route.path} takes no body", key="body")
    return _parsed(route.body, bytes(content))


def _parsed(model: type[BaseModel], content: bytes) -> BaseModel:
    try:
        return model.model_validate(json.loads(content, parse_constant=_refuse_constant))
    except ValidationError as error:
        problems = [
            {"key": ".".join(map(str, each["loc"])), "what": each["msg"]}
            for each in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        lines = "".join(f"\n  {each['key']}: {each['what']}" for each in problems)
        raise ConfigError(f"the body is wrong:{lines}", problems=problems) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body is not JSON ({type(error).__name__}: {str(error)[:200]})", key="body") from None


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")
