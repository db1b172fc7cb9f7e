"""Checks of the registry's keys: values that are wrong only together."""

from __future__ import annotations

from jobpipe.config.definitions.config_model import Config

_OWN_WAY = "while the registry is embedded: that one is on loopback, and makes its own TLS files"


def _mechanism(config: Config) -> str | None:
    if config.embedded and config.registry_sasl_mechanism is not None:
        return f"null {_OWN_WAY}"
    given = {
        "sasl.username": config.registry_sasl_username,
        "sasl.password": config.registry_sasl_password,
        "sasl.principal": config.registry_sasl_principal,
    }
    names = [name for name, value in given.items() if value is not None]
    if config.registry_sasl_mechanism is None and names:
        return f"DIGEST-MD5 or GSSAPI, since registerserver.{names[0]} is given"
    return None


def _username(config: Config) -> str | None:
    if config.registry_sasl_mechanism == "DIGEST-MD5" and config.registry_sasl_username is None:
        return "a name, since registerserver.sasl.mechanism is DIGEST-MD5"
    return None


def _password(config: Config) -> str | None:
    if config.registry_sasl_mechanism == "DIGEST-MD5" and config.registry_sasl_password is None:
        return "a reference to the password, since registerserver.sasl.mechanism is DIGEST-MD5"
    return None


def _ssl_enabled(config: Config) -> str | None:
    return f"false {_OWN_WAY}" if config.embedded and config.registry_ssl_enabled else None


def _ssl_ca(config: Config) -> str | None:
    if config.registry_ssl_enabled and config.registry_ssl_ca is None:
        return "a file with the CA of the ZooKeeper servers, since registerserver.ssl.enabled is true"
    return None


def _ssl_cert(config: Config) -> str | None:
    if config.registry_ssl_cert is None and config.registry_ssl_key is not None:
        return "a file: registerserver.ssl.cert and registerserver.ssl.key go together"
    return None


def _ssl_key(config: Config) -> str | None:
    if config.registry_ssl_key is None and config.registry_ssl_cert is not None:
        return "a file: registerserver.ssl.cert and registerserver.ssl.key go together"
    return None


def _acl(config: Config) -> str | None:
    known = config.registry_sasl_mechanism is not None or (
        config.registry_ssl_enabled and config.registry_ssl_cert is not None
    )
    words = [word.strip() for word in (config.registry_acl or "").split(",")]
    if "auth" in words and not known:
        return "no auth without authentication to the registry: set registerserver.sasl.mechanism or ssl.cert"
    return None


_SASL = tuple(f"registry_sasl_{name}" for name in ("mechanism", "username", "password", "principal"))
_SSL = tuple(f"registry_ssl_{name}" for name in ("enabled", "ca", "cert", "key"))

REGISTRY_CHECKS = (
    ("registry_sasl_mechanism", ("registry_connect", *_SASL), _mechanism),
    ("registry_sasl_username", _SASL, _username),
    ("registry_sasl_password", _SASL, _password),
    ("registry_ssl_enabled", ("registry_connect",), _ssl_enabled),
    ("registry_ssl_ca", _SSL, _ssl_ca),
    ("registry_ssl_cert", _SSL, _ssl_cert),
    ("registry_ssl_key", _SSL, _ssl_key),
    ("registry_acl", (*_SASL, *_SSL), _acl),
)
"""(attribute that is blamed, attributes that are read, the check), as config_checks takes them."""
