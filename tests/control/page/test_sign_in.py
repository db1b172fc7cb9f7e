"""How a browser signs in over HTTP, and what a cookie can do: against forms, frames and pages of other sites."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from urllib.parse import urlencode

import pytest

from jobpipe.control.page.live_updates import MOST
from jobpipe.control.rest.auth_middleware import HEADERS
from jobpipe.control.rest.rest_app import THREADS
from jobpipe.errors import NotAuthorized
from jobpipe.metrics.metric_samples import TopicsSnapshot
from tests.control.page.kit import flights
from tests.control_api.kit import DEADLINE, Reply, Served, until

HTML = {"Accept": "text/html"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def _get(served: Served, path: str, **headers: str) -> Reply:
    return served.ask("GET", path, token=None, headers={**HTML, **headers})


def _cookie(reply: Reply) -> str:
    return reply.headers["set-cookie"].partition(";")[0]


def _signed_in(served: Served, right: str = "operate") -> str:
    client = served.client if right == "operate" else served.viewer
    reply = _get(served, client.sign_in_code().path)
    assert reply.status == 200
    return _cookie(reply)


def test_the_printed_address_signs_one_browser_in(served: Served) -> None:
    """The second one gets the form."""
    path = served.client.sign_in_code().path
    first = _get(served, path)
    assert (first.status, "set-cookie" in first.headers) == (200, True)
    assert _get(served, "/", Cookie=_cookie(first)).status == 200
    second = _get(served, path)
    assert (second.status, "set-cookie" in second.headers) == (403, False)
    assert b"has been used" in second.body


def test_a_token_in_the_form_signs_in(served: Served) -> None:
    """With its own right."""
    for token, right in ((served.address.token, b"may operate"), (served.view, b"may view")):
        body = urlencode({"token": token}).encode()
        reply = served.ask("POST", "/ui/sign-in", body, token=None, headers=FORM)
        assert reply.status == 200
        assert right in _get(served, "/", Cookie=_cookie(reply)).body
    wrong = served.ask("POST", "/ui/sign-in", b"token=wrong", token=None, headers=FORM)
    assert (wrong.status, "set-cookie" in wrong.headers) == (403, False)
    huge = served.ask("POST", "/ui/sign-in", b"token=" + b"x" * 10_000, token=None, headers=FORM)
    assert (huge.status, "set-cookie" in huge.headers) == (413, False)


def test_a_stranger_sees_the_form_and_nothing_else(served: Served) -> None:
    """Whatever page is asked for; programs get a problem document."""
    flights(served.control)
    for path in ("/", "/ui/jobs", "/ui/jobs/flights/report", "/ui/live?address=/", "/ui/nothing"):
        reply = _get(served, path)
        assert reply.status == 401
        assert b"jobpipe server --sign-in" in reply.body
        assert b"flights" not in reply.body
    assert served.ask("GET", "/", token=None).headers["content-type"] == "application/problem+json"
    assert served.control.calls == []
    cookie = _signed_in(served)
    assert b"flights.report" in _get(served, "/", Cookie=cookie).body


def test_a_program_gets_json_where_a_browser_gets_a_page(served: Served) -> None:
    assert served.ask("GET", "/").json["right"] == "operate"
    assert served.ask("GET", "/", headers=HTML).headers["content-type"].startswith("text/html")


def test_a_viewer_changes_nothing(served: Served) -> None:
    """Shown with the same request of one who may."""
    flights(served.control)
    ours = {"Origin": served.address.url, "Sec-Fetch-Site": "same-origin"}
    viewer, operator = _signed_in(served, "view"), _signed_in(served)
    path = "/pipelines/flights/jobs/report/stop"
    refused = served.ask("PUT", path, token=None, headers={**ours, "Cookie": viewer})
    assert refused.status == 403
    assert ("stop", "flights", "report") not in served.control.calls
    assert served.ask("PUT", path, token=None, headers={**ours, "Cookie": operator}).status == 202
    assert ("stop", "flights", "report") in served.control.calls
    assert served.viewer.pipeline("flights")
    with pytest.raises(NotAuthorized):
        served.viewer.stop("flights")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "{url}", "Sec-Fetch-Site": "same-site"},
        {"Origin": "{url}", "Sec-Fetch-Site": "cross-site"},
    ],
    ids=str,
)
def test_a_cookie_changes_nothing_from_another_page(served: Served, headers: dict[str, str]) -> None:
    """Also not from another port of this host, for which the cookie is of the same site."""
    flights(served.control)
    cookie = _signed_in(served)
    sent = {name: value.format(url=served.address.url) for name, value in headers.items()}
    path = "/pipelines/flights/jobs/report/stop"
    assert served.ask("PUT", path, token=None, headers={**sent, "Cookie": cookie}).status == 403
    assert ("stop", "flights", "report") not in served.control.calls
    ours = {"Origin": served.address.url, "Sec-Fetch-Site": "same-origin", "Cookie": cookie}
    assert served.ask("PUT", path, token=None, headers=ours).status == 202


def test_a_page_of_another_port_reads_nothing(served: Served) -> None:
    """Its requests carry the cookie; a link from there may be followed, since its page cannot see the answer."""
    flights(served.control)
    cookie = _signed_in(served)
    there = {"Cookie": cookie, "Sec-Fetch-Site": "same-site"}
    assert served.ask("GET", "/pipelines", token=None, headers={**there, "Sec-Fetch-Mode": "no-cors"}).status == 403
    assert served.ask("GET", "/pipelines", token=None, headers={**there, "Sec-Fetch-Mode": "navigate"}).status == 200
    assert served.ask("GET", "/pipelines", token=None, headers={"Cookie": cookie}).status == 200


def test_a_browser_lets_no_other_one_in(served: Served) -> None:
    """Else a session would have no end; a program with the token can."""
    cookie = _signed_in(served)
    ours = {"Origin": served.address.url, "Cookie": cookie}
    assert served.ask("POST", "/sign-in-codes", token=None, headers=ours).status == 403
    assert served.ask("POST", "/sign-in-codes", headers={"Origin": served.address.url}).status == 201


def test_a_wrong_bearer_token_is_not_made_good_by_a_cookie(served: Served) -> None:
    cookie = _signed_in(served)
    headers = {"Cookie": cookie, "Authorization": "Bearer wrong"}
    assert served.ask("GET", "/pipelines", token=None, headers=headers).status == 401
    assert served.ask("GET", "/pipelines", token=None, headers={"Cookie": cookie}).status == 200


def test_signing_out_takes_the_cookie_away(served: Served) -> None:
    ours = {"Origin": served.address.url, "Cookie": _signed_in(served)}
    reply = served.ask("DELETE", "/ui/sign-in", token=None, headers=ours)
    assert reply.status == 204
    assert "Max-Age=0" in reply.headers["set-cookie"]
    foreign = {"Origin": "http://evil.example"}
    assert served.ask("DELETE", "/ui/sign-in", token=None, headers=foreign).status == 403


def test_pages_and_files_are_as_closed_as_all_replies(served: Served) -> None:
    """No frame, no foreign script, nothing kept; no file but those that are meant."""
    cookie = _signed_in(served)
    for path in ("/", "/ui/static/page.js", "/ui/sign-in?code=x", "/ui/topics"):
        reply = _get(served, path, Cookie=cookie)
        assert reply.status == (403 if "code" in path else 200)
        assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS
    for name in ("..%2f__init__.py", "%2e%2e/sign_in.py", "page.html", "nothing.js", ""):
        reply = _get(served, f"/ui/static/{name}", Cookie=cookie)
        assert reply.status in (401, 404), name
        assert b"import" not in reply.body


def test_streams_that_are_left_make_room(served: Served) -> None:
    """However early a browser leaves; while all places are taken, the next one is told."""
    flights(served.control)
    cookie = _signed_in(served)
    port = int(served.host.rpartition(":")[2])
    request = f"GET /ui/live?address=/&shape=x HTTP/1.1\r\nHost: {served.host}\r\nCookie: {cookie}\r\n\r\n".encode()
    streams = []
    for _ in range(MOST):
        streams.append(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE))
        streams[-1].sendall(request)
        assert streams[-1].recv(15).startswith(b"HTTP/1.1 200")
    refused = _get(served, "/ui/live?address=/&shape=x", Cookie=cookie)
    assert refused.status == 503
    assert refused.json["detail"] == "too many pages are open; close some"
    for each in streams:
        each.close()

    def is_let_in() -> bool:
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as stream:
            stream.sendall(request)
            return stream.recv(15).startswith(b"HTTP/1.1 200")

    until(is_let_in)


def test_only_a_person_who_opens_the_address_uses_the_code(served: Served) -> None:
    """Not a HEAD, nor a page of another site, which would sign the browser in as whom it likes."""
    path = served.client.sign_in_code().path
    assert "set-cookie" not in served.ask("HEAD", path, token=None, headers=HTML).headers
    for site in ("cross-site", "same-site"):
        reply = _get(served, path, **{"Sec-Fetch-Site": site})
        assert (reply.status, "set-cookie" in reply.headers) == (403, False)
    assert "set-cookie" in _get(served, path, **{"Sec-Fetch-Site": "none"}).headers


def test_who_is_signed_in_needs_no_form(served: Served) -> None:
    """A stranger gets it."""
    assert _get(served, "/ui/sign-in").status == 200
    reply = _get(served, "/ui/sign-in", Cookie=_signed_in(served))
    assert (reply.status, reply.headers["location"]) == (303, "/")


def test_pages_wait_for_a_slow_registry_and_changes_do_not(served: Served) -> None:
    """Pages have threads of their own."""
    flights(served.control)
    cookie = _signed_in(served)
    slow = threading.Event()
    snapshot = served.control.topics_snapshot

    def wait() -> TopicsSnapshot:
        assert slow.wait(DEADLINE)
        return snapshot()

    served.control.topics_snapshot = wait  # type: ignore[method-assign]
    pages = [threading.Thread(target=_get, args=(served, "/"), kwargs={"Cookie": cookie}) for _ in range(THREADS + 4)]
    for each in pages:
        each.start()
    try:
        assert served.client.stop("flights", "report").name == "flights"
    finally:
        slow.set()
        for each in pages:
            each.join()


def test_a_page_that_breaks_says_so(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Once in the log, however often it is asked for."""
    flights(served.control)
    cookie = _signed_in(served)
    served.control.raises = KeyError("what")
    for _ in range(3):
        reply = _get(served, "/", Cookie=cookie)
        assert reply.status == 500
        assert b"This page cannot be made (KeyError)" in reply.body
    assert [record.message for record in caplog.records].count("a page cannot be made: '/'") == 1
    served.control.raises = None
    assert _get(served, "/", Cookie=cookie).status == 200


@pytest.mark.processes
def test_metrics_alone_need_no_templates() -> None:
    """Their extra does not install Jinja2."""
    code = (
        "import sys; sys.modules.update(jinja2=None, markupsafe=None); import jobpipe.control.monitoring.metrics_server"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
