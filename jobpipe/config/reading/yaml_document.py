"""A YAML file as a flat list of dotted keys, each with its line.

Only PyYAML's safe loader is used. Sections may be nested, dotted, or any mixture of both. A list has plain values only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from jobpipe.config.definitions.definition import ConfigProblem
from jobpipe.config.definitions.key_names import by_exact_name, is_section
from jobpipe.config.reading.file_permissions import read_own_file
from jobpipe.config.types.value_types import MOST_PARTS

MAX_BYTES = 1 << 20  # a configuration is a few KiB; more is some other file
_MAX_DEPTH = 32
_INSIDE = "…"  # in place of what no key takes: a value in a section, a list in a list


@dataclass(frozen=True)
class Entry:
    """A value that some source gives to a name; ``base`` is where its relative paths start.

    ``given`` is the name as the source writes it, where that differs: a variable of the environment, say.
    """

    name: str
    raw: object
    source: str
    base: Path
    given: str = ""


def read_document(path: Path, named_by: str) -> tuple[list[Entry], list[ConfigProblem]]:
    """Return what the file at ``path`` sets, and what is wrong with it as a document.

    ``named_by`` is the source that is at fault when the file cannot be read; the path itself for a file that was found
    in one of the usual places. Such a file must belong to this user or root.
    """
    try:
        content, why = read_own_file(path, MAX_BYTES + 1, any_owner=named_by != str(path))
        if why is not None:
            return [], [ConfigProblem(named_by, "config", str(path), f"a file that others cannot change: {why}")]
        text = content.decode("utf-8")
    except OSError as error:
        return [], [ConfigProblem(named_by, "config", str(path), f"a readable file ({error.strerror})")]
    except UnicodeDecodeError:
        return [], [ConfigProblem(str(path), "config", None, "text in UTF-8")]
    if len(content) > MAX_BYTES:
        return [], [ConfigProblem(named_by, "config", str(path), f"a file of at most {MAX_BYTES} bytes")]
    return _parse(text, path)


def _parse(text: str, path: Path) -> tuple[list[Entry], list[ConfigProblem]]:
    walk = _Walk(path)
    try:
        walk.run(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        walk.problems.append(ConfigProblem(f"{path}:{line}", "config", None, f"valid YAML ({error.problem})"))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        walk.problems.append(ConfigProblem(str(path), "config", None, f"valid YAML ({type(error).__name__})"))
    return list(walk.entries.values()), walk.problems


class _Walk:
    """Goes through the nodes of one document and collects entries and problems."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self.problems: list[ConfigProblem] = []
        self._lines: dict[str, int] = {}
        self._visited: set[int] = set()

    def run(self, text: str) -> None:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is None or _is_null(root):
                return
            if not isinstance(root, yaml.MappingNode):
                self._problem(root, "config", "sections and keys, such as jobpipe: {home: ~/.jobpipe}")
                return
            for name, line, node in self._leaves(root, "", 0):
                self._add(loader, name, line, node)
        finally:
            loader.dispose()

    def _leaves(self, mapping: yaml.MappingNode, prefix: str, depth: int) -> Iterator[tuple[str, int, yaml.Node]]:
        """Yield (dotted name, line, value) of whatever is not a section."""
        if id(mapping) in self._visited or depth > _MAX_DEPTH:
            # an alias could make the document endless, or grow it beyond any size
            self._problem(mapping, prefix.rstrip(".") or "config", "a section written out, without YAML aliases")
            return
        self._visited.add(id(mapping))
        for key_node, node in mapping.value:
            part = key_node.value if isinstance(key_node, yaml.ScalarNode) else ""
            if not part:
                self._problem(key_node, f"{prefix}?", "a name")
            elif isinstance(node, yaml.MappingNode) and _holds_keys(prefix + part, node):
                yield from self._leaves(node, f"{prefix}{part}.", depth + 1)
            else:
                yield prefix + part, _line(key_node), node

    def _add(self, loader: yaml.SafeLoader, name: str, line: int, node: yaml.Node) -> None:
        if name in self._lines:
            already = f"the key once; it is in line {self._lines[name]} already"
            self.problems.append(ConfigProblem(f"{self.path}:{line}", name, None, already))
            return
        self._lines[name] = line
        try:
            raw = _value(loader, node)
        except yaml.YAMLError:
            self._problem(node, name, f"a plain value, not one of YAML's type {node.tag}")
            return
        self.entries[name] = Entry(name, raw, f"{self.path}:{line}", self.path.parent)

    def _problem(self, node: yaml.Node, name: str, expected: str) -> None:
        self.problems.append(ConfigProblem(f"{self.path}:{_line(node)}", name, None, expected))


def _holds_keys(name: str, section: yaml.MappingNode) -> bool:
    """Whether a section is one of keys, as of acks.timeout, and not the value of a key; an empty one sets nothing."""
    return not section.value or by_exact_name(name) is None or is_section(name)


def _value(loader: yaml.SafeLoader, node: yaml.Node) -> object:
    """Return what a key is given: a plain value, a list of them, or a section, with no more than its names.

    Raises:
        yaml.YAMLError: it has a type that is not YAML's own.
    """
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _INSIDE for key, _ in node.value[:MOST_PARTS] if isinstance(key, yaml.ScalarNode)}
    if isinstance(node, yaml.SequenceNode):
        parts = node.value[: MOST_PARTS + 1]  # one too many, and the key refuses it
        return [_part(loader, part) for part in parts]
    try:
        return loader.construct_object(node)
    except (ValueError, LookupError, AttributeError):
        # no date, a number too long, or a tag that does not fit: the key says what it expects
        return node.value


def _part(loader: yaml.SafeLoader, node: yaml.Node) -> object:
    try:
        return _value(loader, node) if isinstance(node, yaml.ScalarNode) else [_INSIDE]
    except yaml.YAMLError:
        return [_INSIDE]


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
