"""Warnings before certificates and revocation lists end: 30, 7 and 1 days ahead."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from jobpipe.errors import ConfigError
from jobpipe.net.tls.tls_context import Credentials

log = logging.getLogger(__name__)

WARN_DAYS = (1, 7, 30)
LOOK_SECONDS = 3600.0
REVOKE = "jobpipe certs revoke, without a name, then copy it"


@dataclass(frozen=True)
class Expiry:
    """When something ends, in UTC, and how it is renewed."""

    path: Path
    what: str
    start: datetime
    end: datetime
    remedy: str

    def threshold(self, now: datetime) -> int | None:
        """Return the least of :data:`WARN_DAYS` that is left at most; 0 when it has ended; None when all is well."""
        left = self.end - now
        if left <= timedelta(0):
            return 0
        return next((days for days in WARN_DAYS if left <= timedelta(days=days)), None)

    def left(self, now: datetime) -> str:
        """Return what is left, for people."""
        left = self.end - now
        return f"{left.days} days left" if left.days else f"{max(0, int(left.total_seconds()) // 3600)} hours left"


def expiries(files: Credentials) -> list[Expiry]:
    """Return the ends of all CAs, of the certificate, and of the revocation lists, if there are any.

    Raises:
        ConfigError: a file cannot be read.
    """
    from jobpipe.net.tls.certificates import describe, describe_all  # loads `cryptography`
    from jobpipe.net.tls.revocation import describe_crls

    own = describe(files.cert)
    found = [
        Expiry(files.ca, f"CA {ca.subject}", ca.not_before, ca.not_after, "jobpipe certs renew ca, then copy it")
        for ca in describe_all(files.ca)
    ]
    renew = f"jobpipe certs renew {files.cert.stem}"
    found.append(Expiry(files.cert, f"certificate {own.subject}", own.not_before, own.not_after, renew))
    if files.revoked.exists():
        found += [
            Expiry(files.revoked, f"revocation list of {crl.issuer}", crl.not_before, crl.not_after, REVOKE)
            for crl in describe_crls(files.revoked)
        ]
    return found


class ExpiryWatch:
    """Logs each warning once, in a process that lives long. Blocking, for one thread.

    Args:
        files: whose ends are watched.
        renew: called before each look; raises ConfigError where it cannot.
        clock: seconds.
    """

    def __init__(
        self,
        files: Credentials,
        renew: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._renew = renew
        self._clock = clock
        self._next = clock()
        self._warned: set[tuple[Path, datetime, int]] = set()

    def log_due(self, now: datetime | None = None) -> None:
        """Look at the files, once an hour, however often it is called."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + LOOK_SECONDS
        at = now or datetime.now(UTC)
        try:
            self._renew()
            found = expiries(self._files)
        except ConfigError as error:
            log.warning("%s", error.message)
            return
        for item in found:
            days = item.threshold(at)
            if days is not None and (item.path, item.end, days) not in self._warned:
                self._warned.add((item.path, item.end, days))
                level = logging.ERROR if days <= 1 else logging.WARNING
                ends = f"ends {item.end:%Y-%m-%d %H:%M} UTC, {item.left(at)}"
                log.log(level, "%s: %s %s; renew it: %s", item.path, item.what, ends, item.remedy)
