"""How events reach a backend, and a file: in order, patiently, with a key, and to no other host."""

from __future__ import annotations

import json
import logging
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobpipe.config.types.secrets import Secret
from jobpipe.control.lineage import lineage_destinations
from jobpipe.control.lineage.lineage_destinations import (
    Destination,
    EventRefusedError,
    FileDestination,
    HttpDestination,
    NotSentError,
    destination_of,
)
from jobpipe.control.lineage.lineage_outbox import LineageOutbox
from jobpipe.control.lineage.lineage_sender import LineageSender
from jobpipe.errors import ConfigError
from tests.control.lineage.lineage_kit import Backend, config_of
from tests.pipelines.waiting import eventually

log = logging.getLogger(__name__)


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[LineageOutbox]:
    found = LineageOutbox(tmp_path / "lineage.db", dropped=lambda count, why: log.error("%d: %s", count, why))
    yield found
    found.close()


@pytest.fixture
def backends() -> Iterator[Callable[..., Backend]]:
    made: list[Backend] = []

    def make(*statuses: int, port: int = 0) -> Backend:
        made.append(Backend(*statuses, port=port))
        return made[-1]

    yield make
    for each in made:
        each.close()


@contextmanager
def sending(outbox: LineageOutbox, destination: Destination) -> Iterator[LineageSender]:
    sender = LineageSender(outbox, destination, first_delay=0.01)
    sender.start()
    try:
        yield sender
    finally:
        sender.close()


def add(outbox: LineageOutbox, *numbers: int) -> None:
    for number in numbers:
        outbox.add(f"u-{number}", "START", json.dumps({"number": number}))


def empty(outbox: LineageOutbox) -> Callable[[], bool]:
    return lambda: outbox.waiting() == (0, 0)


def test_events_are_posted_in_order_with_the_key(outbox: LineageOutbox, backends: Callable[..., Backend]) -> None:
    backend = backends()
    add(outbox, 1, 2)
    with sending(outbox, HttpDestination(backend.url, Secret("env:KEY"), {"KEY": "hunter2"})) as sender:
        add(outbox, 3)
        sender.wake()
        got = [backend.got.get(timeout=20) for _ in range(3)]
        eventually(empty(outbox))
    assert [event["number"] for _, _, event in got] == [1, 2, 3]
    for path, headers, _ in got:
        assert path == "/api/v1/lineage"
        assert headers["Authorization"] == "Bearer hunter2"
        assert headers["Content-Type"] == "application/json"


def test_a_url_with_a_path_is_taken_as_it_is_and_without_a_key_none_is_sent(
    outbox: LineageOutbox, backends: Callable[..., Backend]
) -> None:
    backend = backends()
    add(outbox, 1)
    with sending(outbox, HttpDestination(f"{backend.url}/other/place", None)):
        path, headers, _ = backend.got.get(timeout=20)
    assert path == "/other/place"
    assert "Authorization" not in headers


def test_events_wait_for_a_backend_that_is_away_and_keep_their_order(
    outbox: LineageOutbox, backends: Callable[..., Backend], caplog: pytest.LogCaptureFixture
) -> None:
    away = backends()
    port = away.port
    away.close()
    add(outbox, 1, 2)
    with caplog.at_level(logging.INFO), sending(outbox, HttpDestination(f"http://127.0.0.1:{port}", None)):
        eventually(lambda: "does not take lineage events" in caplog.text)
        back = backends(port=port)
        assert [back.next()["number"] for _ in range(2)] == [1, 2]
        eventually(empty(outbox))
    assert "takes lineage events again" in caplog.text


@pytest.mark.parametrize("status", [500, 503, 429, 401, 403, 404, 302])
def test_a_status_that_is_not_about_the_event_is_tried_again(
    outbox: LineageOutbox, backends: Callable[..., Backend], status: int
) -> None:
    backend = backends(status, status, status, status, 200)
    add(outbox, 1)
    with sending(outbox, HttpDestination(backend.url, None)):
        eventually(empty(outbox))
    assert backend.got.qsize() == 5
    assert {path for path, _, _ in backend.got.queue} == {"/api/v1/lineage"}, "a redirect is not followed"


