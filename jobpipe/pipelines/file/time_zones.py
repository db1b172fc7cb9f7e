"""Time zones by their names: UTC needs no files; all others are read from the host's, else from the package tzdata."""

from __future__ import annotations

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from jobpipe.errors import ConfigError

UTC_NAMES = frozenset(
    prefix + name
    for prefix in ("", "Etc/")
    for name in ("UTC", "GMT", "GMT0", "GMT+0", "GMT-0", "Greenwich", "UCT", "Universal", "Zulu")
)


def time_zone(name: str) -> tzinfo:
    """Return the time zone of an IANA name, such as ``Europe/Berlin``.

    Raises:
        ConfigError: this host has no time zone files, or does not know the name.
    """
    if name in UTC_NAMES:
        return UTC
    try:
        if not name.startswith(("/", ".")):
            return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        pass
    if not available_timezones():
        raise ConfigError(
            f"time zone {name!r:.120} cannot be read: this host has no time zone files; "
            "pip install tzdata, or give UTC",
            key="timezone",
        )
    raise ConfigError(
        f"{name!r:.120} is no time zone of this host; give one such as Europe/Berlin or UTC", key="timezone"
    )
