"""TLS contexts from certificate files.

Both sides show a certificate of the CAs given here; the system's CAs are never trusted. Contexts are kept per
process and made again when a file changes, since making one costs about a millisecond. So a caller that asks for the
context before each connection sees new certificates, CAs and revocation lists without a restart.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from jobpipe.config import Config
from jobpipe.config.types.secrets import Secret
from jobpipe.errors import ConfigError
from jobpipe.net.tls.tls_alerts import AlertingObject


@dataclass(frozen=True)
class Credentials:
    """The files a process proves its identity with: trusted CAs, own certificate, own private key (all PEM).

    ``password`` opens an encrypted key; it is read when a context is made. ``crl`` is the revocation list of those CAs;
    None: the one in the folder of ``ca``, if there is any. Once there is one, every CA in ``ca`` needs one.
    """

    ca: Path
    cert: Path
    key: Path
    password: Secret | None = None
    crl: Path | None = None

    @property
    def revoked(self) -> Path:
        """Where the revocation list is, or would be."""
        return self.crl or self.ca.with_suffix(".crl")


def configured(config: Config) -> Credentials | None:
    """Return the files that the configuration names; None unless it names all three."""
    if config.ssl_ca is None or config.ssl_cert is None or config.ssl_key is None:
        return None
    return Credentials(config.ssl_ca, config.ssl_cert, config.ssl_key, config.ssl_key_password, config.ssl_crl)


log = logging.getLogger(__name__)

_Stamps = tuple[tuple[int, int, int] | None, ...]
_contexts: dict[tuple[bool, Credentials], tuple[_Stamps, ssl.SSLContext]] = {}
_troubles: dict[Credentials, str] = {}  # what the log was told of files that do not fit together


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the context for accepting: TLS 1.2 or newer, a client certificate of our CA is demanded.

    Raises:
        ConfigError: a file is missing, unreadable or no PEM, the key is encrypted, is not that of the certificate, or
            may be read by group or others; the revocation list is out of date, or a CA has none.
    """
    return _context(credentials, server=True)


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """Return the context for connecting: as :func:`server_context`, and the server's name is checked.

    ``server_hostname`` of the connection is :func:`jobpipe.net.tls.certificates.topic_server_name` of the topic, not
    the host.
    """
    return _context(credentials, server=False)


def latest_context(credentials: Credentials, *, server: bool = False) -> ssl.SSLContext:
    """Return the context of the files as they are, or, while they do not fit together, the one before.

    Certificate and key are two files and cannot change at once; the log says what is wrong with them, once.

    Raises:
        ConfigError: as :func:`client_context`, if this process had no good files before.
    """
    try:
        context = _context(credentials, server=server)
    except ConfigError as error:
        known = _contexts.get((server, credentials))
        if known is None:
            raise
        if _troubles.get(credentials) != error.message:
            log.error("%s; the previous certificates stay in use", error.message)
        _troubles[credentials] = error.message
        return known[1]
    _troubles.pop(credentials, None)
    return context


class RenewableTls(Protocol):
    """A context that is reloaded when its files change, such as :class:`ServerTls`."""

    @property
    def context(self) -> ssl.SSLContext:
        """What the next connection gets."""
        ...

    def refresh(self) -> bool:
        """Look at the files; return True if trust has changed, so that all peers must prove themselves. Blocking."""
        ...


class ServerTls:
    """A server's context for a long life: always the latest."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.context = server_context(credentials)
        self._trust = self._trusted()

    def refresh(self) -> bool:
        """Look at the files; return True if others are trusted now: CAs or revocation list have changed. Blocking."""
        self.context = latest_context(self._credentials, server=True)
        before, self._trust = self._trust, self._trusted()
        return before != self._trust

    def _trusted(self) -> _Stamps:
        """Return what the context in use was made from, as far as it says whom we trust."""
        stamps = _contexts[True, self._credentials][0]
        return (stamps[0], stamps[-1])


def _context(credentials: Credentials, *, server: bool) -> ssl.SSLContext:
    stamps = _check_files(credentials)
    known = _contexts.get((server, credentials))
    if known is not None and known[0] == stamps:
        return known[1]
    context = _make(credentials, server=server, crl=stamps[-1] is not None)
    _contexts[server, credentials] = (stamps, context)
    return context


def _make(credentials: Credentials, *, server: bool, crl: bool) -> ssl.SSLContext:
    # not create_default_context: it loads the system's CAs (26 ms) and honours SSLKEYLOGFILE
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.verify_mode = ssl.CERT_REQUIRED
    if server:
        context.sslobject_class = AlertingObject
    else:
        context.check_hostname = True
        context.hostname_checks_common_name = False
    try:
        context.load_verify_locations(cafile=credentials.ca)
    except (OSError, ssl.SSLError) as error:
        raise _bad(credentials.ca, "one or more CA certificates in PEM", error) from error
    if crl:
        from jobpipe.net.tls.revocation import check_crls  # loads `cryptography`

        check_crls(credentials.revoked, credentials.ca)
        try:
            context.load_verify_locations(cafile=credentials.revoked)
        except (OSError, ssl.SSLError) as error:
            raise _bad(credentials.revoked, "a certificate revocation list in PEM", error) from error
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    password = None if credentials.password is None else credentials.password.reveal()
    try:
        context.load_cert_chain(credentials.cert, credentials.key, password=password or _no_password)
    except _EncryptedKeyError as error:
        expected = "a private key in PEM without a password, or its password in jobpipe.ssl.key.password"
        raise _bad(credentials.key, expected, error) from error
    except (OSError, ssl.SSLError) as error:
        expected = f"a certificate in PEM with the private key {credentials.key}"
        if password is not None:
            expected += f", which the password at {credentials.password} opens"
        raise _bad(credentials.cert, expected, error) from error
    return context


class _EncryptedKeyError(Exception):
    """OpenSSL asks for a password; without an answer of ours it would ask at the terminal."""


def _no_password() -> str:
    raise _EncryptedKeyError("the key is encrypted")


def _check_files(credentials: Credentials) -> _Stamps:
    """Return what changes when a file does: of CA, certificate, key, and revocation list, None if there is none."""
    stamps: list[tuple[int, int, int] | None] = []
    for path in (credentials.ca, credentials.cert, credentials.key, credentials.revoked):
        try:
            info = os.stat(path)
        except FileNotFoundError as error:
            if path == credentials.revoked and credentials.crl is None:
                stamps.append(None)
                continue
            raise _bad(path, "a readable file", error) from error
        except OSError as error:
            raise _bad(path, "a readable file", error) from error
        if path == credentials.key and stat.S_IMODE(info.st_mode) & 0o077:
            mode = f"{stat.S_IMODE(info.st_mode):04o}"
            raise _bad(path, f"a private key that only its owner may read (chmod 600), not mode {mode}", None)
        stamps.append((info.st_mtime_ns, info.st_size, info.st_ino))
    return tuple(stamps)


def _bad(path: Path, expected: str, error: Exception | None) -> ConfigError:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or (str(error) if error else "")
    text = f"{path}: expected {expected}" + (f" ({reason})" if reason else "")
    return ConfigError(text, file=str(path), expected=expected, reason=reason)
