"""Certificates: the namespace's CA, the certificates of jobs, and those that ``home`` makes for itself.

EC P-256 keys. Files are written whole or not at all, keys with mode 0600 in a folder of mode 0700. A certificate says
by DNS names *who* a peer is (``orders.topic.jobpipe``), never where: jobs move between hosts.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from jobpipe.config import Config
from jobpipe.config.home_folder import make_home
from jobpipe.errors import ConfigError
from jobpipe.net.tls.issued_certificates import note_issued
from jobpipe.net.tls.key_files import (
    close_folder,
    is_pair,
    key_at,
    locked,
    read_ca,
    read_certificate,
    read_certificates,
    read_key,
    write_certificate,
)
from jobpipe.net.tls.peer_names import LABEL, label
from jobpipe.net.tls.revocation import CLOCK_SKEW, is_revoked, keep_crl
from jobpipe.net.tls.tls_context import Credentials, configured

CA_LIFE = timedelta(days=3650)
NODE_LIFE = timedelta(days=825)  # the longest that strict verifiers accept
RENEW_BEFORE = timedelta(days=30)
SERVER, CLIENT = "server", "client"
BOTH = (SERVER, CLIENT)
_USAGES = {SERVER: ExtendedKeyUsageOID.SERVER_AUTH, CLIENT: ExtendedKeyUsageOID.CLIENT_AUTH}
NODE = "node"
NODE_NAMES = ("*.topic.jobpipe", "node.jobpipe")

_good: dict[
    Credentials, tuple[tuple[tuple[int, ...], ...], datetime]
] = {}  # what the files were, and until when they do
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class CertificateInfo:
    """What ``jobpipe certs show`` and ``doctor`` tell of a certificate; times in UTC."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    usages: tuple[str, ...]  # of SERVER and CLIENT
    not_before: datetime
    not_after: datetime
    is_ca: bool
    serial: str
    fingerprint: str  # SHA-256 of the DER form, hex


def credentials(config: Config) -> Credentials | None:
    """Return the credentials of this process: None without TLS, those configured, or else those of ``home``.

    Raises:
        ConfigError: the certificates of ``home`` cannot be made.
    """
    if not config.tls:
        return None
    if (given := configured(config)) is not None:
        return given
    return dataclasses.replace(ensure_home(config.home), crl=config.ssl_crl)


def init_ca(directory: Path, *, name: str | None = None, now: datetime | None = None) -> None:
    """Make ``ca.crt`` and ``ca.key`` in ``directory``, valid for ten years.

    Args:
        directory: made with mode 0700 if it is missing.
        name: common name of the CA; by default ``jobpipe CA`` and a random word, so that two CAs can be told apart.
        now: start of validity.

    Raises:
        ConfigError: there is a CA already, or the folder cannot be written.
    """
    with locked(directory):
        for path in (directory / "ca.crt", directory / "ca.key"):
            if path.exists():
                raise ConfigError(f"{path}: there is a CA already; it is never replaced", file=str(path))
        _make_ca(directory, name, now or datetime.now(UTC))


def issue(
    directory: Path,
    name: str,
    *,
    dns: Sequence[str] = (),
    usages: Sequence[str] = BOTH,
    replace: bool = False,
    now: datetime | None = None,
) -> Credentials:
    """Make ``<name>.crt`` and ``<name>.key`` in ``directory``, signed by the CA there, valid for 825 days.

    Args:
        directory: where ``ca.crt`` and ``ca.key`` are.
        name: common name and file name.
        dns: DNS names to prove; by default only ``<name>.jobpipe``. A publisher needs ``*.topic.jobpipe`` or
            :func:`topic_server_name` of each of its topics.
        usages: SERVER, CLIENT or both. A publisher needs both: it serves, and it is a client of its own coordinator.
        replace: write over a certificate that exists, with the key it has.
        now: start of validity.

    Raises:
        ConfigError: no CA, a bad name, files that exist (unless what they hold is revoked: then a new key is made), or
            a folder that cannot be written.
    """
    names = tuple(dns) or (f"{label(name)}.jobpipe",)
    for text in names:
        if not _is_dns_name(text):
            raise ConfigError(f"{text!r}: expected a lower-case DNS name, * only as its first label", name=text)
    files = _leaf_files(directory, name)
    with locked(directory):
        revoked = files.cert.exists() and is_revoked(directory, files.cert)
        for path in (files.cert, files.key):
            if path.exists() and not replace and not revoked:
                raise ConfigError(f"{path}: the file exists; `jobpipe certs renew {name}` renews it", file=str(path))
        if revoked:
            read_ca(directory)  # before anything goes
            files.key.unlink(missing_ok=True)
        _issue(directory, name, names, usages, now or datetime.now(UTC))
        return files


def renew(directory: Path, name: str, *, now: datetime | None = None) -> Path:
    """Make ``<name>.crt`` again, with the names, usages and key it has; ``ca`` is the CA itself. Return its path.

    Raises:
        ConfigError: there is none, it is revoked, or the CA's key is not there.
    """
    path = directory / f"{name}.crt"
    at = now or datetime.now(UTC)
    with locked(directory):
        if name == "ca":
            read_ca(directory)
            _make_ca(directory, None, at)
            return path
        files = _leaf_files(directory, name)
        known = describe(path)
        if is_revoked(directory, path):
            raise ConfigError(
                f"{path}: it is revoked, and others may have its key; `jobpipe certs issue {name}` makes a new key",
                file=str(path),
            )
        if not files.key.exists():
            raise ConfigError(
                f"{files.key}: expected the key of {path}; renew where the key is, or issue one under another name",
                file=str(files.key),
            )
        _issue(directory, name, known.names, known.usages, at)
        return path


