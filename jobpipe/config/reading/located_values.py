"""Values with their places: what a YAML file says, and in which line and column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Scalar = str | int | float | bool | None
Key = str | int
Path = tuple[Key, ...]


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
        """Where a problem with it is reported: at its key."""
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


def dotted(path: Path) -> str:
    """Return a path for people: ``jobs.delays.transform[0].type``."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text
