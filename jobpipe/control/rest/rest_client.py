"""A client of the control server, with nothing but the standard library's HTTP."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from pydantic import BaseModel, TypeAdapter, ValidationError

from jobpipe.config import Config
from jobpipe.control.control_service import (
    BackfillView,
    IntervalView,
    JobStatus,
    PipelineStatus,
    Plan,
    RevisionView,
    RunView,
    ScheduleView,
    SkippedView,
    Submission,
    Submitted,
)
from jobpipe.control.letters.letter_views import LetterRows, LetterTopic, RedriveView
from jobpipe.control.positions.move_plan import Move, MovePlan
from jobpipe.control.rest.problem_json import error_of
from jobpipe.control.rest.rest_models import (
    Expanded,
    GraphView,
    IndexView,
    LogView,
    SignInCodeView,
    ValidatedView,
    plan_body,
    submission_body,
)
from jobpipe.control.server_files import ServerFiles, read_token
from jobpipe.discovery.configured_tls import client_tls
from jobpipe.errors import ConfigError, LinkBroken, NotAuthorized, RemoteProtocolError
from jobpipe.jobs.storage.job_rows import Event
from jobpipe.net.links.socket_options import map_error

T = TypeVar("T")

TIMEOUT = 30.0
REPLY_BYTES = 64 << 20
EVENT_BYTES = 1 << 20
QUIET_SECONDS = 60.0  # of a stream of events; the server says something every fifteen


@dataclass(frozen=True, repr=False)
class ServerAddress:
    """Where a server is, and how one proves oneself there: by a token, or by the certificate of ``tls``."""

    url: str
    token: str | None = None
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"ServerAddress({self.url!r})"

    @classmethod
    def local(cls, config: Config) -> ServerAddress | None:
        """Return the server of this home; None if none runs.

        Raises:
            ConfigError: its files cannot be read.
        """
        files = ServerFiles.of(config.home)
        # The lock says that the port is still its own: a stranger who has taken it gets no token.
        if not files.running() or (state := files.read_state()) is None:
            return None
        if state.token is None:
            return cls(state.url, tls=client_tls(config))
        return cls(state.url, read_token(state.token))

    @classmethod
    def given(cls, url: str, config: Config, token_file: Path | None) -> ServerAddress:
        """Return the one that the user names.

        Raises:
            ConfigError: it is no address of a server; the token cannot be read, would be sent in clear, or is not given
                and this home's server is another one.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.scheme not in ("http", "https") or parts.path not in ("", "/") or parts.query:
            raise ConfigError("--url: expected http://HOST:PORT or https://HOST:PORT, without a token", key="--url")
        shown = f"[{host}]" if ":" in host else host
        plain = f"{parts.scheme}://{shown}" + (f":{port}" if port else "")
        if parts.scheme == "https":
            return cls(plain, None if token_file is None else read_token(token_file), client_tls(config))
        if host not in ("127.0.0.1", "localhost", "::1"):
            raise ConfigError(f"{plain}: use https for any address but loopback", key="--url")
        if token_file is not None:
            return cls(plain, read_token(token_file))
        local = cls.local(config)
        # localhost may lead to ::1, where another user may listen: the address that the server has said is taken.
        if local is not None and local.url in (plain, plain.replace("//localhost", "//127.0.0.1")):
            return local
        raise ConfigError(
            f"{plain} is not the control server of {config.home}, and the token there is only for that one; give the "
            "token of this server with --token-file",
            key="--token-file",
        )


