"""Names of keys: which key is meant, and which one was probably meant."""

from __future__ import annotations

import difflib

from jobpipe.config.definition import Key
from jobpipe.config.model import KEYS

__all__ = ["by_exact_name", "by_loose_name", "is_section", "nearest"]

_EXACT = {about.name: about for about in KEYS}
_LOOSE: dict[str, Key] = {}
for _about in KEYS:
    for _name in (
        _about.name,
        _about.short,
        f"jobpipe.{_about.short}",
        _about.attribute,
        _about.short.replace(".", "_"),
    ):
        if _LOOSE.setdefault(_name, _about) is not _about:
            raise AssertionError(f"{_name} names two keys")


def by_exact_name(name: str) -> Key | None:
    """Return the key of that full dotted name."""
    return _EXACT.get(name)


def by_loose_name(name: str) -> Key | None:
    """Return the key of that name, where ``jobpipe.`` may be missing and an attribute will do."""
    return _LOOSE.get(name)


def is_section(name: str) -> bool:
    """Whether full names of keys begin with ``name`` and a dot."""
    return any(full.startswith(f"{name}.") for full in _EXACT)


def nearest(name: str) -> str:
    """Return the full name of the key that ``name`` most probably means."""
    if (known := by_loose_name(name)) is not None:
        return known.name
    found = difflib.get_close_matches(name.lower(), list(_LOOSE), n=1, cutoff=0.0)
    return _LOOSE[found[0]].name
