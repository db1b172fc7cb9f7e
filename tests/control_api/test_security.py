"""Who may ask what, from where: tokens, hosts, origins, rights, roots, limits of connections."""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobpipe.config import Config, load
from jobpipe.control.permissions import Right
from jobpipe.control.rest.auth_middleware import HEADERS, SAFE
from jobpipe.control.rest.client_identities import AccessFile, read_access_file
from jobpipe.control.rest.rest_client import ControlClient, ServerAddress
from jobpipe.control.rest.rest_models import submission_body
from jobpipe.control.rest.rest_server import RestServer, _hosts
from jobpipe.control.rest.routing_table import ROUTES
from jobpipe.control.server_files import ServerFiles, read_token
from jobpipe.errors import ConfigError, ControlConflict, LinkBroken, NotAuthorized, PipelineError
from tests.control_api.conftest import PORTS
from tests.control_api.kit import MemoryControl, Served
from tests.docs.troubleshooting import on_page

CHANGES = [("POST", "/pipelines"), ("PUT", "/pipelines/flights/stop"), ("DELETE", "/pipelines/flights")]


def test_it_listens_on_loopback_and_keeps_its_tokens_to_itself(served: Served) -> None:
    """Files of 0600 in a folder of 0700; two tokens, which stay over a restart."""
    assert served.address.url.startswith("http://127.0.0.1:")
    files = ServerFiles.of(served.home)
    assert files.folder.stat().st_mode & 0o777 == 0o700
    for path in (files.token(Right.OPERATE), files.token(Right.VIEW), files.state):
        assert path.stat().st_mode & 0o777 == 0o600
    tokens = files.tokens()
    assert len(set(tokens.values())) == 2
    assert min(map(len, tokens.values())) >= 43
    assert files.tokens() == tokens
    assert tokens[Right.OPERATE] not in repr(served.address)
    files.token(Right.VIEW).chmod(0o640)
    with pytest.raises(ConfigError, match="no other user may read"):
        read_token(files.token(Right.VIEW))


def test_without_a_token_nothing_is_said(served: Served) -> None:
    """But that the server lives."""
    assert served.ask("GET", "/health", token=None).json == {"ok": True}
    paths = ("/", "/pipelines", "/openapi.json", "/events", "/graph", "/nothing")
    assert {served.ask("GET", path, token=None).status for path in paths} == {401}
    wrong = str(served.address.token)[:-1] + "é"
    for headers in (
        {"Authorization": f"Bearer {wrong}".encode()},
        {"Authorization": f"Basic {served.address.token}"},
        {"Cookie": f"jobpipe-{served.host.rpartition(':')[2]}={served.address.token}"},
    ):
        assert served.ask("GET", "/pipelines", token=None, headers=headers).status == 401  # type: ignore[arg-type]
    assert served.ask("GET", f"/pipelines?token={served.address.token}", token=None).status == 401
    with pytest.raises(NotAuthorized) as caught:
        ControlClient(ServerAddress(served.address.url, "x" * 43)).pipelines()
    on_page(caught.value, "NotAuthorized: the control server does not know")
    assert served.control.calls == []
    assert served.ask("GET", "/pipelines").status == 200
    assert served.ask("GET", "/nothing").status == 404
    assert served.client.pipelines() == ()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:{port}.", ""]
)
def test_another_host_name_is_refused(served: Served, host: str) -> None:
    """DNS rebinding: a page of evil.example that resolves to this address asks with its own name."""
    port = served.host.rpartition(":")[2]
    reply = served.ask("GET", "/health", headers={"Host": host.format(port=port)})
    assert reply.status in (421, 400)
    assert b'"ok"' not in reply.body
    for good in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        assert served.ask("GET", "/health", headers={"Host": good}).status == 200


