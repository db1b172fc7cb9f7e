"""Keys and certificates as files: whole or not at all, keys readable by their owner alone, one writer at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from jobpipe.errors import ConfigError
from jobpipe_registry.host.local_files import locked_file, write_whole

LOCK_TIMEOUT = 30.0


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected a certificate in PEM ({error})", file=str(path)) from error


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Return all certificates of a PEM file; a bundle of CAs has several."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected certificates in PEM ({error})", file=str(path)) from error


def read_ca(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the certificate and the key of the CA in ``directory``."""
    certificate, path = read_certificate(directory / "ca.crt"), directory / "ca.key"
    if not path.exists() or not is_pair(certificate, key := read_key(path)):
        raise ConfigError(f"{path}: expected the key of {directory / 'ca.crt'}, to sign with", file=str(path))
    return certificate, key


def is_pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    """Whether the key is that of the certificate."""
    return certificate.public_key() == key.public_key()


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:  # no text of the error: it is a key
        raise ConfigError(f"{path}: expected a private key in PEM without a password", file=str(path)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: expected an EC key", file=str(path))
    return key


def key_at(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key at ``path``, which is made if it is missing."""
    if path.exists():
        return read_key(path)
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(path, pem, 0o600)
    return key


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    _write(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def write_crl(path: Path, crl: x509.CertificateRevocationList) -> None:
    _write(path, crl.public_bytes(serialization.Encoding.PEM), 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        write_whole(path, content, mode)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})", file=str(path)) from error


def _make_folder(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{directory}: expected a folder of this user ({error.strerror})", file=str(directory)
        ) from error


def close_folder(directory: Path) -> None:
    """Take every right on a folder from group and others."""
    try:
        directory.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"{directory}: expected a folder of this user ({error.strerror})", file=str(directory)
        ) from error


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make the folder, and hold its lock; the lock of a process that dies is free."""
    _make_folder(directory)
    lock = directory / ".lock"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked_file(lock, LOCK_TIMEOUT))
        except TimeoutError as error:
            raise ConfigError(f"{lock}: held by another process for {LOCK_TIMEOUT:g} s", file=str(lock)) from error
        except OSError as error:
            raise ConfigError(f"{directory}: cannot be written ({error.strerror})", file=str(directory)) from error
        yield
