"""The keys of TLS and of the access list."""

# ruff: noqa: RUF009  key() returns a new dataclass field for each attribute

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobpipe.config.definition import key
from jobpipe.config.secrets import Secret
from jobpipe.config.values import BOOLEAN, PATH, SECRET, duration, optional


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
        "Certificate of the CA (PEM) that all jobs of the namespace trust. null + embedded registry = made on first "
        "use under home; else run: jobpipe certs init.",
        group="security",
    )
    ssl_cert: Path | None = key(
        "jobpipe.ssl.cert",
        optional(PATH),
        None,
        "This process's certificate (PEM), for serving and for connecting. null as with ssl.ca.",
        group="security",
    )
    ssl_key: Path | None = key(
        "jobpipe.ssl.key",
        optional(PATH),
        None,
        "Private key of ssl.cert (PEM), which only its owner may read. null as with ssl.ca.",
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
        "Revocation list (PEM) of the CAs in ssl.ca; every one of them needs its own in it. null = the file next to "
        "ssl.ca with the ending .crl, if there is one.",
        group="security",
    )
    ssl_max_connection_age: float = key(
        "jobpipe.ssl.max_connection_age",
        duration(1.0),
        "24h",
        "A server ends links that are older, so that their clients prove who they are again; they dial again by "
        "themselves.",
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
        "Access list of the topics that this job publishes (YAML): who may publish, read under which subscription "
        "names, or administer which topics. Read again when it changes. null = with the embedded registry and its own "
        "CA, every holder of one of its certificates; else only holders of this process's own certificate.",
        group="security",
    )
