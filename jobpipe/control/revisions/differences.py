"""Which keys differ between two values of a file, as lines for people. Values of secrets are never shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jobpipe.config.reading.located_values import Key, Path, dotted
from jobpipe.pipelines.file.secret_keys import holds_secret, is_secret

MOST_SHOWN = 20  # differences of one job
_CHARACTERS = 60  # of a value
_MOST_KEY = 200  # characters of a key with its path; names of options may be of any length
_HIDDEN = "(a secret)"
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """A key that differs; its value is :data:`_ABSENT` where the file does not have it.

    Attributes:
        is_secret: its values are not to be shown.
    """

    path: Path
    before: Any
    after: Any
    is_secret: bool = False

    @property
    def key(self) -> str:
        """The path, for people; shortened."""
        return _cut(dotted(self.path), _MOST_KEY)

    def __str__(self) -> str:
        if self.is_secret or any(is_secret(str(key)) for key in self.path):
            how = "removed" if self.after is _ABSENT else "added" if self.before is _ABSENT else "changed"
            return f"{self.key}: {how} {_HIDDEN}"
        if self.before is _ABSENT:
            return f"{self.key}: {_short_repr(self.after)} added"
        if self.after is _ABSENT:
            return f"{self.key}: {_short_repr(self.before)} removed"
        return f"{self.key}: {_short_repr(self.before)} -> {_short_repr(self.after)}"


def differences(before: Any, after: Any, path: Path = ()) -> Iterator[Difference]:
    """Yield the deepest keys that differ. In lists, what is equal at the start and at the end is left out."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key, _ABSENT), after.get(key, _ABSENT), (*path, key))
    elif _is_list(before) and _is_list(after):
        yield from _of_lists(before, after, path)
    elif before is _ABSENT or after is _ABSENT or (type(before), before) != (type(after), after):
        yield Difference(path, before, after)


def lines(found: Iterable[Difference]) -> tuple[str, ...]:
    """Return the differences as lines, at most so many."""
    return _at_most([str(each) for each in found])


def keys(found: Iterable[Difference]) -> tuple[str, ...]:
    """Return the keys that differ, at most so many."""
    return _at_most([each.key for each in found])


def _at_most(told: Sequence[str]) -> tuple[str, ...]:
    more = len(told) - MOST_SHOWN
    return tuple(told if more <= 0 else [*told[:MOST_SHOWN], f"and {more} more keys"])


def _of_lists(before: Sequence[Any], after: Sequence[Any], path: Path) -> Iterator[Difference]:
    if len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _in_list(before, after, place, differences(old, new, (*path, place)))
        return
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    end = 0
    while end < min(len(before), len(after)) - same and before[-1 - end] == after[-1 - end]:
        end += 1
    gone, come = before[same : len(before) - end], after[same : len(after) - end]
    for place in range(max(len(gone), len(come))):
        old, new = (each[place] if place < len(each) else _ABSENT for each in (gone, come))
        yield from _in_list(before, after, same + place, differences(old, new, (*path, same + place)))


def _in_list(
    before: Sequence[Any], after: Sequence[Any], place: int, found: Iterator[Difference]
) -> Iterator[Difference]:
    """Yield what differs at a place of lists; it is a secret if what stands before it in one of them names one."""
    hidden = any(_names_secret(each, place - 1) for each in (before, after))
    for each in found:
        yield replace(each, is_secret=True) if hidden else each


def _names_secret(values: Sequence[Any], place: int) -> bool:
    """Whether an element of a list says that the next one is a secret, as ``--password`` of arguments does."""
    return 0 <= place < len(values) and isinstance(values[place], str) and is_secret(values[place].lstrip("-"))


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _short_repr(value: Any) -> str:
    """Return a value as JSON, shortened; secrets in it are left out."""
    text = json.dumps(_without_secrets(value), ensure_ascii=False, default=str)
    return _cut(text, _CHARACTERS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _without_secrets(value: Any, key: Key = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _without_secrets(each, str(name)) for name, each in value.items()}
    if _is_list(value):
        return [
            _HIDDEN if _names_secret(value, place - 1) else _without_secrets(each, key)
            for place, each in enumerate(value)
        ]
    if is_secret(str(key)) or (isinstance(value, str) and holds_secret(value)):
        return _HIDDEN
    return value
