"""Values with their places: what a YAML file says, and in which line and column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

Scalar = str | int | float | bool | None
Key = str | int
Path = tuple[Key, ...]
Section = dict[str, "TreeNode"]


@dataclass(frozen=True)
class FilePlace:
    """Where something stands; line and column from 1, None for what stands in no file."""

    file: str
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True)
class TreeNode:
    """A value, the place of the value, and, in a section, the place of its key."""

    value: Scalar | dict[str, TreeNode] | list[TreeNode]
    place: FilePlace
    key: FilePlace | None = None

    @property
    def shown_at(self) -> FilePlace:
        """Where a problem with it is told: at its key."""
        return self.key or self.place

    def items(self) -> Iterator[tuple[Key, TreeNode]]:
        """Yield what is in a section or list; nothing for a scalar."""
        if isinstance(self.value, dict):
            yield from self.value.items()
        elif isinstance(self.value, list):
            yield from enumerate(self.value)


def node_of(value: Any, place: FilePlace) -> TreeNode:
    """Return the tree of a plain value, all of it at one place."""
    if isinstance(value, dict):
        return TreeNode({str(key): node_of(each, place) for key, each in value.items()}, place)
    if isinstance(value, (list, tuple)):
        return TreeNode([node_of(each, place) for each in value], place)
    return TreeNode(value, place)


def plain(node: TreeNode) -> Any:
    """Return the value without places."""
    if isinstance(node.value, dict):
        return {key: plain(each) for key, each in node.value.items()}
    if isinstance(node.value, list):
        return [plain(each) for each in node.value]
    return node.value


def find(root: TreeNode, path: Path) -> TreeNode:
    """Return the node at ``path``, or the last one on the way that is there."""
    node = root
    for key in path:
        if isinstance(node.value, dict) and key in node.value:
            node = node.value[str(key)]
        elif isinstance(node.value, list) and isinstance(key, int) and 0 <= key < len(node.value):
            node = node.value[key]
        else:
            break
    return node


def merge(below: TreeNode, above: TreeNode) -> tuple[TreeNode, list[Path]]:
    """Return ``below`` with what ``above`` says, and the keys that ``above`` removes and ``below`` does not have.

    Sections are merged, all else is replaced, null removes. A key is the same whether it is written dotted or nested.
    """
    merged = _copy(below)
    absent: list[Path] = []
    if isinstance(merged.value, dict):
        _merge_into(merged.value, (), above, absent)
    return merged, absent


def _copy(node: TreeNode) -> TreeNode:
    """Return the node with sections of its own."""
    if not isinstance(node.value, dict):
        return node
    return replace(node, value={key: _copy(each) for key, each in node.value.items()})


def _merge_into(root: Section, path: Path, node: TreeNode, absent: list[Path]) -> None:
    name = ".".join(map(str, path))
    if isinstance(node.value, dict):
        for key, each in node.value.items():
            _merge_into(root, (*path, key), each, absent)
        is_section = any(isinstance(each.value, dict) for each in _find_dotted(root, name))
        if path and not node.value and not is_section:
            _put(root, path, node)
    elif node.value is not None:
        _put(root, path, node)
    elif not _remove(root, name):
        absent.append(path)


def _put(root: Section, path: Path, node: TreeNode) -> None:
    """Put a value where the section has it already, however that is written, or else at its path."""
    for section, rest in _holders(root, ".".join(map(str, path))):
        if rest in section:
            section[rest] = node
            return
    section = root
    for key in map(str, path[:-1]):
        inside = section[key].value if key in section else None
        if not isinstance(inside, dict):
            inside = {}
            section[key] = TreeNode(inside, node.place, node.key)
        section = inside
    section[str(path[-1])] = node


def _remove(root: Section, name: str) -> bool:
    """Remove what has a dotted name; return whether there was anything."""
    found = False
    for section, rest in _holders(root, name):
        for key in [key for key in section if key == rest or key.startswith(f"{rest}.")]:
            del section[key]
            found = True
    return found


def find_dotted(root: TreeNode, name: str) -> list[TreeNode]:
    """Return what has a dotted name, however that is written: in one file that was found right there is one at most."""
    return list(_find_dotted(root.value, name)) if isinstance(root.value, dict) else []


def _find_dotted(root: Section, name: str) -> Iterator[TreeNode]:
    """Yield what has a dotted name."""
    yield from (section[rest] for section, rest in _holders(root, name) if rest in section)


def _holders(section: Section, name: str) -> Iterator[tuple[Section, str]]:
    """Yield each section in which a dotted name may stand, with what is left of the name there."""
    yield section, name
    parts = name.split(".")
    for count in range(1, len(parts)):
        inside = section.get(".".join(parts[:count]))
        if inside is not None and isinstance(inside.value, dict):
            yield from _holders(inside.value, ".".join(parts[count:]))


def map_texts(node: TreeNode, path: Path, change: Any) -> TreeNode:
    """Return the tree with each text replaced by ``change(node, path)``, a scalar."""
    if isinstance(node.value, dict):
        return replace(node, value={key: map_texts(each, (*path, key), change) for key, each in node.value.items()})
    if isinstance(node.value, list):
        return replace(node, value=[map_texts(each, (*path, i), change) for i, each in enumerate(node.value)])
    return replace(node, value=change(node, path)) if isinstance(node.value, str) else node


def dotted(path: Path) -> str:
    """Return a path for people: ``jobs.delays.transform[0].type``."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text
