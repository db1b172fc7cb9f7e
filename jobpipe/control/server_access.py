"""Who may use a control server beyond loopback: people's certificates, and an access list.

view: [ben.jobpipe, carla.jobpipe]
operate: [anna.jobpipe]
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable, Collection
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers

from jobpipe.config.ownership import read_own_file
from jobpipe.control.rights import Right
from jobpipe.errors import ConfigError
from jobpipe.net.certs import describe
from jobpipe.net.expiry import ExpiryWatch
from jobpipe.net.tls import Credentials, ServerTls

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20


class AccessFile(BaseModel):
    """What the file says: exact DNS names of certificates."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    view: frozenset[str] = Field(default=frozenset(), max_length=10_000)
    operate: frozenset[str] = Field(default=frozenset(), max_length=10_000)


def read_access_file(path: Path) -> AccessFile:
    """Return the list in a file.

    Raises:
        ConfigError: it cannot be read, others could have changed it, or something in it is not understood.
    """
    try:
        content, why = read_own_file(path, MAX_BYTES + 1)
        if why is not None:
            raise ConfigError(f"{path}: expected a file that others cannot change: {why}", file=str(path))
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: expected a file of at most {MAX_BYTES} bytes", file=str(path))
        return AccessFile.model_validate(yaml.safe_load(content.decode()) or {})
    except OSError as error:
        raise ConfigError(f"{path}: expected a readable file ({error.strerror})", file=str(path)) from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        expected = "expected view: [NAME, …] and operate: [NAME, …], names of certificates"
        raise ConfigError(f"{path}: {expected} ({wrong})", file=str(path)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected valid YAML in UTF-8 ({type(error).__name__})", file=str(path)) from error


class Certificates:
    """Identity beyond loopback: the certificates that TLS takes, and what the access list lets their names do.

    The listener asks it for the context of each connection, and lets it look at all files each second.

    Args:
        files: of the server.
        access: the list; None: only the server's own names may do anything.
        renew: called now and then to renew what the home issues itself.

    Raises:
        ConfigError: list or certificate cannot be used.
    """

    def __init__(self, files: Credentials, access: Path | None, renew: Callable[[], object] = lambda: None) -> None:
        self._files = files
        self._path = access
        self._tls = ServerTls(files)
        self._own = self._own_names()
        self._list = AccessFile() if access is None else read_access_file(access)
        self._seen = self._stamps()
        self._expiry = ExpiryWatch(files, renew)
        self._lock = threading.Lock()

    @property
    def context(self) -> ssl.SSLContext:
        """What the next connection gets."""
        return self._tls.context

    def right(self, headers: Headers, peer_names: Collection[str]) -> Right | None:
        """Return the right of a certificate's names; the same names as the server's own may operate."""
        names = frozenset(peer_names)
        if not names:
            return None
        if names == self._own or names & self._list.operate:
            return Right.OPERATE
        return Right.VIEW if names & self._list.view else None

    def cookie(self, token: str) -> str | None:
        """Return None: certificates need no cookie."""
        return None

    def refresh(self) -> bool:
        """Look at the files; return True if other CAs are trusted now, or other certificates revoked. Blocking."""
        changed = self._tls.refresh()
        self._take_in_changes()
        self._expiry.look()
        return changed

    def _take_in_changes(self) -> None:
        """Read list and own names again if their files have changed; wrong ones leave those before in force."""
        with self._lock:
            stamps = self._stamps()
            if stamps == self._seen:
                return
            self._seen = stamps
            try:
                own = self._own_names()
                self._list = AccessFile() if self._path is None else read_access_file(self._path)
                self._own = own
            except ConfigError as error:
                log.error("%s; the access list stays as it was", error.message)
                return
            log.info("access list and own certificate were read again")

    def _own_names(self) -> frozenset[str]:
        return frozenset(describe(self._files.cert).names)

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(None if path is None else _stamp(path) for path in (self._path, self._files.cert))


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        info = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (info.st_mtime_ns, info.st_size, info.st_ino)
