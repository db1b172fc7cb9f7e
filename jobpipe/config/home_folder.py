"""The folder ``jobpipe.home``."""

from __future__ import annotations

from pathlib import Path

from jobpipe.errors import ConfigError


def make_home(home: Path) -> None:
    """Make ``jobpipe.home``, for this user alone, if it is missing.

    Raises:
        ConfigError: it cannot be made, as where ``HOME`` is ``/`` or a folder that is not there.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"jobpipe.home: {home} cannot be made ({error.strerror}); set HOME, or jobpipe.home (JOBPIPE__HOME), to a "
            "folder that this user can write",
            key="jobpipe.home",
            file=str(home),
        ) from error
