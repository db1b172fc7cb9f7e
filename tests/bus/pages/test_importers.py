"""The importers of docs/publish.md, run as they stand there, and ended in the middle: each row comes once."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jobpipe
from jobpipe.config import Config
from jobpipe.publishing.plain_publisher import PlainPublisher
from tests.docs.pages import block

pytestmark = pytest.mark.zookeeper

PAGE = "docs/publish.md"
ROWS = 2500


class Ended(Exception):
    """The importer's process ended here."""


@pytest.fixture(autouse=True)
def environ(settings_of_test: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of this test, where the blocks look for them."""
    for key, value in settings_of_test.items():
        monkeypatch.setenv(f"JOBPIPE__{key.removeprefix('jobpipe.').replace('.', '__').upper()}", value)


def end_after(seals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an importer end once so many batches are sealed, before it hears of the last."""
    write, left = PlainPublisher.write, iter(range(seals - 1, -1, -1))

    def written(self: PlainPublisher, *given: Any, **names: Any) -> Any:
        sealed = write(self, *given, **names)
        if next(left) == 0:
            raise Ended
        return sealed

    monkeypatch.setattr(PlainPublisher, "write", written)


def run(name: str, *changes: tuple[str, str]) -> None:
    code = block(PAGE, name)
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    exec(compile(code, f"{PAGE}:{name}", "exec"), {})  # noqa: S102 - our own page


def published(topic: str, name: str, config: Config) -> list[dict[str, Any]]:
    """End a topic, and return all of its rows."""
    with jobpipe.publisher(topic, name=name, config=config) as last:
        last.close(final=True)
    with jobpipe.subscribe(topic, name="all", starting="earliest", config=config) as batches:
        return [row for batch in batches for row in batch.to_pylist()]


def test_a_file(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended after its second batch, and reads a line that is being written when it is whole."""
    rows = [{"customer": f"{number:01000d}", "amount": float(number)} for number in range(ROWS)]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file, changes = tmp_path / "payments.jsonl", ("/data/", f"{tmp_path}/")
    file.write_bytes(text[:-10])
    with monkeypatch.context() as patch:
        end_after(2, patch)
        with pytest.raises(Ended):
            run("import-file", changes)
    run("import-file", changes)
    with jobpipe.publisher("payments", name="file-importer", config=config) as payments:
        assert int(payments.last_note or b"") == text.rindex(b"\n", 0, -10) + 1
        assert payments.last_batch_id is not None
        assert payments.last_batch_id > 1
    file.write_bytes(text)
    run("import-file", changes)
    assert published("payments", "file-importer", config) == rows


@pytest.fixture
def feed() -> Iterator[int]:
    """Serve numbered orders, page by page; give the port."""

    class Feed(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            after, limit = int(asked["after"][0]), int(asked["limit"][0])
            page = [{"id": each, "amount": each / 2} for each in range(after + 1, min(after + limit, ROWS) + 1)]
            body = json.dumps(page).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Feed) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(10)


def test_a_feed(config: Config, feed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended after its first page."""
    changes = ("127.0.0.1:8000", f"127.0.0.1:{feed}")
    with monkeypatch.context() as patch:
        end_after(1, patch)
        with pytest.raises(Ended):
            run("import-feed", changes)
    run("import-feed", changes)
    assert published("orders", "feed-importer", config) == [
        {"id": each, "amount": each / 2} for each in range(1, ROWS + 1)
    ]
