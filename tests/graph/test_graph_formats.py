"""The graph of a namespace in a terminal, as a diagram, and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobpipe.errors import LinkBroken, TopicAway
from jobpipe.graph.diagram import DiagramEdge
from jobpipe.graph.graph_formats import as_diagram, as_dict, as_text, span
from jobpipe.graph.namespace_graph import namespace_graph
from jobpipe.operations.messages.application import Application
from jobpipe.operations.status_operations import Lag, SubscriptionStatus, TopicStatus
from tests.statuses import subscription_status, topic_status


def app(name: str) -> Application:
    return Application(f"host-{name}", name)


def reader(name: str, rows: int = 0, seconds: float = 0.0, **given: Any) -> SubscriptionStatus:
    status = subscription_status(name, **{"application": app(name), "position": 1, **given})
    return SubscriptionStatus(**{**vars(status), "lag": Lag(rows, rows, rows, seconds)})


def topic(name: str, publisher: str | None, *readers: SubscriptionStatus, **given: Any) -> TopicStatus:
    application = None if publisher is None else app(publisher)
    return topic_status(
        name,
        application=application,
        publishing=publisher is not None,
        subscriptions=readers,
        rows=100,
        at=9.0,
        **given,
    )


def text(*topics: TopicStatus, seconds: float = 0.0, plain: bool = False) -> list[str]:
    before = {each.topic: each for each in topics}
    now = {each.topic: TopicStatus(**{**vars(each), "at": each.at + seconds}) for each in topics}
    return [line for line, _ in as_text(namespace_graph("dev", now, before), plain=plain)]


def test_a_chain_is_a_tree_from_publishers_to_readers() -> None:
    found = text(
        topic("raw", "import", reader("enrich"), reader("archive", 40, 12.0, state="absent")),
        topic("enriched", "enrich", reader("report", 3, 0.25)),
        seconds=2.0,
    )
    assert found == [
        "dev: 4 applications, 2 topics",
        "",
        "[import]",
        "└─ raw  0 rows/s · 1 partition",
        "   ├─ [archive]  absent · lag 12 s (40 rows)",
        "   └─ [enrich]  0 rows/s · up to date",
        "      └─ enriched  0 rows/s · 1 partition",
        "         └─ [report]  0 rows/s · lag 0.2 s (3 rows)",
    ]


def test_without_rates_rows_are_shown_and_in_ascii_if_that_is_all() -> None:
    assert text(topic("raw", "import", reader("a"), reader("b")), plain=True) == [
        "dev: 3 applications, 1 topic",
        "",
        "[import]",
        "`- raw  100 rows - 1 partition",
        "   |- [a]  up to date",
        "   `- [b]  up to date",
    ]


def test_what_joins_two_branches_is_continued_once() -> None:
    found = text(
        topic("left", "source", reader("join")),
        topic("right", "source", reader("join")),
        topic("joined", "join", reader("end")),
    )
    assert found == [
        "dev: 3 applications, 3 topics",
        "",
        "[source]",
        "├─ left  100 rows · 1 partition",
        "│  └─ [join]  up to date",
        "│     └─ joined  100 rows · 1 partition",
        "│        └─ [end]  up to date",
        "└─ right  100 rows · 1 partition",
        "   └─ [join]  up to date · see above",
    ]


def test_a_circle_ends_and_nothing_is_left_out() -> None:
    found = text(topic("a", "x", reader("y")), topic("b", "y", reader("x")), topic("alone", None))
    assert found == [
        "dev: 2 applications, 3 topics",
        "",
        "alone  no publisher now · 100 rows · 1 partition",
        "",
        "[x]",
        "└─ a  100 rows · 1 partition",
        "   └─ [y]  up to date",
        "      └─ b  100 rows · 1 partition",
        "         └─ [x]  up to date · see above",
    ]


def test_trouble_is_said_and_marked() -> None:
    full = topic(
        "raw", "import", reader("slow", 90, 300.0), waiting="the spool is full; subscription 'slow' is slowest"
    )
    answers = {"raw": full, "gone": TopicAway("x"), "silent": LinkBroken("refused")}
    found = list(as_text(namespace_graph("dev", answers)))
    assert found[1:] == [
        ("", False),
        ("[import]", False),
        ("└─ raw  100 rows · 1 partition · publisher waits: the spool is full; subscription 'slow' is slowest", True),
        ("   └─ [slow]  BLOCKS import · lag 5 min (90 rows)", True),
        ("", False),
        ("gone  not served now", False),
        ("", False),
        ("silent  not known: refused", True),
    ]


def test_a_chain_of_a_thousand_and_long_names() -> None:
    """No recursion; a name of ten thousand characters takes sixty."""
    chain = [topic(f"t{n:04}", f"job{n:04}", reader(f"job{n + 1:04}")) for n in range(1000)]
    assert len(text(*chain)) == 2 + 1 + 2 * 1000
    long = text(topic_status("raw", application=Application("i", "x" * 10_000)))
    assert max(map(len, long)) == 62


def test_names_that_are_cut_are_told_apart() -> None:
    """By the id, which is not cut; and nothing that others choose makes a line endless."""
    twins = [Application(f"{'h' * 60}-{number}-0123abcd", "x" * 80) for number in range(2)]
    waiting = f"acks=all: {'y' * 900}"
    found = text(
        *(topic_status(name, application=each, waiting=waiting) for name, each in zip("ab", twins, strict=True))
    )
    assert len({line for line in found if line.startswith("[")}) == 2
    assert max(map(len, found)) < 300


def test_an_absent_publisher_and_lost_rows_are_said() -> None:
    lost = topic("raw", "import", reader("slow", 30, 9.0, position=2), tail=5)
    dead = topic_status("dead", application=app("gone"), publishing=False)
    assert text(lost, dead)[2:] == [
        "[gone]  absent",
        "└─ dead  no publisher now · 0 rows · 1 partition",
        "",
        "[import]",
        "└─ raw  100 rows · 1 partition",
        "   └─ [slow]  lag 9.0 s (30 rows) · 3 batches lost",
    ]


def test_a_diagram_has_what_the_tree_has() -> None:
    full = topic("raw", "import", reader("slow", 90, 300.0), waiting="the spool is full")
    diagram = as_diagram(namespace_graph("dev", {"raw": full}))
    assert [node.label for node in diagram.nodes] == [
        "import",
        "slow",
        "raw\n100 rows\n1 partition\npublisher waits: the spool is full",
    ]
    assert diagram.edges == (
        DiagramEdge("application host-import", "topic raw"),
        DiagramEdge("topic raw", "application host-slow", "BLOCKS import\nlag 5 min (90 rows)", warns=True),
    )


def test_json_has_all_of_it() -> None:
    made = namespace_graph("dev", {"raw": topic("raw", "import", reader("a", 5, 1.5)), "gone": TopicAway("x")})
    found = json.loads(json.dumps(as_dict(made)))
    assert set(found) == {"namespace", "applications", "topics", "edges", "blocks"}
    assert [each["name"] for each in found["applications"]] == ["a", "import"]
    assert [(each["name"], each["state"]) for each in found["topics"]] == [("gone", "away"), ("raw", "published")]
    assert found["edges"][1] == {
        "application": "application host-a",
        "topic": "raw",
        "kind": "reads",
        "name": "a",
        "state": "connected",
        "rows_per_second": None,
        "lag_rows": 5,
        "lag_seconds": 1.5,
        "lost_batches": 0,
        "blocks": False,
    }


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0.0 s"), (9.94, "9.9 s"), (11.6, "12 s"), (600.0, "10 min"), (7200.0, "2 h"), (864_000.0, "10 d")],
)
def test_spans(seconds: float, said: str) -> None:
    assert span(seconds) == said
