"""Alerts: what is sent, to which addresses, how often; with a real server on loopback."""

from __future__ import annotations

import json
import logging
import queue
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jobpipe.control.control_service import Submission
from jobpipe.control.job_alerts import Alerts
from jobpipe.errors import StoreError
from jobpipe.jobs.alerts.webhook import Webhook, WebhookError, WebhookRefused, post
from jobpipe.net.tls.certificates import BOTH, init_ca, issue
from jobpipe.pipelines.model.job_states import JobState
from tests.control_api.kit import DEADLINE, MemoryControl, tree, until


class Receiver:
    """A webhook that answers with given statuses, the last one for ever."""

    def __init__(self, *statuses: int, tls: ssl.SSLContext | None = None) -> None:
        self.got: queue.Queue[dict[str, Any]] = queue.Queue()
        left = list(statuses)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                self.got.put({**json.loads(body), "path": handler.path})
                status = left.pop(0) if len(left) > 1 else left[0]
                handler.send_response(status)
                if status == 302:
                    handler.send_header("Location", f"http://127.0.0.1:{self.port}/elsewhere")
                handler.send_header("Content-Length", "0")
                handler.end_headers()

            def log_message(handler, *args: Any) -> None:  # noqa: N805
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?key=hunter2"

    def next(self) -> dict[str, Any]:
        return self.got.get(timeout=DEADLINE)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpipe.control.job_alerts.POLL_SECONDS", 0.02)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver(200)
    yield made
    made.close()


def submitted(control: MemoryControl, tmp_path: Path, on: Sequence[str] = ("FAILED", "LOST")) -> None:
    made = tree()
    made["pipeline"]["alerts"] = [{"type": "webhook", "url": "env:ALERT_URL", "on": list(on)}]
    control.submit(Submission(file=tmp_path / "p.yaml", folder=tmp_path, tree=made))


def test_what_happens_is_told_once(control: MemoryControl, receiver: Receiver, tmp_path: Path) -> None:
    """The states that the file names; a state that is said again is none; what was before the first start neither."""
    submitted(control, tmp_path)
    control.tell("state", state=JobState.FAILED, detail="before")
    alerts = Alerts(control, environ={"ALERT_URL": receiver.url})
    alerts.start()
    try:
        control.tell("state", state=JobState.RUNNING)
        failed = control.tell("state", state=JobState.FAILED, detail="the source is gone")
        control.tell("state", state=JobState.FAILED, detail="again")
        control.tell("state", state=JobState.BLOCKED)
        lost = control.tell("state", state=JobState.LOST, job="publish")
        found = sorted((receiver.next() for _ in range(2)), key=lambda each: each["event"])
        assert found[0] == {
            "alert": "FAILED",
            "pipeline": "flights",
            "job": "report",
            "at": failed.at,
            "event": failed.id,
            "detail": "the source is gone",
            "path": "/hook?key=hunter2",
        }
        assert (found[1]["alert"], found[1]["job"], found[1]["event"]) == ("LOST", "publish", lost.id)
    finally:
        alerts.close()
    assert receiver.got.empty()


def test_a_run_that_fails_before_its_first_attempt_is_told(
    control: MemoryControl, receiver: Receiver, tmp_path: Path
) -> None:
    """It is another failure, though the job was in no other state in between."""
    submitted(control, tmp_path)
    alerts = Alerts(control, environ={"ALERT_URL": receiver.url})
    alerts.start()
    try:
        for run in ("one", "one", "two"):
            control.tell("state", state=JobState.FAILED, detail=run, fields={"run": run})
        assert sorted(receiver.next()["detail"] for _ in range(2)) == ["one", "two"]
    finally:
        alerts.close()
    assert receiver.got.empty()


def test_a_lag_is_told_to_those_that_named_it(control: MemoryControl, receiver: Receiver, tmp_path: Path) -> None:
    """Each time: that it is told once only while it lasts, its event says."""
    made = tree()
    lagging = {"type": "webhook", "url": "env:ALERT_URL", "on": ["LAGGING"]}
    made["pipeline"]["alerts"] = [{**lagging, "lag-rows": 10}, {**lagging, "lag-rows": 20, "lag-time": "1m"}]
    control.submit(Submission(file=tmp_path / "p.yaml", folder=tmp_path, tree=made))
    alerts = Alerts(control, environ={"ALERT_URL": receiver.url})
    alerts.start()
    try:
        for detail in ("once", "twice"):
            control.tell("lagging", detail=detail, fields={"lag-rows": 20, "lag-time": 60.0})
            control.tell("caught up", fields={"lag-rows": 20, "lag-time": 60.0})
            told = receiver.next()
            assert (told["alert"], told["job"], told["detail"]) == ("LAGGING", "report", detail)
    finally:
        alerts.close()
    assert receiver.got.empty()


