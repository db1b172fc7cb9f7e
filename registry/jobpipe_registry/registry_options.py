"""The options of :meth:`RegisterServerHandler.start`, checked. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jobpipe_registry.credentials import Grant, Sasl, Tls, parse_acl, parse_sasl, parse_tls
from jobpipe_registry.registry_errors import BadOption

_LONGEST_WAIT = 3600.0


@dataclass(frozen=True)
class RegistryOptions:
    """Where the registry is, who we are there, and how long to wait for it. Times in seconds."""

    connect: str
    namespace: str
    session_timeout: float
    connect_timeout: float
    sasl: Sasl | None
    tls: Tls | None
    acl: tuple[Grant, ...]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> RegistryOptions:
        """Read the keys that :meth:`RegisterServerHandler.start` names; ignore all others.

        Raises:
            BadOption: a time is not a number above 0 and at most 3600, or an option of :mod:`.credentials` is
                wrong.
        """
        sasl, tls = parse_sasl(options), parse_tls(options)
        known = sasl is not None or (tls is not None and tls.cert is not None)
        return cls(
            connect=options.get("connect", "127.0.0.1:2181").strip(),
            namespace=options.get("topic.storage", "/jobpipe/topics"),
            session_timeout=_seconds(options, "session.timeout", 10.0),
            connect_timeout=_seconds(options, "connect.timeout", 10.0),
            sasl=sasl,
            tls=tls,
            acl=parse_acl(options.get("acl") or ("auth" if known else "open")),
        )

    @property
    def identity(self) -> str:
        """Who we are to the servers, as a phrase."""
        ours = [str(self.sasl)] if self.sasl is not None else []
        if self.tls is not None and self.tls.cert is not None:
            ours.append(f"certificate {self.tls.cert}")
        return " and ".join(ours) or "an anonymous client, without SASL or a client certificate"


def _seconds(options: Mapping[str, str], key: str, default: float) -> float:
    text = options.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _LONGEST_WAIT:  # false for nan, too
        raise BadOption(key, f"seconds, above 0 and at most {_LONGEST_WAIT:.0f}, not {text!r}")
    return value
