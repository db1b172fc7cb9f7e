"""Diagrams in the languages of Graphviz and Mermaid."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from jobpipe.graph.diagram import LANGUAGES, Diagram, DiagramEdge, DiagramNode, Shape, as_dot, as_mermaid

ODD = [
    'say "x"',
    "back\\slash",
    "<script>alert(1)</script>",
    "a]b)c}d",
    "`code` & #35; %% comment",
    "end",
    "x" * 10_000,
    "\u05e9\u05dc\u05d5\u05dd \u202e reversed",
    "\U0001f4a5",
]
SIMPLE = Diagram(
    "dev",
    (
        DiagramNode("job a", "a", Shape.BOX),
        DiagramNode("topic t", "t\n10 rows/s", Shape.ELLIPSE),
        DiagramNode("x", "csv", Shape.TEXT),
    ),
    (DiagramEdge("job a", "topic t"), DiagramEdge("topic t", "x", "lag 2.0 s", warns=True)),
)


def test_as_dot() -> None:
    assert as_dot(SIMPLE).splitlines() == [
        'digraph "dev" {',
        "  rankdir=LR;",
        '  "job a" [shape=box, label="a"];',
        '  "topic t" [shape=ellipse, label="t\\n10 rows/s"];',
        '  "x" [shape=plaintext, label="csv"];',
        '  "job a" -> "topic t";',
        '  "topic t" -> "x" [label="lag 2.0 s", color=red, fontcolor=red];',
        "}",
    ]


def test_as_mermaid() -> None:
    assert as_mermaid(SIMPLE).splitlines() == [
        "flowchart LR",
        '  n0["a"]',
        '  n1(["t<br/>10 rows/s"])',
        '  n2>"csv"]',
        "  n0 --> n1",
        '  n1 -->|"lag 2.0 s"| n2',
        "  linkStyle 1 stroke:#c00,stroke-width:2px",
    ]


@pytest.mark.parametrize("label", ODD, ids=range(len(ODD)))
def test_labels_cannot_break_mermaid(label: str) -> None:
    """Between the quotes of a label there is nothing that Mermaid, or a browser, reads as anything but text."""
    (node, edge) = as_mermaid(
        Diagram("x", (DiagramNode("a", label, Shape.BOX),), (DiagramEdge("a", "a", label),))
    ).splitlines()[1:]
    text = node.removeprefix('  n0["').removesuffix('"]')
    assert not set(text) & set('"<>[]{}|`\\&%')
    assert edge == f'  n0 -->|"{text}"| n0'


def test_control_characters_and_entities_are_shown_as_they_are() -> None:
    """Graphviz eats a backslash before what it does not know, and reads the entities of HTML."""
    diagram = Diagram("x", (DiagramNode("a", "t\tz\x00&lt;\nb", Shape.BOX),), ())
    assert 'label="t\ufffdz\ufffd&amp;lt;\\nb"' in as_dot(diagram)
    assert 'n0["t#65533;z#65533;#38;lt;<br/>b"]' in as_mermaid(diagram)


@pytest.mark.processes
@pytest.mark.parametrize("language", LANGUAGES)
def test_odd_labels_are_one_line_each(language: str) -> None:
    nodes = tuple(DiagramNode(label, label, Shape.BOX) for label in ODD)
    text = LANGUAGES[language](Diagram("odd", nodes, (DiagramEdge(ODD[0], ODD[1], ODD[2]),)))
    assert len(text.splitlines()) == len(nodes) + (2 if language == "mermaid" else 4)
    if language == "dot" and (dot := shutil.which("dot")) is not None:
        subprocess.run([dot, "-Tsvg"], input=text, capture_output=True, text=True, check=True, timeout=30)
