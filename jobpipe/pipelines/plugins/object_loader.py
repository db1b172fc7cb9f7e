"""Objects of the user's, named as ``module:name``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from jobpipe.errors import ConfigError


def import_object(name: str) -> Any:
    """Return what ``module:name`` names.

    Raises:
        ConfigError: there is no such module, or no such name in it, or the import fails.
    """
    module, _, inside = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in inside.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the module does when it is imported
        raise ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}", key=name) from error
    return found
