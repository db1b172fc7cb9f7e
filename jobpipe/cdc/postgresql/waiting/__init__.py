"""Changed rows of PostgreSQL that wait for their seal."""

from __future__ import annotations

from importlib.util import find_spec

from jobpipe.errors import ConfigError

if find_spec("numpy") is None:
    raise ConfigError(
        "a capture of PostgreSQL needs numpy, which is not installed: pip install 'numpy>=1.26'", key="numpy"
    )