@pytest.mark.parametrize("status", [400, 422])
def test_an_event_that_the_backend_refuses_holds_up_no_other_one(
    outbox: LineageOutbox, backends: Callable[..., Backend], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    backend = backends(status, status, status, 200)
    add(outbox, 1, 2)
    with sending(outbox, HttpDestination(backend.url, None)):
        eventually(empty(outbox))
    assert [event["number"] for _, _, event in backend.got.queue] == [1, 1, 1, 2]
    assert f"refuses it: status {status}" in caplog.text


def test_what_is_being_sent_is_cut_at_the_end_and_sent_by_the_next_server(
    outbox: LineageOutbox, backends: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TIMEOUT", "TOTAL_SECONDS"):  # by themselves, they would end it too
        monkeypatch.setattr(f"jobpipe.jobs.alerts.webhook.{name}", 1000.0)
    backend = backends()
    backend.gate.clear()
    add(outbox, 1)
    with sending(outbox, HttpDestination(backend.url, None)):
        assert backend.next()["number"] == 1
    assert "lineage-sender" not in [thread.name for thread in threading.enumerate()]
    assert outbox.waiting()[0] == 1
    backend.gate.set()
    with sending(outbox, HttpDestination(backend.url, None)):
        assert backend.next()["number"] == 1
        eventually(empty(outbox))


def test_after_the_end_nothing_is_sent(backends: Callable[..., Backend]) -> None:
    backend = backends()
    destination = HttpDestination(backend.url, None)
    destination.send("{}")
    destination.close()
    with pytest.raises(NotSentError):
        destination.send("{}")
    assert backend.got.qsize() == 1


def test_a_key_that_cannot_be_read_is_waited_for_and_never_shown(
    outbox: LineageOutbox, backends: Callable[..., Backend], caplog: pytest.LogCaptureFixture
) -> None:
    backend = backends()
    environ: dict[str, str] = {}
    destination = HttpDestination(backend.url, Secret("env:KEY"), environ)
    add(outbox, 1)
    with sending(outbox, destination):
        eventually(lambda: "api_key cannot be read" in caplog.text)
        environ["KEY"] = "hunter2"
        assert backend.got.get(timeout=20)[1]["Authorization"] == "Bearer hunter2"
        eventually(empty(outbox))
    bad = HttpDestination(backend.url, Secret("env:KEY"), {"KEY": "hunter2\r\nX: y"})
    with pytest.raises(NotSentError) as caught:
        bad.send("{}")
    assert "hunter2" not in caplog.text + str(caught.value)


@pytest.mark.parametrize("url", ["http://lineage.example.org", "ftp://localhost", "https://me:secret@localhost"])
def test_a_url_that_would_show_events_or_key_to_others_is_refused(url: str) -> None:
    HttpDestination("https://lineage.example.org", None)
    with pytest.raises(ConfigError) as caught:
        HttpDestination(url, None)
    assert "secret" not in caught.value.message


def test_the_configuration_says_where_events_go(tmp_path: Path) -> None:
    assert destination_of(config_of(tmp_path, url="http://localhost:5000")).name == (
        "the lineage backend at localhost:5000"
    )
    assert destination_of(config_of(tmp_path, file="/a/b")).name == "the lineage file /a/b"
    with pytest.raises(ConfigError, match="neither"):
        destination_of(config_of(tmp_path))


def test_a_file_has_an_event_on_each_line_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lineage.jsonl"
    file = FileDestination(path)
    for number in (1, 2):
        file.send(json.dumps({"number": number}))
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [1, 2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_line_that_was_cut_off_spoils_no_other_one(tmp_path: Path) -> None:
    path = tmp_path / "lineage.jsonl"
    path.write_text('{"number": 1}\n{"numb')
    FileDestination(path).send('{"number": 2}')
    assert path.read_text() == '{"number": 1}\n{"numb\n{"number": 2}\n'


def test_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_destinations, "MOST_FILE_BYTES", 25)
    path = tmp_path / "lineage.jsonl"
    for number in range(6):
        FileDestination(path).send(json.dumps({"n": number}))
    assert path.read_text() == '{"n": 4}\n{"n": 5}\n'
    assert Path(f"{path}.1").read_text() == '{"n": 2}\n{"n": 3}\n'
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_cannot_be_written_is_waited_for(outbox: LineageOutbox, tmp_path: Path) -> None:
    """A link is not followed, since another user may have made it."""
    path, target = tmp_path / "lineage.jsonl", tmp_path / "target"
    path.symlink_to(target)
    add(outbox, 1)
    with pytest.raises(NotSentError) as caught:
        FileDestination(path).send("{}")
    assert not isinstance(caught.value, EventRefusedError)
    with sending(outbox, FileDestination(path)):
        path.unlink()
        eventually(empty(outbox))
    assert path.read_text() == '{"number": 1}\n'
    assert not target.exists()