def ensure_home(home: Path, *, now: datetime | None = None) -> Credentials:
    """Return the credentials under ``home/certs``; what is missing, expired or soon to expire is made.

    Any number of processes may call it at once; one makes the files and the others wait. A renewed certificate keeps
    its key, so that a reader never sees a pair that does not match.

    Raises:
        ConfigError: the folder cannot be written, the lock is held for more than 30 s, a file is damaged, or the CA's
            key was taken away and a certificate must be made.
    """
    directory = home / "certs"
    files = _files(directory, NODE)
    at = now or datetime.now(UTC)
    if _is_current(files, at):
        return files
    make_home(home)
    with locked(directory):
        close_folder(directory)
        if not _is_current(files, at):
            if not _ca_is_current(files.ca, at):
                _make_ca(directory, None, at)
            _issue(directory, NODE, NODE_NAMES, BOTH, at)
            keep_crl(directory, at)
    return files


def describe(path: Path) -> CertificateInfo:
    """Return the facts of the first certificate in a PEM file.

    Raises:
        ConfigError: the file is missing or holds no certificate.
    """
    return _facts(read_certificate(path))


def describe_all(path: Path) -> list[CertificateInfo]:
    """Return the facts of each certificate in a PEM file; raises as :func:`describe`."""
    return [_facts(certificate) for certificate in read_certificates(path)]


def _facts(certificate: x509.Certificate) -> CertificateInfo:
    return CertificateInfo(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        names=_dns_names(certificate),
        usages=_usages(certificate),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        is_ca=_is_ca(certificate),
        serial=f"{certificate.serial_number:x}",
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def _leaf_files(directory: Path, name: str) -> Credentials:
    if _FILE_NAME.fullmatch(name) is None or name == "ca":
        raise ConfigError(f"{name!r}: expected a name of letters, digits, . _ - that is not ca", name=name)
    return _files(directory, name)


def _files(directory: Path, name: str) -> Credentials:
    return Credentials(directory / "ca.crt", directory / f"{name}.crt", directory / f"{name}.key")


def _is_dns_name(text: str) -> bool:
    labels = text.removeprefix("*.").split(".")
    return len(text) <= 253 and all(LABEL.fullmatch(label) for label in labels)


# --- certificates ---


def _make_ca(directory: Path, name: str | None, now: datetime) -> None:
    """Write a self-signed CA; one that is there already keeps key and name, so that what it signed stays valid."""
    if (directory / "ca.crt").exists():
        key = read_ca(directory)[1]
        subject = read_certificate(directory / "ca.crt").subject
    else:
        key = key_at(directory / "ca.key")
        common = name or f"jobpipe CA {secrets.token_hex(4)}"
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    builder = _builder(subject, subject, key, key, now, now + CA_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(ca=True), critical=True)
    write_certificate(directory / "ca.crt", builder.sign(key, hashes.SHA256()))


def _issue(directory: Path, name: str, dns: Sequence[str], usages: Sequence[str], now: datetime) -> None:
    ca, ca_key = read_ca(directory)
    files = _files(directory, name)
    key = key_at(files.key)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    end = min(now + NODE_LIFE, ca.not_valid_after_utc)
    builder = _builder(subject, ca.subject, key, ca_key, now, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(ca=False), critical=True)
    allowed = x509.ExtendedKeyUsage([_USAGES[usage] for usage in usages])
    builder = builder.add_extension(allowed, critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(text) for text in dns]), critical=False)
    certificate = builder.sign(ca_key, hashes.SHA256())
    note_issued(directory, name, certificate)  # first: what is not listed cannot be revoked
    write_certificate(files.cert, certificate)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    start: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(
            subject_name=subject,
            issuer_name=issuer,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=start - CLOCK_SKEW,
            not_valid_after=end,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _is_current(files: Credentials, now: datetime) -> bool:
    """Whether the pair of ``home`` is there, fits, comes from the CA of that folder and lasts.

    Every batch of a publisher asks (0.5 ms): files that were found good are read again when they have changed.
    """
    try:
        stats = [os.stat(path) for path in (files.ca, files.cert, files.key)]
    except (FileNotFoundError, NotADirectoryError):
        return False
    stamps = tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats)
    known = _good.get(files)
    if known is None or known[0] != stamps:
        known = (stamps, _good_until(files))
        _good[files] = known
    return now < known[1]


def _good_until(files: Credentials) -> datetime:
    """Return when the pair must be renewed; long ago if it does not fit."""
    try:
        ca, certificate, key = read_certificate(files.ca), read_certificate(files.cert), read_key(files.key)
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):  # of another CA, which was removed
        return datetime.min.replace(tzinfo=UTC)
    if not is_pair(certificate, key) or _dns_names(certificate) != NODE_NAMES:
        return datetime.min.replace(tzinfo=UTC)
    return min(certificate.not_valid_after_utc, ca.not_valid_after_utc) - RENEW_BEFORE


def _ca_is_current(path: Path, now: datetime) -> bool:
    return path.exists() and now + RENEW_BEFORE < read_certificate(path).not_valid_after_utc


def _is_ca(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _dns_names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    return tuple(extension.value.get_values_for_type(x509.DNSName))


def _usages(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    except x509.ExtensionNotFound:
        return ()
    return tuple(usage for usage, number in _USAGES.items() if number in extension.value)