@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize(
    "from_",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_changes_of_other_sites_are_refused(served: Served, method: str, path: str, from_: dict[str, str]) -> None:
    """Even with the token, which no browser sends by itself; what names this server is let through."""
    served.control.submit(served.submission())
    served.control.stop("flights")  # so that it may be deleted
    before = list(served.control.calls)
    body = submission_body(served.submission()).model_dump(mode="json", by_alias=True) if method == "POST" else None
    reply = served.ask(method, path, body, headers=from_)
    assert (reply.status, reply.json["error"]) == (403, "NotAuthorized")
    assert served.control.calls == before
    ours = {"Origin": served.address.url} if "Origin" in from_ else {"Sec-Fetch-Site": "same-origin"}
    assert served.ask(method, path, body, headers=ours).status in (202, 204)


def test_a_form_of_another_site_changes_nothing(served: Served) -> None:
    """The three types that a form may send are no JSON."""
    body = submission_body(served.submission()).model_dump_json(by_alias=True).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        reply = served.ask("POST", "/pipelines", body, headers={"Content-Type": kind})
        assert reply.status == 415
    assert served.control.calls == []
    assert served.ask("POST", "/pipelines", body, headers={"Content-Type": "application/json"}).status == 202


def test_every_reply_is_closed_to_browsers(served: Served) -> None:
    """Errors too: nothing is a page, nothing is framed, nothing is kept."""
    replies = [
        served.ask("GET", "/pipelines"),
        served.ask("GET", "/pipelines", token=None),
        served.ask("GET", "/nothing"),
        served.ask("GET", "/health", headers={"Host": "evil.example"}),
    ]
    for reply in replies:
        assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in reply.headers
        assert "set-cookie" not in reply.headers
        assert "server" not in reply.headers
    assert "default-src 'self'" in HEADERS["content-security-policy"]
    assert "frame-ancestors 'none'" in HEADERS["content-security-policy"]


def test_markup_in_names_stays_text(served: Served) -> None:
    """Replies are JSON with nosniff, whatever a name or a log contains."""
    served.control.submit(served.submission())
    served.control.lines = ("<script>alert(1)</script>",)
    reply = served.ask("GET", "/pipelines/flights/jobs/%3Cscript%3E/status")
    assert (reply.status, reply.headers["content-type"]) == (404, "application/problem+json")
    assert served.ask("GET", "/pipelines/flights/jobs/report/log").headers["content-type"] == "application/json"


def test_view_looks_and_does_not_operate(served: Served) -> None:
    """403 for each change, before the core is asked; and no plug-in is run."""
    changing = [route for route in ROUTES if route.method not in SAFE and route.name != "make-sign-in-code"]
    assert {route.right for route in changing} == {Right.OPERATE}
    viewer = served.viewer
    served.control.submit(served.submission())
    assert viewer.index().right == "view"
    assert viewer.pipeline("flights").name == "flights"
    assert viewer.graph().pipelines == ("flights",)
    before = list(served.control.calls)
    changes: tuple[Callable[[ControlClient], object], ...] = (
        lambda who: who.submit(served.submission()),
        lambda who: who.restart("flights", force=True),
        lambda who: who.cancel("run-1"),
        lambda who: who.validate("rate", {}),
        lambda who: who.stop("flights"),
        lambda who: who.resume("flights", "report"),
        lambda who: who.stop("flights", "report"),
        lambda who: who.delete("flights"),
    )
    for change in changes:
        with pytest.raises(NotAuthorized, match="needs the right operate") as caught:
            change(viewer)
    again = (
        "PUT",
        "/pipelines/flights/config",
        submission_body(served.submission()).model_dump(mode="json", by_alias=True),
    )
    assert served.ask(*again, token=served.view).json["detail"].startswith("this needs the right operate")
    assert served.control.calls == before
    on_page(caught.value, "NotAuthorized: this needs the right")
    assert served.ask(*again).status == 202
    for change in changes:
        change(served.client)


def test_no_token_in_a_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Not at the lowest level, with uvicorn's own loggers on."""
    caplog.set_level(logging.DEBUG)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        caplog.set_level(1, logger=name)
    served.ask("GET", f"/pipelines?token={served.address.token}x", token=None)
    served.control.raises = RuntimeError("broken")
    served.ask("GET", "/pipelines")
    assert "broken" in caplog.text
    assert str(served.address.token) not in caplog.text


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"storage": "file:///etc/state"}, "pipeline.storage"),
        ({"storage": "FILE:/etc/state"}, "pipeline.storage"),
        ({"storage": "../../outside"}, "pipeline.storage"),
        ({"storage": "file:{work}/%2e%2e/%2e%2e/etc"}, "pipeline.storage"),
        ({"storage": "file:{work}/out/state"}, "pipeline.storage"),
        ({"libraries": [{"glob": {"include": "out/**"}}]}, "pipeline.libraries"),
    ],
    ids=str,
)
def test_what_lies_outside_the_roots_is_refused(served: Served, change: dict[str, Any], key: str) -> None:
    """By traversal, by a scheme, by a link."""
    (served.folder / "out").symlink_to("/etc")
    submission = served.submission()
    given = {name: _put(value, str(served.folder)) for name, value in change.items()}
    submission.tree["pipeline"].update(given)
    with pytest.raises(PipelineError) as caught:
        served.client.submit(submission)
    assert [each["key"] for each in caught.value.fields["problems"]] == [key], caught.value.message
    assert served.control.calls == []


