"""A YAML file as a flat list of dotted keys, each with its line.

Sections may be nested, dotted, or any mixture of both. A list has plain values only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobpipe.config.definitions.definition import ConfigProblem
from jobpipe.config.definitions.key_names import by_exact_name, is_section
from jobpipe.config.reading.file_permissions import read_own_file
from jobpipe.config.reading.located_values import FilePlace, TreeNode, dotted
from jobpipe.config.reading.located_values import Path as Place
from jobpipe.config.reading.yaml_reader import GIVE_ONCE, MAX_BYTES, read_tree

_INSIDE = "…"  # in place of what no key takes: a value in a section


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
    except OSError as error:
        return [], [ConfigProblem(named_by, "config", str(path), f"a readable file ({error.strerror})")]
    if why is not None:
        return [], [ConfigProblem(named_by, "config", str(path), f"a file that others cannot change: {why}")]
    problems: list[ConfigProblem] = []
    entries: dict[str, Entry] = {}

    def tell(place: FilePlace, key: Place, what: str, remedy: str) -> None:
        expected = f"each key once; {what}" if remedy == GIVE_ONCE else f"valid YAML: {what}; {remedy}"
        problems.append(ConfigProblem(_source(place), dotted(key) or "config", None, expected))

    tree = read_tree(content, str(path), tell)
    if tree is not None and tree.value is not None and not isinstance(tree.value, dict):
        expected = "sections and keys, such as jobpipe: {home: ~/.jobpipe}"
        problems.append(ConfigProblem(_source(tree.place), "config", None, expected))
    wrong = {problem.key for problem in problems}
    for name, node in [] if tree is None else _leaves(tree, ""):
        if name in wrong:
            continue
        entry = Entry(name, _raw(node), _source(node.shown_at), path.parent)
        if (first := entries.setdefault(name, entry)) is not entry:
            line = first.source.rpartition(":")[2]
            tell(node.shown_at, (name,), f"the key is in line {line} already", GIVE_ONCE)
    return list(entries.values()), problems


def _source(place: FilePlace) -> str:
    return place.file if place.line is None else f"{place.file}:{place.line}"


def _leaves(section: TreeNode, prefix: str) -> Iterator[tuple[str, TreeNode]]:
    """Yield the dotted name and value of whatever is not a section."""
    for key, node in section.value.items() if isinstance(section.value, dict) else ():
        name = f"{prefix}{key}"
        # A section is one of keys, as of acks.timeout, and not the value of a key; an empty one sets nothing.
        if isinstance(node.value, dict) and (not node.value or by_exact_name(name) is None or is_section(name)):
            yield from _leaves(node, f"{name}.")
        else:
            yield name, node


def _raw(node: TreeNode) -> object:
    """Return what a key is given: a plain value, a list, or a section, with no more than its names."""
    if isinstance(node.value, dict):
        return dict.fromkeys(node.value, _INSIDE)
    return [_raw(each) for each in node.value] if isinstance(node.value, list) else node.value
