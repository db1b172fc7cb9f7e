"""Who may do what with which topic: the access list. Pure but for reading its file.

The file lists topics, or patterns of them, and for each topic who has which right. A peer is identified by one exact
DNS name of its certificate; patterns are for topics and subscription names only. What no entry allows is refused;
entries add up, none takes away.

    orders:
      publish: [orders.topic.jobpipe]                        # another job that may take the topic over
      read:
        billing.subscription.jobpipe: [billing, billing-*]   # under these names
        reports.jobpipe: "*"
      admin: [operations.jobpipe]
    "sensor-*":
      read: [audit.subscription.jobpipe]                     # a list: each under the name it is made for
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from jobpipe.config.reading.file_permissions import read_own_file
from jobpipe.errors import ConfigError
from jobpipe.net.tls.peer_names import LABEL, subscription_name

PUBLISH, READ, ADMIN = RIGHTS = ("publish", "read", "admin")
MAX_BYTES = 1 << 20
_PATTERN = re.compile(r"[A-Za-z0-9._*-]{1,256}", re.ASCII)


@dataclass(frozen=True)
class Glob:
    """A pattern of names in which * stands for any characters.

    Matched in time linear in the name for each part: a regular expression with two stars backtracks, and a peer chooses
    the name.

    >>> Glob("orders-*").matches("orders-7"), Glob("*-orders").matches("orders-7"), Glob("orders").matches("orders")
    (True, False, True)
    """

    text: str

    def matches(self, name: str) -> bool:
        """Tell whether all of ``name`` fits: each part between two stars is found once, at its first place."""
        first, *parts = self.text.split("*")
        if not parts:
            return name == first
        last = parts.pop()
        if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
            return False
        at, end = len(first), len(name) - len(last)
        for part in parts:
            found = name.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True


@dataclass(frozen=True)
class _Entry:
    topics: Glob
    publish: frozenset[str]
    admin: frozenset[str]
    read: Mapping[str, tuple[Glob, ...] | None]  # None: the name it is made for


@dataclass(frozen=True)
class AccessList:
    """What the file says."""

    entries: tuple[_Entry, ...] = ()

    def allows(self, names: Collection[str], right: str, topic: str, subscription: str | None = None) -> bool:
        """Whether the holder of a certificate has a right.

        Args:
            names: DNS names of a verified certificate; one that has the right is enough.
            right: PUBLISH, READ or ADMIN.
            topic: what it is about.
            subscription: with READ, the subscription's name; None reads without one, which every reader may.
        """
        for entry in self.entries:
            if not entry.topics.matches(topic):
                continue
            if right == READ:
                if any(_reads(entry, name, subscription) for name in names):
                    return True
            elif not (entry.publish if right == PUBLISH else entry.admin).isdisjoint(names):
                return True
        return False


def _reads(entry: _Entry, name: str, subscription: str | None) -> bool:
    if name not in entry.read:
        return False
    patterns = entry.read[name]
    if subscription is None:
        return True
    if patterns is None:
        return name == subscription_name(subscription)
    return any(pattern.matches(subscription) for pattern in patterns)


def read_access(path: Path) -> AccessList:
    """Return the list in a file.

    Raises:
        ConfigError: the file cannot be read, or something in it is not understood: what, and where.
    """
    try:
        content, why = read_own_file(path, MAX_BYTES + 1)
        if why is not None:
            raise _bad(path, "", f"a file that others cannot change: {why}")
        if len(content) > MAX_BYTES:
            raise _bad(path, "", f"a file of at most {MAX_BYTES} bytes")
        found = yaml.load(content.decode(), _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise _bad(path, "", f"a readable file ({error.strerror})") from error
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}"
        raise _bad(path, line, f"valid YAML ({error.problem})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _bad(path, "", f"valid YAML in UTF-8 ({type(error).__name__})") from error
    topics = _mapping(path, "", {} if found is None else found)
    return AccessList(tuple(_entry(path, topic, rights) for topic, rights in topics.items()))


def _entry(path: Path, topic: str, rights: object) -> _Entry:
    given = _mapping(path, topic, {} if rights is None else rights)
    for name in given:
        if name not in RIGHTS:
            near = difflib.get_close_matches(name, RIGHTS, 1)
            raise _bad(path, f"{topic}.{name}", f"one of {', '.join(RIGHTS)}" + (f": {near[0]}?" if near else ""))
    return _Entry(
        topics=_pattern(path, topic, topic),
        publish=frozenset(_identities(path, f"{topic}.publish", given.get(PUBLISH))),
        admin=frozenset(_identities(path, f"{topic}.admin", given.get(ADMIN))),
        read=_readers(path, f"{topic}.read", given.get(READ)),
    )


def _readers(path: Path, where: str, given: object) -> dict[str, tuple[Glob, ...] | None]:
    if not isinstance(given, dict):
        return dict.fromkeys(_identities(path, where, given))
    readers: dict[str, tuple[Glob, ...] | None] = {}
    for name, patterns in _mapping(path, where, given).items():
        texts = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(texts, list) or not texts:
            raise _bad(path, f"{where}.{name}", "one or more subscription names, or patterns with *")
        readers[_identity(path, where, name)] = tuple(_pattern(path, f"{where}.{name}", text) for text in texts)
    return readers


def _identities(path: Path, where: str, given: object) -> list[str]:
    if given is None:
        return []
    return [_identity(path, where, name) for name in ([given] if isinstance(given, str) else _list(path, where, given))]


def _identity(path: Path, where: str, name: object) -> str:
    if not isinstance(name, str) or len(name) > 253 or not all(LABEL.fullmatch(part) for part in name.split(".")):
        expected = "the exact DNS name of a certificate, as `jobpipe certs show` tells it, without patterns"
        raise _bad(path, where, f"{expected}, not {str(name)[:100]!r}")
    return name


def _pattern(path: Path, where: str, text: object) -> Glob:
    if not isinstance(text, str) or _PATTERN.fullmatch(text) is None:
        raise _bad(path, where, f"a name, * standing for any characters, not {str(text)[:100]!r}")
    return Glob(text)


def _mapping(path: Path, where: str, given: object) -> dict[str, Any]:
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise _bad(path, where, "a mapping of names, each written as text (quote numbers and *)")
    return given


def _list(path: Path, where: str, given: object) -> list[object]:
    if not isinstance(given, list):
        raise _bad(path, where, "a list")
    return given


def _bad(path: Path, where: str, expected: str) -> ConfigError:
    place = f"{path}: {where}" if where else str(path)
    return ConfigError(f"{place}: expected {expected}", file=str(path), where=where, expected=expected)


class _Loader(yaml.SafeLoader):
    """YAML's safe loader that refuses a key given twice: the first one would be forgotten in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} appears twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)