def test_a_pipeline_that_cannot_be_loaded_any_more_has_its_alerts(
    control: MemoryControl, receiver: Receiver, tmp_path: Path
) -> None:
    """A plug-in is gone, for instance: just then it fails."""
    made = tree(report={"source": {"type": "gone"}, "sink": {"type": "console"}})
    made["pipeline"]["alerts"] = [{"type": "webhook", "url": "env:ALERT_URL"}]
    control.submissions["flights"] = Submission(file=tmp_path / "p.yaml", folder=tmp_path, tree=made)
    alerts = Alerts(control, environ={"ALERT_URL": receiver.url})
    alerts.start()
    try:
        control.tell("state", state=JobState.FAILED)
        assert receiver.next()["alert"] == "FAILED"
    finally:
        alerts.close()


def test_each_difference_is_told(control: MemoryControl, receiver: Receiver, tmp_path: Path) -> None:
    """To those that named it, also one after the other."""
    submitted(control, tmp_path, on=["DIFFERENCE"])
    alerts = Alerts(control, environ={"ALERT_URL": receiver.url})
    alerts.start()
    try:
        control.tell("gap", detail="not named")
        for detail in ("offsets 41 to 43", "offset 50"):
            control.tell("difference", detail=detail)
            told = receiver.next()
            assert (told["alert"], told["job"], told["detail"]) == ("DIFFERENCE", "report", detail)
    finally:
        alerts.close()
    assert receiver.got.empty()


@pytest.mark.slow
def test_a_new_server_goes_on(control: MemoryControl, receiver: Receiver, tmp_path: Path) -> None:
    """With what happened while there was none; not with what was told."""
    submitted(control, tmp_path, on=["FAILED", "GAP"])
    environ = {"ALERT_URL": receiver.url}
    first = Alerts(control, environ=environ)
    first.start()
    control.tell("state", state=JobState.FAILED)
    assert receiver.next()["alert"] == "FAILED"
    first.close()
    control.tell("gap", detail="an interval is lost")
    second = Alerts(control, environ=environ)
    second.start()
    try:
        assert receiver.next()["alert"] == "GAP"
    finally:
        second.close()
    assert receiver.got.empty()