@pytest.mark.parametrize(
    "change",
    [
        {"storage": "file:{work}/state"},
        {"storage": "FILE:{work}/state"},
        {"storage": "state/../state"},
        {"storage": "file:{work}/%2e%2e/{name}/state"},
        {"storage": "file:{work}/in/state"},
        {"libraries": [{"glob": {"include": "in/**"}}]},
    ],
    ids=str,
)
def test_what_lies_inside_the_roots_is_taken(served: Served, change: dict[str, Any]) -> None:
    """The same ways of writing it, to a place inside."""
    (served.folder / "real").mkdir()
    (served.folder / "in").symlink_to(served.folder / "real")
    submission = served.submission()
    given = {name: _put(value, str(served.folder)) for name, value in change.items()}
    submission.tree["pipeline"].update(given)
    assert served.client.submit(submission).created


def _put(value: Any, work: str) -> Any:
    return value.format(work=work, name=Path(work).name) if isinstance(value, str) else value


def test_a_folder_outside_the_roots_is_refused(served: Served, tmp_path: Path) -> None:
    """Also through a link, and by `..`; a link inside is followed once, and its target is what is stored."""
    (tmp_path / "elsewhere").mkdir()
    (served.folder / "link").symlink_to(tmp_path / "elsewhere")
    (served.folder / "real").mkdir()
    (served.folder / "inside").symlink_to(served.folder / "real")
    from dataclasses import replace

    for folder in (tmp_path / "elsewhere", served.folder / "link", served.folder / ".." / "elsewhere"):
        with pytest.raises(ConfigError) as caught:
            served.client.submit(replace(served.submission(), folder=folder))
        on_page(caught.value, "ConfigError: the pipeline's folder")
    with pytest.raises(ConfigError, match="is not a folder of the server's host"):
        served.client.submit(replace(served.submission(), folder=served.folder / "missing"))
    served.client.submit(replace(served.submission(), folder=served.folder / "inside"))
    assert served.control.calls[-1][1].folder == served.folder / "real"


def test_what_others_can_change_is_refused(served: Served) -> None:
    submission = served.submission()
    submission.tree["pipeline"]["storage"] = "state"
    state = served.folder / "state"
    state.mkdir()
    assert served.client.submit(submission).created
    state.chmod(0o777)
    before = list(served.control.calls)
    with pytest.raises(PipelineError) as caught:
        served.client.submit(submission)
    assert [each["key"] for each in caught.value.fields["problems"]] == ["pipeline.storage"]
    assert f"chmod go-w {state}" in caught.value.message
    on_page(caught.value, "others could have changed")
    assert served.control.calls == before


def test_what_cannot_be_looked_at_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served.client.submit(served.submission()).created
    real = os.statvfs

    def stale(path: Path) -> os.statvfs_result:
        if path == served.folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path)

    before = list(served.control.calls)
    monkeypatch.setattr("os.statvfs", stale)
    with pytest.raises(PipelineError, match=r"cannot be looked at \(Input/output error\); see that") as caught:
        served.client.submit(served.submission())
    assert str(served.folder) in caught.value.message
    assert served.control.calls == before


def test_the_default_roots_are_homes(tmp_path: Path) -> None:
    from jobpipe.jobs.allowed_paths import AllowedPaths

    roots = AllowedPaths.of(load(overrides={"home": str(tmp_path / "h")}, environ={}))
    assert set(roots.folders) == {Path(os.path.realpath(Path.home())), tmp_path / "h"}


def test_the_remedy_has_the_line_the_file_and_the_command(tmp_path: Path) -> None:
    from jobpipe.jobs.allowed_paths import AllowedPaths

    (tmp_path / "in").mkdir()
    roots = AllowedPaths([tmp_path / "in"], tmp_path / "jobpipe.yaml")
    assert roots.folder(tmp_path / "in") == tmp_path / "in"
    with pytest.raises(ConfigError) as caught:
        roots.folder(tmp_path / "out")
    _, line, command = str(caught.value).splitlines()
    assert f"give {tmp_path / 'jobpipe.yaml'} on the server's host the line" in str(caught.value)
    (tmp_path / "jobpipe.yaml").write_text(line.strip())
    (tmp_path / "jobpipe.yaml").chmod(0o600)
    assert load(str(tmp_path / "jobpipe.yaml"), environ={}).server_roots == (tmp_path / "in", tmp_path / "out")
    assert "jobpipe server --stop" in command


