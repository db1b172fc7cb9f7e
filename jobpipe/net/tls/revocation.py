"""Certificate revocation lists: made by the CA, checked before they are put into a TLS context.

OpenSSL refuses every certificate of a CA whose list is missing or out of date, with words that only its own log shows;
so both are looked for here, where the error can name the file and say what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from jobpipe.errors import ConfigError
from jobpipe.net.tls.issued_certificates import serials_of
from jobpipe.net.tls.key_files import locked, read_ca, read_certificate, read_certificates, write_crl

CRL_LIFE = timedelta(days=365)
RENEW_BEFORE = timedelta(days=30)
CLOCK_SKEW = timedelta(hours=1)
_SIGNERS = (ec.EllipticCurvePublicKey, rsa.RSAPublicKey)
_END = b"-----END X509 CRL-----"


@dataclass(frozen=True)
class CrlInfo:
    """What ``jobpipe certs show`` tells of a list; times in UTC."""

    issuer: str
    revoked: tuple[str, ...]  # serial numbers, hex
    not_before: datetime
    not_after: datetime


def revoke(
    directory: Path, names: Sequence[str] = (), *, serials: Sequence[int] = (), now: datetime | None = None
) -> Path:
    """Add certificates to ``ca.crl`` in ``directory``, which is made again and lasts a year; return its path.

    Without certificates the list is only made, or dated, again.

    Args:
        directory: where ``ca.crt`` and ``ca.key`` are.
        names: of certificates that the CA issued; each that was ever issued under a name, since a renewal keeps the
            key.
        serials: of certificates that are not there any more.
        now: the date of the list.

    Raises:
        ConfigError: no such certificate, or it is not of the CA in the folder; the CA's key is not there.
    """
    with locked(directory):
        ca, _ = read_ca(directory)
        numbers = list(serials)
        for name in names:
            known = serials_of(directory, name)
            numbers += known
            path = directory / f"{name}.crt"
            if known and not path.exists():
                continue
            certificate = read_certificate(path)
            if name == "ca" or certificate.issuer != ca.subject:
                raise ConfigError(
                    f"{path}: expected a certificate that the CA in {directory} has issued; a CA is not revoked: "
                    "remove it from ssl.ca on every host",
                    file=str(path),
                )
            numbers.append(certificate.serial_number)
        _write(directory, numbers, now or datetime.now(UTC))
    return directory / "ca.crl"


def keep_crl(directory: Path, now: datetime) -> None:
    """Renew the date of a list that ends soon; the folder's lock is held."""
    path = directory / "ca.crl"
    if path.exists() and _end(_crls(path)[0], path) <= now + RENEW_BEFORE:
        _write(directory, [], now)


def is_revoked(directory: Path, certificate: Path) -> bool:
    """Whether the list in ``directory`` has the certificate."""
    path = directory / "ca.crl"
    if not path.exists():
        return False
    found = read_certificate(certificate)
    return any(
        crl.issuer == found.issuer and crl.get_revoked_certificate_by_serial_number(found.serial_number) is not None
        for crl in _crls(path)
    )


def describe_crls(path: Path) -> list[CrlInfo]:
    """Return the facts of each list in a PEM file.

    Raises:
        ConfigError: the file is missing or holds none.
    """
    return [
        CrlInfo(
            issuer=crl.issuer.rfc4514_string(),
            revoked=tuple(f"{entry.serial_number:x}" for entry in crl),
            not_before=crl.last_update_utc,
            not_after=_end(crl, path),
        )
        for crl in _crls(path)
    ]


def check_crls(path: Path, ca: Path) -> None:
    """Demand one valid list for each CA of a bundle.

    Raises:
        ConfigError: a list is missing, damaged, of no CA of the bundle, or out of date.
    """
    lists, at = _crls(path), datetime.now(UTC)
    for authority in read_certificates(ca):
        key, subject = authority.public_key(), authority.subject.rfc4514_string()
        if not isinstance(key, _SIGNERS):
            raise _bad(path, f"a CA with an EC or RSA key, not {subject}", type(key).__name__)
        mine = [crl for crl in lists if crl.issuer == authority.subject and crl.is_signature_valid(key)]
        if not mine:
            raise _bad(path, f"the revocation list of the CA {subject}, which {ca} trusts", "there is none")
        ends = max(_end(crl, path) for crl in mine)
        if ends <= at:
            raise _bad(path, f"a valid revocation list of the CA {subject}", f"it ended {ends:%Y-%m-%d %H:%M} UTC")


def _write(directory: Path, serials: Sequence[int], now: datetime) -> None:
    ca, key = read_ca(directory)
    path = directory / "ca.crl"
    known = _crls(path)[0] if path.exists() else None
    builder = x509.CertificateRevocationListBuilder(ca.subject, now - CLOCK_SKEW, now + CRL_LIFE)
    number = 1
    if known is not None:
        for entry in known:
            builder = builder.add_revoked_certificate(entry)
        number = known.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number + 1
    for serial in dict.fromkeys(serials):
        if known is None or known.get_revoked_certificate_by_serial_number(serial) is None:
            entry = x509.RevokedCertificateBuilder(serial_number=serial, revocation_date=now).build()
            builder = builder.add_revoked_certificate(entry)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    builder = builder.add_extension(authority, critical=False)
    builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    write_crl(path, builder.sign(key, hashes.SHA256()))


def _crls(path: Path) -> list[x509.CertificateRevocationList]:
    try:
        blocks = path.read_bytes().split(_END)[:-1]
        found = [x509.load_pem_x509_crl(block + _END + b"\n") for block in blocks]
    except (OSError, ValueError) as error:
        raise _bad(path, "a certificate revocation list in PEM", str(error)) from error
    if not found:
        raise _bad(path, "a certificate revocation list in PEM", "it holds none")
    return found


def _end(crl: x509.CertificateRevocationList, path: Path) -> datetime:
    if crl.next_update_utc is None:
        raise _bad(path, "a revocation list with the date of its next update", "it has none")
    return crl.next_update_utc


def _bad(path: Path, expected: str, reason: str) -> ConfigError:
    text = f"{path}: expected {expected} ({reason}); `jobpipe certs revoke` where the CA's key is makes a new one"
    return ConfigError(text, file=str(path), expected=expected, reason=reason)
