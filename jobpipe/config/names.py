"""Names of keys: which key is meant, and which one was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from jobpipe.config.definition import Key
from jobpipe.config.model import KEYS

__all__ = ["by_exact_name", "by_loose_name", "is_section", "suggest"]

SHOWN = 12  # names in an error
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


def suggest(name: str, spell: Callable[[Key], str], *, beside: Sequence[str] = ()) -> str:
    """Return the words that help who gave the unknown ``name``: "did you mean ...?", or where the names are listed.

    Args:
        name: what was given.
        spell: returns a key's name as its giver would write it.
        beside: names that were possible there beside the keys, such as a function's own arguments.
    """
    known = by_loose_name(name)
    if known is None:
        # Without what almost all names begin with, which would make each one near to each other.
        bare = {loose.removeprefix("jobpipe."): about for loose, about in _LOOSE.items()}
        own = {each.lower(): each for each in beside}
        found = difflib.get_close_matches(name.lower().removeprefix("jobpipe."), [*own, *bare], n=1)
        if found and found[0] in own:
            return f"did you mean {own[found[0]]}?"
        known = bare[found[0]] if found else None
    if known is not None:
        return f"did you mean {spell(known)}?"
    if len(beside) > SHOWN:
        return "`jobpipe config explain` lists what is possible"
    return f"possible are {', '.join(beside)}{' and ' if beside else ''}the keys that `jobpipe config show` lists"
