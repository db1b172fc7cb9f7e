"""Where lineage events go: an OpenLineage backend by HTTP, or a file. Both are asked by one thread alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from jobpipe.config import Config
from jobpipe.config.types.secrets import Secret
from jobpipe.errors import ConfigError
from jobpipe.jobs.alerts.webhook import Cutter, Webhook, WebhookError, WebhookRefused, WebhookRejected, post

ENDPOINT = "/api/v1/lineage"
MOST_FILE_BYTES = 64 << 20
"""A file that is larger is renamed, with ``.1`` at its end, in the place of the one before."""
_OF_THE_EVENT = frozenset({400, 409, 411, 413, 415, 422})  # statuses by which a backend refuses an event, not us


class NotSentError(Exception):
    """It was not sent; another attempt may be."""


class EventRefusedError(NotSentError):
    """The backend refuses the event itself."""


class Destination(Protocol):
    """Takes events."""

    @property
    def name(self) -> str:
        """What it is, for people."""

    def send(self, event: str) -> None:
        """Send an event, JSON without line breaks; it is durable there when this returns.

        Raises:
            NotSentError: it was not sent, or that is not known.
        """

    def close(self) -> None:
        """End what is being sent, from another thread."""


def destination_of(config: Config, environ: Mapping[str, str] | None = None) -> Destination:
    """Return where the configuration lets events go.

    Args:
        environ: where references ``env:NAME`` lead; None: of this process.

    Raises:
        ConfigError: it says nothing, or the URL cannot be used.
    """
    if config.server_lineage_url is not None:
        return HttpDestination(config.server_lineage_url, config.server_lineage_api_key, environ)
    if config.server_lineage_file is not None:
        return FileDestination(config.server_lineage_file)
    raise ConfigError("neither server.lineage.url nor server.lineage.file is set", key="jobpipe.server.lineage.url")


class HttpDestination:
    """An OpenLineage backend: each event is a POST. The guards are those of webhooks.

    Args:
        url: of the backend; without a path, OpenLineage's own is taken.
        key: sent as a bearer token; read for each event, so it may be renewed.

    Raises:
        ConfigError: the URL is none, or http of another host.
    """

    def __init__(self, url: str, key: Secret | None, environ: Mapping[str, str] | None = None) -> None:
        try:
            hook = Webhook.parse(url)
        except WebhookRefused as error:
            raise ConfigError(f"server.lineage.url: {error}", key="jobpipe.server.lineage.url") from None
        self._hook = replace(hook, target=ENDPOINT) if hook.target == "/" else hook
        self._key = key
        self._environ = environ
        self._cutter = Cutter()

    @property
    def name(self) -> str:
        return f"the lineage backend at {self._hook.host}:{self._hook.port}"

    def send(self, event: str) -> None:
        try:
            post(self._hook, event.encode(), headers=self._headers(), cutter=self._cutter)
        except WebhookRejected as error:
            kind = EventRefusedError if error.status in _OF_THE_EVENT else NotSentError
            raise kind(_with_advice(error)) from None
        except WebhookError as error:
            raise NotSentError(str(error)) from None

    def _headers(self) -> dict[str, str]:
        if self._key is None:
            return {}
        try:
            key = self._key.reveal(self._environ)
        except ConfigError as error:
            raise NotSentError(f"server.lineage.api_key cannot be read: {error.message}") from None
        if not key.isascii() or not key.isprintable():
            raise NotSentError("server.lineage.api_key has characters that a header cannot have")
        return {"Authorization": f"Bearer {key}"}

    def close(self) -> None:
        self._cutter.close()


def _with_advice(error: WebhookRejected) -> str:
    if error.status in (401, 403):
        return f"{error}: check server.lineage.api_key"
    return f"{error}: check server.lineage.url" if error.status in (404, 405) else str(error)


class FileDestination:
    """A file with an event on each line, which only its owner can read; at most twice :data:`MOST_FILE_BYTES`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return f"the lineage file {self._path}"

    def send(self, event: str) -> None:
        try:
            self._append(event.encode() + b"\n")
        except OSError as error:
            raise NotSentError(error.strerror or type(error).__name__) from None

    def _append(self, line: bytes) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(self._path, flags, 0o600), "r+b", buffering=0) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise OSError(0, "it is no regular file")
            if info.st_size and info.st_size + len(line) > MOST_FILE_BYTES:
                os.replace(self._path, f"{self._path}.1")
                return self._append(line)
            if info.st_size and os.pread(file.fileno(), 1, info.st_size - 1) != b"\n":
                line = b"\n" + line  # a server was killed, or the disk was full, in the middle of a line
            while line:
                line = line[file.write(line) or 0 :]
            os.fsync(file.fileno())
        return None

    def close(self) -> None:
        """Nothing is open between two events."""
