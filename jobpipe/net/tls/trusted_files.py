"""Whom a server believes, as the files say now: CAs, revocation list, its own certificate, and an access list."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from jobpipe.errors import ConfigError
from jobpipe.net.tls.expiry_warnings import ExpiryWatch
from jobpipe.net.tls.tls_context import Credentials, ServerTls

log = logging.getLogger(__name__)

L = TypeVar("L")
_Stamp = tuple[int, int, int]


class TrustedFiles(Generic[L]):
    """Follows the files of one serving process. A listener takes it for its TLS.

    Args:
        files: the process's own, and whom it trusts; None without encryption.
        access: the access list; None if there is none.
        read: reads it; raises ConfigError.
        empty: the list where there is none.
        renew: called once an hour to renew what the process issues itself.
        changed: called after list or own certificate may have changed; perhaps in a thread.

    Attributes:
        listed: the access list.
        own: the names of the own certificate.

    Raises:
        ConfigError: a certificate, the revocation list or the access list cannot be used: what, where.
    """

    def __init__(
        self,
        files: Credentials | None,
        access: Path | None,
        read: Callable[[Path], L],
        empty: L,
        *,
        renew: Callable[[], object],
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._files = files
        self._access = access
        self._read = read
        self._changed = changed
        self._tls = None if files is None else ServerTls(files)
        self._reading = threading.Lock()
        self._seen = self._stamps()
        self.listed = empty if access is None else read(access)
        self.own = self._own_names()
        self._expiry = None if files is None else ExpiryWatch(files, renew)

    @property
    def encrypted(self) -> bool:
        """Whether there are identities at all."""
        return self._tls is not None

    @property
    def context(self) -> ssl.SSLContext:
        """What the next connection gets."""
        if self._tls is None:
            raise ConfigError("encryption is off, there is no TLS context")
        return self._tls.context

    def refresh(self) -> bool:
        """Look at all files; return True if other CAs are trusted now, or other certificates revoked. Blocking."""
        changed = self._tls is not None and self._tls.refresh()
        self.take_in_changes()
        if self._expiry is not None:
            self._expiry.log_due()
        return changed

    def take_in_changes(self) -> None:
        """Read list and own names again if their files have changed; wrong ones leave those before in force."""
        with self._reading:  # the server's look in its thread, or a refusal in the loop
            stamps = self._stamps()
            if stamps == self._seen:
                return
            self._seen = stamps
            try:
                if self._access is not None:
                    self.listed = self._read(self._access)
                self.own = self._own_names()
            except ConfigError as error:
                log.error("%s; the access list stays as it was", error.message)
                return
            finally:
                self._changed()
            log.info("access list and own certificate were read again")

    def _own_names(self) -> frozenset[str]:
        if self._files is None:
            return frozenset()
        from jobpipe.net.tls.certificates import describe  # loads `cryptography`

        return frozenset(describe(self._files.cert).names)

    def _stamps(self) -> tuple[_Stamp | None, ...]:
        certificate = None if self._files is None else self._files.cert
        return tuple(_stamp(path) for path in (self._access, certificate))


def _stamp(path: Path | None) -> _Stamp | None:
    if path is None:
        return None
    try:
        info = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (info.st_mtime_ns, info.st_size, info.st_ino)