@pytest.mark.slow
def test_alerts_wait_for_a_store_that_fails(
    control: MemoryControl, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event is told once the store can be read again."""
    submitted(control, tmp_path)
    failures, submission = iter([StoreError("database is locked")]), control.submission

    def locked(name: str) -> Submission:
        for failure in failures:
            raise failure
        return submission(name)

    monkeypatch.setattr(control, "submission", locked)
    alerts = Alerts(control, environ={"ALERT_URL": receiver.url})
    alerts.start()
    try:
        failed = control.tell("state", state=JobState.FAILED)
        assert receiver.next()["event"] == failed.id
    finally:
        alerts.close()
    assert next(failures, None) is None


def test_only_what_was_not_delivered_is_sent_by_the_next_server(
    control: MemoryControl, receiver: Receiver, tmp_path: Path
) -> None:
    """Though it is older than what was; by a webhook that answers again, since the time at which it was first tried."""
    made, away = tree(), Receiver(503)
    urls = ("env:GOOD", "env:AWAY")
    made["pipeline"]["alerts"] = [{"type": "webhook", "url": url} for url in urls]
    control.submit(Submission(file=tmp_path / "p.yaml", folder=tmp_path, tree=made))
    environ = {"GOOD": receiver.url, "AWAY": away.url}
    alerts = Alerts(control, environ=environ, first_delay=60.0)
    alerts.start()
    first = control.tell("state", state=JobState.FAILED)
    control.tell("state", state=JobState.RUNNING)
    second = control.tell("state", state=JobState.FAILED)
    assert [receiver.next()["event"] for _ in range(2)] == [first.id, second.id]
    assert away.next()["event"] == first.id
    alerts.close()
    away.close()
    back = Receiver(200)
    alerts = Alerts(control, environ={**environ, "AWAY": back.url})
    alerts.start()
    try:
        assert [back.next()["event"] for _ in range(2)] == [first.id, second.id]
    finally:
        alerts.close()
        back.close()
    assert receiver.got.empty()
    assert (control.store.last_alerted_event(), control.store.waiting_alerts()) == (second.id, {})


def test_it_is_tried_again_and_its_address_is_not_logged(
    control: MemoryControl, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A status above 500, then a redirect, which is final; then a reference that leads nowhere."""
    caplog.set_level(logging.DEBUG)
    receiver = Receiver(503, 500, 302)
    submitted(control, tmp_path)
    environ = {"ALERT_URL": receiver.url}
    alerts = Alerts(control, environ=environ, first_delay=0.01)
    alerts.start()
    try:
        control.tell("state", state=JobState.FAILED)
        assert [receiver.next()["path"] for _ in range(3)] == ["/hook?key=hunter2"] * 3
        until(lambda: "a redirect, which is not followed" in caplog.text)
        environ.clear()
        control.tell("state", state=JobState.LOST)
        until(lambda: "its secret cannot be read" in caplog.text)
    finally:
        alerts.close()
        receiver.close()
    assert receiver.got.empty()
    assert "alert FAILED of flights/report could not be delivered to webhook 1" in caplog.text
    assert "hunter2" not in caplog.text
    assert str(receiver.port) not in caplog.text


def test_https_checks_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system's CAs: here one of the test's."""
    init_ca(tmp_path)
    files = issue(tmp_path, "hook", dns=["localhost"], usages=BOTH)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    receiver = Receiver(200, tls=context)
    try:
        hook = Webhook.parse(f"https://localhost:{receiver.port}/x")
        with pytest.raises(WebhookError, match="SSLCertVerificationError"):
            post(hook, {"a": 1}, resolver=lambda host, port: ["127.0.0.1"])
        monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
        post(hook, {"a": 1}, resolver=lambda host, port: ["127.0.0.1"])
        assert receiver.next() == {"a": 1, "path": "/x"}
        with pytest.raises(WebhookError, match="SSLCertVerificationError"):  # the name is not in the certificate
            post(Webhook.parse(f"https://127.0.0.1:{receiver.port}/x"), {}, resolver=lambda host, port: ["127.0.0.1"])
    finally:
        receiver.close()


@pytest.mark.parametrize(
    "addresses",
    [["::1", "127.0.0.1"], ["127.0.0.2", "127.0.0.1"], ["::1", "127.0.0.3", "127.0.0.2", "127.0.0.1"]],
    ids=len,
)
def test_the_first_address_that_answers_is_taken(addresses: list[str], receiver: Receiver) -> None:
    """Q9: IPv6 without a route, or a server that is down, listed first; the receiver listens at 127.0.0.1 alone."""
    hook = Webhook.parse(f"http://localhost:{receiver.port}/x")
    post(hook, {"a": 1}, resolver=lambda host, port: addresses)
    assert receiver.next() == {"a": 1, "path": "/x"}


def test_an_address_whose_tls_fails_is_left_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q9: such as an old server that the name still leads to."""
    init_ca(tmp_path)
    files = issue(tmp_path, "hook", dns=["localhost"], usages=BOTH)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
    receiver, plain = Receiver(200, tls=context), Receiver(200)
    connect = socket.create_connection

    def routed(address: tuple[str, int], timeout: float) -> socket.socket:
        return connect(("127.0.0.1", plain.port if address[0] == "127.0.0.2" else receiver.port), timeout)

    monkeypatch.setattr("jobpipe.jobs.alerts.webhook.socket.create_connection", routed)
    try:
        hook = Webhook.parse(f"https://localhost:{receiver.port}/x")
        post(hook, {"a": 1}, resolver=lambda host, port: ["127.0.0.2", "127.0.0.1"])
        assert receiver.next() == {"a": 1, "path": "/x"}
    finally:
        receiver.close()
        plain.close()


def test_silent_addresses_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q9: all together have ten seconds, each two at least; the error names each reason once, and no address."""
    now, asked = [100.0], []

    def connect(address: tuple[str, int], timeout: float) -> None:
        asked.append((address[0], timeout))
        if address[0] == "::1":
            raise OSError(101, "Network is unreachable")
        now[0] += timeout
        raise TimeoutError(110, "Connection timed out")

    monkeypatch.setattr("jobpipe.jobs.alerts.webhook.socket.create_connection", connect)
    monkeypatch.setattr("jobpipe.jobs.alerts.webhook.time.monotonic", lambda: now[0])
    hook, silent = Webhook.parse("http://localhost:1/x"), [f"127.0.0.{number}" for number in range(1, 20)]
    with pytest.raises(WebhookError, match=r"no answer \(Network is unreachable; Connection timed out\)$"):
        post(hook, {}, resolver=lambda host, port: ["::1", *silent])
    assert asked == [("::1", 2.0), *((each, 2.0) for each in silent[:5])]
    asked.clear()
    with pytest.raises(WebhookError):
        post(hook, {}, resolver=lambda host, port: silent[:2])
    assert asked == [("127.0.0.1", 5.0), ("127.0.0.2", 5.0)]


@pytest.mark.parametrize(
    "url",
    [
        "http://alerts.example.org/x",
        "ftp://alerts.example.org/x",
        "https://user:word@alerts.example.org/x",
        "https:///x",
        "https://alerts.example.org:99999/x",
        "https://alerts.example.org/x\r\nHost: y",
        "file:///etc/passwd",
        "",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(WebhookRefused):
        Webhook.parse(url)


def test_http_does_not_leave_this_host(receiver: Receiver) -> None:
    """Though `localhost` may resolve to another host: the address and the message would be in clear text."""
    hook = Webhook.parse(f"http://localhost:{receiver.port}/x")
    post(hook, {"a": 1}, resolver=lambda host, port: ["127.0.0.1"])
    assert receiver.next() == {"a": 1, "path": "/x"}
    for addresses in (["93.184.216.34"], ["127.0.0.1", "fe80::1%lo"]):
        with pytest.raises(WebhookRefused, match="names loopback"):
            post(hook, {}, resolver=lambda host, port, found=addresses: found)  # type: ignore[misc]
    assert receiver.got.empty()