class ControlClient:
    """What one may ask a control server; errors are those of the server's core.

    All methods raise ``LinkBroken`` if the server does not answer, and ``NotAuthorized`` without the right.
    """

    def __init__(self, address: ServerAddress, *, timeout: float = TIMEOUT) -> None:
        self._address = address
        self._timeout = timeout

    def index(self) -> IndexView:
        """Return what the server is, and what we may do."""
        return self._ask("GET", "/", IndexView)

    def sign_in_code(self) -> SignInCodeView:
        """Return how a browser signs in, with our right."""
        return self._ask("POST", "/sign-in-codes", SignInCodeView)

    def submit(
        self,
        submission: Submission,
        *,
        new_checkpoint: Sequence[str] = (),
        base: int | None = None,
        born: float | None = None,
    ) -> Submitted:
        """As :meth:`jobpipe.control.control_service.Control.submit`."""
        body = submission_body(submission, tuple(new_checkpoint), base, born)
        return self._ask("POST", "/pipelines", Submitted, body=body)

    def plan(self, submission: Submission, *, new_checkpoint: Sequence[str] = ()) -> Plan:
        """As :meth:`jobpipe.control.control_service.Control.plan`."""
        return self._ask("POST", "/pipelines/plan", Plan, body=plan_body(submission, tuple(new_checkpoint)))

    def revisions(self, pipeline: str) -> tuple[RevisionView, ...]:
        """Return the versions of a pipeline's file that are kept, the newest first."""
        return self._ask("GET", _path(pipeline, None, "revisions"), tuple[RevisionView, ...])

    def revision(self, pipeline: str, version: int) -> Submission:
        """Return one version of a pipeline's file."""
        return self._ask("GET", _path(pipeline, None, f"revisions/{version}"), Submission)

    def pipelines(self) -> tuple[PipelineStatus, ...]:
        """Return all pipelines, by name."""
        found = self._ask("GET", "/pipelines", dict[str, Expanded], query={"expand": "status"})
        return tuple(each.status for each in found.values())

    def pipeline(self, name: str) -> PipelineStatus:
        return self._ask("GET", _path(name, None, "status"), PipelineStatus)

    def job(self, pipeline: str, job: str) -> JobStatus:
        """Return a job of one."""
        return self._ask("GET", _path(pipeline, job, "status"), JobStatus)

    def submission(self, name: str) -> Submission:
        """Return what was last submitted of a pipeline."""
        return self._ask("GET", _path(name, None, "config"), Submission)

    def stop(self, pipeline: str, job: str | None = None) -> PipelineStatus:
        """Let a job, or all of a pipeline, end."""
        return self._ask("PUT", _path(pipeline, job, "stop"), PipelineStatus)

    def resume(self, pipeline: str, job: str | None = None) -> PipelineStatus:
        """Start what was stopped, or has ended."""
        return self._ask("PUT", _path(pipeline, job, "resume"), PipelineStatus)

    def restart(self, pipeline: str, job: str | None = None, *, force: bool = False) -> PipelineStatus:
        """Stop and start again, as a new run."""
        query = {"force": "true"} if force else {}
        return self._ask("POST", _path(pipeline, job, "restart"), PipelineStatus, query=query)

    def delete(self, pipeline: str, *, keep_subscriptions: bool = False) -> None:
        """Forget a pipeline whose jobs have all ended."""
        query = {"keep-subscriptions": "true"} if keep_subscriptions else {}
        self._send("DELETE", f"/pipelines/{quote(pipeline, safe='')}", query=query)

    def runs(self, pipeline: str | None = None, job: str | None = None, *, limit: int = 100) -> tuple[RunView, ...]:
        """Return runs, the newest first."""
        query = {"limit": str(limit)}
        query |= {} if pipeline is None else {"pipeline": pipeline}
        query |= {} if job is None else {"job": job}
        return self._ask("GET", "/runs", tuple[RunView, ...], query=query)

    def run(self, run: str) -> RunView:
        return self._ask("GET", f"/runs/{quote(run, safe='')}", RunView)

    def start_run(self, pipeline: str, job: str, lower: str, upper: str) -> RunView:
        """Let a BATCH job run over a range."""
        body = {"lowerBoundary": lower, "upperBoundary": upper}
        return self._ask("POST", _path(pipeline, job, "runs"), RunView, body=body)

    def run_over(self, pipeline: str, job: str, lower: str, upper: str) -> RunView:
        """Return the newest run of a job over a range."""
        query = {"lowerBoundary": lower, "upperBoundary": upper}
        return self._ask("GET", _path(pipeline, job, "runs"), RunView, query=query)

    def cancel(self, run: str) -> RunView:
        return self._ask("POST", f"/runs/{quote(run, safe='')}/cancel", RunView)

    def skip(self, run: str) -> IntervalView:
        """Abandon the interval of a run that has failed."""
        return self._ask("POST", f"/runs/{quote(run, safe='')}/skip", IntervalView)

    def retry(self, run: str, *, force: bool = False) -> IntervalView:
        """Let the interval of a run be run again."""
        query = {"force": "true"} if force else {}
        return self._ask("POST", f"/runs/{quote(run, safe='')}/retry", IntervalView, query=query)

    def schedules(self, pipeline: str | None = None) -> tuple[ScheduleView, ...]:
        """Return the schedules of a pipeline, or all."""
        query = {} if pipeline is None else {"pipeline": pipeline}
        return self._ask("GET", "/schedules", tuple[ScheduleView, ...], query=query)

    def schedule(self, pipeline: str, job: str) -> ScheduleView:
        """Return the schedule of a job."""
        return self._ask("GET", _path(pipeline, job, "schedule"), ScheduleView)

    def intervals(self, pipeline: str, job: str, *, limit: int = 100) -> tuple[IntervalView, ...]:
        """Return intervals of a schedule, the newest first."""
        path = _path(pipeline, job, "schedule/intervals")
        return self._ask("GET", path, tuple[IntervalView, ...], query={"limit": str(limit)})

    def pause(self, pipeline: str, job: str, *, paused: bool = True) -> ScheduleView:
        """Make no more runs of a schedule, or go on."""
        return self._ask("PUT", _path(pipeline, job, f"schedule/{'pause' if paused else 'resume'}"), ScheduleView)

    def backfill(
        self, pipeline: str, job: str, lower: datetime, upper: datetime, *, force: bool = False
    ) -> BackfillView:
        """Let all whole intervals of a range run that have not succeeded."""
        body = {"from": lower.isoformat(), "to": upper.isoformat(), "force": force}
        return self._ask("POST", _path(pipeline, job, "schedule/backfill"), BackfillView, body=body)

    def trigger(self, pipeline: str, job: str) -> ScheduleView:
        """Let the runs of all intervals begin that are due now."""
        return self._ask("POST", _path(pipeline, job, "schedule/trigger"), ScheduleView)

    def skip_range(self, pipeline: str, job: str, lower: datetime, upper: datetime) -> SkippedView:
        """Abandon all whole intervals of a range that wait, or whose runs have failed."""
        body = {"from": lower.isoformat(), "to": upper.isoformat()}
        return self._ask("POST", _path(pipeline, job, "schedule/skip"), SkippedView, body=body)

    def log(self, pipeline: str, job: str, *, lines: int = 100) -> tuple[str, ...]:
        """Return the end of a job's log."""
        return self._ask("GET", _path(pipeline, job, "log"), LogView, query={"lines": str(lines)}).lines

    def plan_move(self, topic: str, subscription: str, to: str | int) -> MovePlan:
        """Return what a move of a subscription would mean, and what is in its way."""
        return self._ask("GET", _position(topic, subscription, "/plan"), MovePlan, query={"to": str(to)})

    def move(self, topic: str, subscription: str, to: str | int, *, expected: str) -> Move:
        """Move a subscription, if it still stands at ``expected``: ``at`` of a plan."""
        return self._ask("POST", _position(topic, subscription), Move, body={"to": to, "expected": expected})

    def plan_undo(self, topic: str, subscription: str) -> MovePlan:
        """Return what it would mean to take the last move back."""
        return self._ask("GET", _position(topic, subscription, "/undo"), MovePlan)

    def undo_move(self, topic: str, subscription: str, *, number: int, expected: str) -> Move:
        """Take the last move of a subscription back, if it has that number and left it at ``expected``."""
        body = {"number": number, "expected": expected}
        return self._ask("POST", _position(topic, subscription, "/undo"), Move, body=body)

    def dead_letters(self) -> tuple[LetterTopic, ...]:
        """Return the dead letters of all jobs that may have some, counted by stage and error."""
        return self._ask("GET", "/dead-letters", tuple[LetterTopic, ...])

    def dead_letters_of(self, topic: str) -> LetterTopic:
        """Return the dead letters of a topic, and how its redrive stands."""
        return self._ask("GET", _letters(topic), LetterTopic)

    def dead_letter_rows(self, topic: str, *, limit: int = 50) -> LetterRows:
        """Return the newest dead letters of a topic."""
        return self._ask("GET", _letters(topic, "/rows"), LetterRows, query={"limit": str(limit)})

    def plan_redrive(self, topic: str) -> RedriveView:
        """Return what a redrive would publish, and which letters it would leave."""
        return self._ask("GET", _letters(topic, "/redrive"), RedriveView)

    def redrive(self, topic: str) -> RedriveView:
        """Begin a redrive."""
        return self._ask("POST", _letters(topic, "/redrive"), RedriveView)

    def graph(self) -> GraphView:
        """Return jobs and topics of all pipelines."""
        return self._ask("GET", "/graph", GraphView)

    def validate(self, type_: str, config: Mapping[str, Any], *, kind: str | None = None) -> ValidatedView:
        """Return what is wrong with the options of a stage."""
        body = {"config": dict(config)} | ({} if kind is None else {"kind": kind})
        return self._ask("PUT", f"/plugins/{quote(type_, safe='')}/config/validate", ValidatedView, body=body)

    def events(self, after: int = 0) -> Iterator[Event]:
        """Yield events with a larger id than ``after``, until the server ends the stream; go on after the last one."""
        connection = self._connect(QUIET_SECONDS)
        try:
            response = self._response(connection, "GET", "/events", {"after": str(after)}, None)
            kind = TypeAdapter(Event)
            while line := self._guarded(lambda: response.readline(EVENT_BYTES)):
                if line.startswith(b"data:"):
                    yield _parsed(kind, line[5:])
        finally:
            connection.close()

    def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        query: Mapping[str, str] | None = None,
        body: BaseModel | Mapping[str, Any] | None = None,
    ) -> T:
        return _parsed(TypeAdapter(kind), self._send(method, path, query=query, body=body))

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: BaseModel | Mapping[str, Any] | None = None,
    ) -> bytes:
        connection = self._connect(self._timeout)
        try:
            response = self._response(connection, method, path, query or {}, body)
            return self._whole(response)
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        parts = urlsplit(self._address.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._address.tls)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _response(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: BaseModel | Mapping[str, Any] | None,
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json, text/event-stream, application/problem+json"}
        if self._address.token is not None:
            headers["Authorization"] = f"Bearer {self._address.token}"
        content: bytes | None = None
        if body is not None:
            text = body.model_dump_json(by_alias=True) if isinstance(body, BaseModel) else json.dumps(body)
            content, headers["Content-Type"] = text.encode(), "application/json"
        address = f"{path}?{urlencode(query)}" if query else path

        def asked() -> http.client.HTTPResponse:
            connection.request(method, address, body=content, headers=headers)
            return connection.getresponse()

        response: http.client.HTTPResponse = self._guarded(asked)
        if not 200 <= response.status < 300:
            raise error_of(self._whole(response), response.status, response.reason)
        return response

    def _whole(self, response: http.client.HTTPResponse) -> bytes:
        content: bytes = self._guarded(lambda: response.read(REPLY_BYTES + 1))
        if len(content) > REPLY_BYTES:
            raise RemoteProtocolError(f"the reply of {self._address.url} is larger than {REPLY_BYTES} bytes")
        return content

    def _guarded(self, work: Any) -> Any:
        try:
            return work()
        except ssl.SSLCertVerificationError as error:
            raise NotAuthorized(
                f"the control server at {self._address.url} has a certificate that is not trusted: "
                f"{error.verify_message}; give the right --url, or jobpipe.ssl.ca",
                url=self._address.url,
            ) from error
        except (OSError, http.client.HTTPException) as error:
            refused = map_error(error, f"the control server at {self._address.url}", "ask")
            if isinstance(refused, NotAuthorized):  # by a TLS alert
                raise refused from error
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise LinkBroken(
                f"the control server at {self._address.url} does not answer: {why}; start it with: jobpipe server",
                url=self._address.url,
            ) from error


def _path(pipeline: str, job: str | None, verb: str) -> str:
    inside = "" if job is None else f"/jobs/{quote(job, safe='')}"
    return f"/pipelines/{quote(pipeline, safe='')}{inside}/{verb}"


def _letters(topic: str, verb: str = "") -> str:
    return f"/dead-letters/{quote(topic, safe='')}{verb}"


def _position(topic: str, subscription: str, verb: str = "") -> str:
    return f"/topics/{quote(topic, safe='')}/subscriptions/{quote(subscription, safe='')}/position{verb}"


def _parsed(kind: TypeAdapter[T], content: bytes) -> T:
    try:
        return kind.validate_json(content)
    except ValidationError as error:
        raise RemoteProtocolError(
            f"the control server's reply is not what this version expects ({error.error_count()} differences); use the "
            "same version on both sides"
        ) from error
