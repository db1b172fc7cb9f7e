"""A directed graph with labels, written in the languages of Graphviz and Mermaid. Labels may have any characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """How a node is drawn; the values are Graphviz' words."""

    BOX = "box"
    ELLIPSE = "ellipse"
    TEXT = "plaintext"


@dataclass(frozen=True)
class DiagramNode:
    """A node; ``id`` tells it apart, ``label`` may have several lines."""

    id: str
    label: str
    shape: Shape


@dataclass(frozen=True)
class DiagramEdge:
    """An edge between two nodes, by their ids; ``warns``: it shows trouble."""

    start: str
    end: str
    label: str = ""
    warns: bool = False


@dataclass(frozen=True)
class Diagram:
    """A graph; all nodes that edges name are there."""

    name: str
    nodes: tuple[DiagramNode, ...]
    edges: tuple[DiagramEdge, ...]


def as_dot(diagram: Diagram) -> str:
    """Return the diagram in the language of Graphviz."""
    return "\n".join(_dot(diagram))


def _dot(diagram: Diagram) -> Iterator[str]:
    yield f"digraph {_quoted(diagram.name)} {{"
    yield "  rankdir=LR;"
    for node in diagram.nodes:
        yield f"  {_quoted(node.id)} [shape={node.shape}, label={_quoted(node.label)}];"
    for edge in diagram.edges:
        facts = [f"label={_quoted(edge.label)}"] if edge.label else []
        facts += ["color=red", "fontcolor=red"] if edge.warns else []
        about = f" [{', '.join(facts)}]" if facts else ""
        yield f"  {_quoted(edge.start)} -> {_quoted(edge.end)}{about};"
    yield "}"


def _quoted(text: str) -> str:
    escaped = _shown(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped.replace("&", "&amp;")}"'  # Graphviz knows the entities of HTML


def _shown(text: str) -> str:
    """Return a text without control characters, apart from ends of lines."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)


_MERMAID = {Shape.BOX: ("[", "]"), Shape.ELLIPSE: ("([", "])"), Shape.TEXT: (">", "]")}
_PLAIN = re.compile(r"[^\w .,:;/()+*=@→-]")


def as_mermaid(diagram: Diagram) -> str:
    """Return the diagram as a flowchart of Mermaid, which Markdown of GitHub and GitLab shows."""
    return "\n".join(_mermaid(diagram))


def _mermaid(diagram: Diagram) -> Iterator[str]:
    ids = {node.id: f"n{number}" for number, node in enumerate(diagram.nodes)}
    yield "flowchart LR"
    for node in diagram.nodes:
        left, right = _MERMAID[node.shape]
        yield f"  {ids[node.id]}{left}{_entities(node.label)}{right}"
    for edge in diagram.edges:
        label = f"|{_entities(edge.label)}|" if edge.label else ""
        yield f"  {ids[edge.start]} -->{label} {ids[edge.end]}"
    if warning := [str(number) for number, edge in enumerate(diagram.edges) if edge.warns]:
        yield f"  linkStyle {','.join(warning)} stroke:#c00,stroke-width:2px"


def _entities(text: str) -> str:
    """Return a label in quotes: what could be markup, or end it, as Mermaid's entity of a number."""
    lines = [_PLAIN.sub(lambda found: f"#{ord(found[0])};", line) for line in _shown(text).split("\n")]
    return f'"{"<br/>".join(lines)}"'


LANGUAGES: Mapping[str, Callable[[Diagram], str]] = {"mermaid": as_mermaid, "dot": as_dot}
"""What writes a diagram, by the name of the language."""

MERMAID_EDGES, MERMAID_CHARACTERS = 500, 50_000
"""From which on Mermaid draws nothing: maxEdges and maxTextSize of its configuration, which a diagram cannot raise."""
