"""Which keys differ between two values of a file, as lines for people. Values of secrets are never shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobpipe.pipelines.secret_keys import holds_secret, is_secret
from jobpipe.pipelines.tree import Key, Path, dotted

MOST_SHOWN = 20  # differences of one job
_CHARACTERS = 60  # of a value
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """A key that differs; its value is :data:`_ABSENT` where the file does not have it."""

    path: Path
    before: Any
    after: Any

    @property
    def key(self) -> str:
        """The path, for people."""
        return dotted(self.path)

    def __str__(self) -> str:
        if any(is_secret(str(key)) for key in self.path):
            how = "removed" if self.after is _ABSENT else "added" if self.before is _ABSENT else "changed"
            return f"{self.key}: {how} (a secret)"
        if self.before is _ABSENT:
            return f"{self.key}: {_shown(self.after)} added"
        if self.after is _ABSENT:
            return f"{self.key}: {_shown(self.before)} removed"
        return f"{self.key}: {_shown(self.before)} -> {_shown(self.after)}"


def differences(before: Any, after: Any, path: Path = ()) -> Iterator[Difference]:
    """Yield the deepest keys that differ. In lists, what is equal at the start and at the end is left out."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key, _ABSENT), after.get(key, _ABSENT), (*path, key))
    elif _is_list(before) and _is_list(after):
        yield from _of_lists(before, after, path)
    elif before is _ABSENT or after is _ABSENT or (type(before), before) != (type(after), after):
        yield Difference(path, before, after)


def lines(found: Iterator[Difference]) -> tuple[str, ...]:
    """Return the differences as lines, at most so many."""
    told = [str(each) for each in found]
    more = len(told) - MOST_SHOWN
    return tuple(told if more <= 0 else [*told[:MOST_SHOWN], f"and {more} more keys"])


def _of_lists(before: Sequence[Any], after: Sequence[Any], path: Path) -> Iterator[Difference]:
    if len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, (*path, place))
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
        yield from differences(old, new, (*path, same + place))


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _shown(value: Any) -> str:
    """Return a value as JSON, shortened; secrets in it are left out."""
    text = json.dumps(_without_secrets(value), ensure_ascii=False, default=str)
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"


def _without_secrets(value: Any, key: Key = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _without_secrets(each, str(name)) for name, each in value.items()}
    if _is_list(value):
        return [_without_secrets(each, key) for each in value]
    if is_secret(str(key)) or (isinstance(value, str) and holds_secret(value)):
        return "(a secret)"
    return value
