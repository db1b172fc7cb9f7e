"""Names of keys: which key is meant, and which one was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from jobpipe.config.definitions.config_model import KEYS
from jobpipe.config.definitions.definition import Key

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


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the other name that was probably meant by ``name``, whatever its case; None if none is near."""
    lower = {each.lower(): each for each in known if each != name}
    found = difflib.get_close_matches(name.lower(), lower, n=1)
    return lower[found[0]] if found else None


def suggest(name: str, spell: Callable[[Key], str], *, others: Sequence[str] = ()) -> str:
    """Return the words that help who gave the unknown ``name``: "did you mean ...?", or where the names are listed.

    Args:
        name: what was given.
        spell: returns a key's name as its giver would write it.
        others: names that are possible there in addition to the keys, such as a function's own arguments.
    """
    known = by_loose_name(name)
    if known is None:
        # Without what almost all names begin with, which would make each one near to each other.
        bare = {loose.removeprefix("jobpipe."): about for loose, about in _LOOSE.items()}
        found = closest(name.lower().removeprefix("jobpipe."), [*bare, *others])
        if found in others:
            return f"did you mean {found}?"
        known = None if found is None else bare[found]
    if known is not None:
        return f"did you mean {spell(known)}?"
    if len(others) > SHOWN:
        return "`jobpipe config explain` lists what is possible"
    return f"possible names are {', '.join(others)}{' and ' if others else ''}the keys that `jobpipe config show` lists"