def test_one_server_a_home(served: Served, server_config: Config) -> None:
    files = ServerFiles.of(server_config.home)
    with pytest.raises(ControlConflict) as caught, files.locked():
        pass
    assert served.address.url in caught.value.message
    on_page(caught.value, "ControlConflict: a control server")


def test_a_client_finds_the_local_server(served: Served, server_config: Config) -> None:
    """While it holds its lock: a stranger at its port gets no token."""
    assert ServerAddress.local(server_config) == served.address
    state = ServerFiles.of(served.home).read_state()
    assert state is not None
    assert state.is_here
    assert not state.model_copy(update={"pid_namespace": 1}).is_here  # its process id is another process's here
    assert not state.model_copy(update={"ticks": 1, "started": 1.0}).is_here
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(LinkBroken) as caught:
        ControlClient(ServerAddress(f"http://127.0.0.1:{port}", "x")).pipelines()
    on_page(caught.value, "LinkBroken: the control server")
    given = ServerAddress.given(served.address.url, server_config, ServerFiles.of(served.home).token(Right.VIEW))
    assert ControlClient(given).index().right == "view"
    for wrong in ("ftp://x", "http://example.org:1", "127.0.0.1:8998", "http://127.0.0.1/?token=x", "http://[::1"):
        with pytest.raises(ConfigError, match=r"--url|https"):
            ServerAddress.given(wrong, server_config, None)


def test_the_home_s_token_is_for_its_own_server(served: Served, server_config: Config, tmp_path: Path) -> None:
    """Not for whoever listens at another port of loopback, nor at that port once the server has ended."""
    port = served.host.rpartition(":")[2]
    for own in (served.address.url, f"http://localhost:{port}"):
        assert ServerAddress.given(own, server_config, None) == served.address
    elsewhere = load(overrides={"home": str(tmp_path / "other")}, environ={})
    ServerFiles.of(elsewhere.home).make()
    ServerFiles.of(elsewhere.home).tokens()
    for url, config in (
        (f"http://127.0.0.1:{int(port) + 1}", server_config),
        (f"http://[::1]:{port}", server_config),
        (served.address.url, elsewhere),
    ):
        with pytest.raises(ConfigError, match="--token-file"):
            ServerAddress.given(url, config, None)


def test_a_port_that_is_the_scheme_s_own_may_be_left_out() -> None:
    """Clients leave it out of Host; any other port they send."""
    names = ["control.example.org", "::1"]
    assert _hosts(names, 443, "https") == {"control.example.org", "control.example.org:443", "[::1]", "[::1]:443"}
    assert _hosts(["A.example"], 80, "http") == {"a.example", "a.example:80"}
    assert _hosts(["a.example"], 443, "http") == {"a.example:443"}


def test_beyond_loopback_without_tls_is_refused(tmp_path: Path, control: MemoryControl) -> None:
    given = {"home": str(tmp_path), "server.host": "0.0.0.0", "server.port": PORTS}  # noqa: S104
    with pytest.raises(ConfigError, match="beyond loopback the control server accepts only TLS") as caught:
        RestServer(control, load(overrides={**given, "ssl.enabled": "false"}, environ={}))
    on_page(caught.value, "ConfigError: jobpipe.server.host")
    with pytest.raises(ConfigError, match="carries no host name"):
        RestServer(control, load(overrides=given, environ={}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("operate: [anna.jobpipe]\nview: []\noperate: [ben.jobpipe]\n", "line 3: the key is in line 1 already"),
        ("operate: !!str anna\n", "line 1: YAML's tag"),
        ("operate: [anna\n", "line 2: a `[` is not closed"),
        ("operate: [12]\n", "operate.0: Input should be a valid string"),
        ("oparate: [anna.jobpipe]\n", "oparate: Extra inputs are not permitted"),
        ("- anna.jobpipe\n", "expected view: [NAME, …] and operate: [NAME, …]"),
    ],
)
def test_an_access_file_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    """Nothing in it is passed over: of a key that is given twice, one list would hold no longer."""
    path = tmp_path / "access.yaml"
    path.write_text("operate: [anna.jobpipe]\n")
    path.chmod(0o600)
    assert read_access_file(path).operate == {"anna.jobpipe"}
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_access_file(path)
    path.write_text("")
    assert read_access_file(path) == AccessFile()
