"""The keys of TLS and of the access list."""

# ruff: noqa: RUF009  key() returns a new dataclass field for each attribute

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobpipe.config.definitions.definition import key
from jobpipe.config.types.secrets import Secret
from jobpipe.config.types.value_types import BOOLEAN, PATH, SECRET, duration, optional


@dataclass(frozen=True, kw_only=True)
class SecurityKeys:
    """Certificates, the switches of encryption, and who may do what."""

    ssl_enabled: bool = key(
        "jobpipe.ssl.enabled",
        BOOLEAN,
        True,
        "jobpipe's own switch. Links are encrypted, with certificates checked on both sides, when this switch and "
        "security.ssl.enabled are both true.",
        group="security",
    )
    ssl_ca: Path | None = key(
        "jobpipe.ssl.ca",
        optional(PATH),
        None,
        "Certificate of the CA (PEM) that all jobs of the namespace trust. null = with the embedded registry, made "
        "under home on first use; otherwise make it with: jobpipe certs init.",
        group="security",
    )
    ssl_cert: Path | None = key(
        "jobpipe.ssl.cert",
        optional(PATH),
        None,
        "This process's certificate (PEM), for serving and for connecting. null = as for ssl.ca.",
        group="security",
    )
    ssl_key: Path | None = key(
        "jobpipe.ssl.key",
        optional(PATH),
        None,
        "Private key of ssl.cert (PEM), which only its owner may read. null = as for ssl.ca.",
        group="security",
    )
    ssl_key_password: Secret | None = key(
        "jobpipe.ssl.key.password",
        optional(SECRET),
        None,
        "Where the password of ssl.key is, if it has one: file:PATH, env:NAME, or enc:... as made by: jobpipe config "
        "encrypt.",
        group="security",
        secret=True,
    )
    ssl_crl: Path | None = key(
        "jobpipe.ssl.crl",
        optional(PATH),
        None,
        "Revocation lists (PEM) of the CAs in ssl.ca. The file must hold one list for each CA. null = the file next "
        "to ssl.ca with the extension .crl, if there is one.",
        group="security",
    )
    ssl_max_connection_age: float = key(
        "jobpipe.ssl.max_connection_age",
        duration(1.0),
        "24h",
        "A server closes links that are older than this, so that their clients authenticate again. Clients reconnect "
        "by themselves.",
        group="security",
    )
    platform_ssl: bool = key(
        "security.ssl.enabled",
        BOOLEAN,
        True,
        "The platform's switch for encryption; jobpipe.ssl.enabled is the other one.",
        group="security",
    )
    allow_plaintext: bool = key(
        "security.allow_plaintext",
        BOOLEAN,
        False,
        "Allow links without encryption and without identities beyond loopback.",
        group="security",
    )
    access: Path | None = key(
        "security.access",
        optional(PATH),
        None,
        "Access list of the topics that this job publishes (YAML): who may publish or administer which topics, and "
        "who may read them under which subscription names. It is read again when it changes. null = with the embedded "
        "registry and its own CA, every holder of one of its certificates has access; otherwise only holders of this "
        "process's own certificate.",
        group="security",
    )
