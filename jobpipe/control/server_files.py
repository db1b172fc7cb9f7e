"""The files of a control server: ``<home>/server``, for its user alone.

token, view-token   what one shows to operate, or to look; made once, deleted to make others at the next start
server.json         where the running one listens; written when it does
.lock               held while it runs
history.arrow       what the plots of the page are of; may be deleted while none runs
server.log          of one that was started by a command, without a terminal
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import jobpipe
from jobpipe.control.permissions import Right
from jobpipe.errors import ConfigError, ControlConflict
from jobpipe_registry.host.local_files import is_locked, locked_file, write_whole
from jobpipe_registry.host.process_identity import PidScope, lives, start_ticks

MAX_BYTES = 16 * 1024
TOKEN_BYTES = 32
LOCK_SECONDS = 1.0  # a client that looks whether a server runs holds the lock for a moment


class ServerState(BaseModel):
    """Where a running server is.

    Attributes:
        pid, started, ticks: its process, as :func:`jobpipe_registry.host.process_identity.lives` knows it.
        host, boot, pid_namespace: where that is.
        token: the file of the token that may operate; None if it takes certificates.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    url: str = Field(max_length=300, pattern=r"^https?://[A-Za-z0-9.:\[\]-]+$")
    pid: int = Field(ge=1)
    started: float
    ticks: int
    host: str
    boot: str
    pid_namespace: int
    version: str
    token: Path | None = None

    @classmethod
    def here(cls, url: str, token: Path | None) -> ServerState:
        """Return that of this process."""
        pid, place = os.getpid(), PidScope.here()
        return cls(
            url=url,
            pid=pid,
            started=psutil.Process(pid).create_time(),
            ticks=start_ticks(pid),
            host=place.host,
            boot=place.boot,
            pid_namespace=place.pid_namespace,
            version=jobpipe.__version__,
            token=token,
        )

    @property
    def is_here(self) -> bool:
        """Whether its process lives, and its id means that process here."""
        place = PidScope(self.host, self.boot, self.pid_namespace)
        return lives(self.pid, self.started, self.ticks, place) is True


@dataclass(frozen=True)
class ServerFiles:
    """The folder of one home's server."""

    folder: Path

    @classmethod
    def of(cls, home: Path) -> ServerFiles:
        """Return that of a home."""
        return cls(home / "server")

    @property
    def log(self) -> Path:
        """What a server writes that has no terminal."""
        return self.folder / "server.log"

    @property
    def _lock(self) -> Path:
        return self.folder / ".lock"

    @property
    def state(self) -> Path:
        """Where the running one listens."""
        return self.folder / "server.json"

    def token(self, right: Right) -> Path:
        """Return the file of a token."""
        return self.folder / ("token" if right is Right.OPERATE else "view-token")

    def make(self) -> None:
        """Make the folder.

        Raises:
            ConfigError: it cannot be made, or is another user's.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)
        except OSError as error:
            raise ConfigError(f"{self.folder}: expected a folder of this user ({error.strerror})") from error

    def tokens(self) -> Mapping[Right, str]:
        """Return the tokens; those that are missing are made.

        Raises:
            ConfigError: a file cannot be read or made, or others may read it.
        """
        for right in Right:
            if not self.token(right).exists():
                self._write(self.token(right), f"{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode())
        return {right: read_token(self.token(right)) for right in Right}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock while this process's server runs; what the one before left of its state goes.

        Raises:
            ControlConflict: a server of this home runs.
            ConfigError: the folder cannot be used.
        """
        self.make()
        with ExitStack() as stack:
            try:
                stack.enter_context(locked_file(self._lock, LOCK_SECONDS))
            except TimeoutError:
                found = self.read_state()
                where = "it is starting" if found is None else f"at {found.url}, process {found.pid}"
                raise ControlConflict(
                    f"a control server of {self.folder.parent} is already running ({where}); stop it first, or use it",
                    folder=str(self.folder),
                ) from None
            except OSError as error:
                raise ConfigError(f"{self._lock}: cannot be opened ({error.strerror})", file=str(self._lock)) from error
            self.state.unlink(missing_ok=True)
            try:
                yield
            finally:
                self.state.unlink(missing_ok=True)

    def announce(self, state: ServerState) -> None:
        """Say where the server listens; the lock is held."""
        self._write(self.state, state.model_dump_json().encode())

    def running(self) -> bool:
        """Whether a server of this home runs, or starts: whether the lock is held."""
        try:
            return is_locked(self._lock)
        except OSError as error:
            raise _unreadable(self._lock, error.strerror) from error

    def read_state(self) -> ServerState | None:
        """Return where the server listens; None if that is not said (yet).

        Raises:
            ConfigError: others could have written the file.
        """
        try:
            return ServerState.model_validate_json(_read(self.state))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise ConfigError(f"{self.state} is damaged: {error}; restart the server", file=str(self.state)) from error
        except OSError as error:
            raise _unreadable(self.state, error.strerror) from error

    def _write(self, path: Path, content: bytes) -> None:
        try:
            write_whole(path, content)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})", file=str(path)) from error


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        ConfigError: there is none, or others may read it.
    """
    try:
        text = _read(path).decode("ascii").strip()
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no token; the server makes it when it starts", file=str(path)) from None
    except OSError as error:
        raise _unreadable(path, error.strerror) from error
    except UnicodeDecodeError:
        text = ""
    if len(text) < TOKEN_BYTES or not text.isprintable():
        what = f"{path}: this is not a token; delete it, and the server makes another one when it starts"
        raise ConfigError(what, file=str(path))
    return text


def _read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0) or mode & 0o077:
            raise ConfigError(
                f"{path}: expected a file of this user that no other user may read (chmod 600), not mode {mode:04o}",
                file=str(path),
            )
        return file.read(MAX_BYTES)


def _unreadable(path: Path, why: str | None) -> ConfigError:
    return ConfigError(f"{path}: cannot be read ({why})", file=str(path))
