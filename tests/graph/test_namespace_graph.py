"""The graph of a namespace, from statuses alone."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe.errors import LinkBroken, TopicAway, TopicNotFound
from jobpipe.graph.namespace_graph import (
    ApplicationNode,
    Block,
    Edge,
    EdgeKind,
    LinkState,
    NamespaceGraph,
    TopicNode,
    TopicState,
    namespace_graph,
)
from jobpipe.operations.admin_operations import HoldReply, LeaseReply
from jobpipe.operations.messages.application import Application
from jobpipe.operations.status_operations import Lag, SubscriptionStatus, TopicStatus
from tests.statuses import subscription_status, topic_status

IMPORTER = Application("host-1-aa", "import.py")
ENRICH = Application("host-2-bb", "shop.enrich", "shop", "enrich", "run-1")


def reader(name: str, application: Application | None = None, *, rows: int = 0, **given: Any) -> SubscriptionStatus:
    lag = Lag(batches=rows // 10, rows=rows, bytes=rows, seconds=rows / 100)
    status = subscription_status(name, application=application, **given)
    return SubscriptionStatus(**{**vars(status), "lag": lag})


def chain() -> NamespaceGraph:
    """A program publishes ``orders``; a pipeline's job reads that and publishes ``enriched``."""
    orders = topic_status("orders", application=IMPORTER, rows=1000, subscriptions=(reader("shop.enrich", ENRICH),))
    enriched = topic_status("enriched", application=ENRICH, rows=900, publisher="shop.enrich")
    return namespace_graph("dev", {"orders": orders, "enriched": enriched})


def test_a_job_that_reads_and_publishes_is_one_node() -> None:
    graph = chain()
    job, program = "job shop/enrich", "application host-1-aa"
    assert graph.applications == {
        program: ApplicationNode(program, "import.py", "host-1-aa", state=LinkState.CONNECTED),
        job: ApplicationNode(job, "shop.enrich", "host-2-bb", "shop", "enrich", "run-1", LinkState.CONNECTED),
    }
    assert graph.topics == {
        "enriched": TopicNode("enriched", TopicState.PUBLISHED, 1, 900),
        "orders": TopicNode("orders", TopicState.PUBLISHED, 1, 1000),
    }
    assert graph.edges == (
        Edge(job, "enriched", EdgeKind.PUBLISHES, "shop.enrich", LinkState.CONNECTED),
        Edge(program, "orders", EdgeKind.PUBLISHES, "p", LinkState.CONNECTED),
        Edge(job, "orders", EdgeKind.READS, "shop.enrich", LinkState.CONNECTED, None, 0, 0.0),
    )
    assert graph.blocks == ()


def test_attempts_of_one_job_are_one_node_and_the_one_that_is_connected_is_shown() -> None:
    """An absent subscription may be of an earlier attempt, of another process."""
    before = Application("host-9-zz", "shop.enrich", "shop", "enrich", "run-0")
    orders = topic_status("orders", subscriptions=(reader("a", before, state="absent"), reader("b", ENRICH)))
    for lines in (orders.subscriptions, orders.subscriptions[::-1]):
        graph = namespace_graph("dev", {"orders": topic_status("orders", publishing=False, subscriptions=lines)})
        assert graph.applications == {
            "job shop/enrich": ApplicationNode(
                "job shop/enrich", "shop.enrich", "host-2-bb", "shop", "enrich", "run-1", LinkState.CONNECTED
            )
        }
        assert [edge.state for edge in graph.edges] == [LinkState.ABSENT, LinkState.CONNECTED]


def test_programs_of_one_name_are_told_apart() -> None:
    twin = Application("host-5-ee", "import.py")
    graph = namespace_graph(
        "dev", {"a": topic_status("a", application=IMPORTER), "b": topic_status("b", application=twin)}
    )
    assert graph.labels == {
        "application host-1-aa": "import.py (host-1-aa)",
        "application host-5-ee": "import.py (host-5-ee)",
    }


def test_who_says_nothing_is_a_node_by_its_name() -> None:
    """As clients of older versions do."""
    graph = namespace_graph("dev", {"orders": topic_status("orders", subscriptions=(reader("billing"),))})
    assert graph.applications == {
        "subscription billing": ApplicationNode("subscription billing", "billing", state=LinkState.CONNECTED),
        "publisher p": ApplicationNode("publisher p", "p", state=LinkState.CONNECTED),
    }


@pytest.mark.parametrize("name", ["shop.enrich", "shop.enrich.customers"])
def test_a_name_of_a_job_is_of_that_job_before_it_reads(name: str) -> None:
    """Its publisher has required the subscription, or a schedule has taken a hold; ``customers`` is a view of it."""
    orders = topic_status("orders", application=IMPORTER, subscriptions=(reader(name, state="absent"),))
    enriched = topic_status("enriched", application=ENRICH)
    graph = namespace_graph("dev", {"orders": orders, "enriched": enriched})
    assert graph.edges[-1].application == "job shop/enrich"
    assert graph.edges[-1].state is LinkState.ABSENT
    assert graph.applications["job shop/enrich"].state is LinkState.CONNECTED
    alone = namespace_graph("dev", {"orders": orders})
    assert alone.edges[-1].application == f"subscription {name}"


def test_holds_and_leases_are_edges_too() -> None:
    hold = HoldReply("shop.enrich", "scheduler", 0, 60.0, 1.0, 0)
    gap = HoldReply("shop.gone", "scheduler", 0, 60.0, 1.0, 0, gap="it was dropped")
    lease = LeaseReply("spark.read-1", 0, 5, 60.0, True)
    graph = namespace_graph(
        "dev",
        {
            "orders": topic_status("orders", publishing=False, holds=(hold, gap), leases=(lease,)),
            "enriched": topic_status("enriched", application=ENRICH),
        },
    )
    assert [(edge.application, edge.kind, edge.state) for edge in graph.edges if edge.topic == "orders"] == [
        ("job shop/enrich", EdgeKind.HOLDS, LinkState.ABSENT),
        ("lease spark.read-1", EdgeKind.LEASES, LinkState.CONNECTED),
    ]


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({}, TopicState.PUBLISHED),
        ({"waiting": "the spool is full"}, TopicState.BLOCKED),
        ({"publishing": False, "application": None}, TopicState.SERVED),
        ({"ended": True}, TopicState.ENDED),
    ],
)
def test_states_of_topics(given: dict[str, Any], state: TopicState) -> None:
    """Only a topic with a live publisher has an edge from one."""
    graph = namespace_graph("dev", {"orders": topic_status("orders", **{"application": IMPORTER, **given})})
    assert graph.topics["orders"].state is state
    assert len(graph.edges) == (state in (TopicState.PUBLISHED, TopicState.BLOCKED))


def test_a_topic_that_is_away_and_one_that_does_not_answer() -> None:
    answers = {"away": TopicAway("x"), "gone": TopicNotFound("x"), "silent": LinkBroken("connect to a:1: refused")}
    graph = namespace_graph("dev", answers)
    assert graph.topics == {
        "away": TopicNode("away", TopicState.AWAY),
        "gone": TopicNode("gone", TopicState.AWAY),
        "silent": TopicNode("silent", TopicState.UNKNOWN, error="connect to a:1: refused"),
    }
    assert graph.edges == ()


def test_rates_are_of_what_changed_meanwhile() -> None:
    """By the coordinator's clock, no matter how long anybody was waited for."""
    lines = (reader("a", rows=100, position=1), reader("b", rows=50, position=7))
    before = topic_status("orders", rows=1000, at=60.0, subscriptions=lines)
    lines = (reader("a", rows=20, position=9), reader("c"), reader("b", rows=250, position=7))
    now = topic_status("orders", rows=1200, at=64.0, subscriptions=lines)
    graph = namespace_graph("dev", {"orders": now, "new": topic_status("new", at=9.0)}, {"orders": before})
    assert graph.topics["orders"].rows_per_second == 50.0
    assert graph.topics["new"].rows_per_second is None
    rates = {edge.name: edge.rows_per_second for edge in graph.edges if edge.topic == "orders"}
    assert rates == {"p": 50.0, "a": 70.0, "b": 0.0, "c": None}
    assert {edge.name: edge.lag_seconds for edge in graph.edges if edge.kind is EdgeKind.READS} == {
        "a": 0.2,
        "b": 2.5,
        "c": 0.0,
    }


@pytest.mark.parametrize(
    ("changed", "rate"),
    [
        ({}, 100.0),
        ({"log": "1" * 16}, None),  # made again
        ({"endpoint": "b:1"}, None),  # of another coordinator, whose clock is another one
        ({"at": 0.0}, None),  # of an old version
        ({"at": 12.0}, None),  # the same look: the disk hangs
    ],
)
def test_when_rates_are_not_known(changed: dict[str, Any], rate: float | None) -> None:
    before = topic_status("orders", **{"rows": 1000, "at": 10.0, "endpoint": "a:1", **changed})
    now = topic_status("orders", rows=1200, at=12.0, endpoint="a:1")
    assert namespace_graph("dev", {"orders": now}, {"orders": before}).topics["orders"].rows_per_second == rate


def test_rows_that_were_removed_are_lost_and_not_read() -> None:
    """With drop_oldest a lag shrinks though its reader is away: here by 200 rows."""
    lines = (reader("away", rows=500, position=10), reader("back", rows=500, position=10))
    before = topic_status("orders", rows=1000, at=10.0, tail=10, subscriptions=lines)
    lines = (reader("away", rows=300, position=10), reader("back", rows=200, position=20))
    now = topic_status("orders", rows=1000, at=12.0, tail=14, subscriptions=lines)
    after = topic_status("orders", rows=1000, at=14.0, tail=14, subscriptions=(lines[0], reader("back", position=60)))
    edges = {edge.name: edge for edge in namespace_graph("dev", {"orders": now}, {"orders": before}).edges}
    assert (edges["away"].rows_per_second, edges["away"].lost_batches) == (0.0, 4)
    assert (edges["back"].rows_per_second, edges["back"].lost_batches) == (150.0, 0)
    late = {edge.name: edge for edge in namespace_graph("dev", {"orders": after}, {"orders": now}).edges}
    assert late["back"].rows_per_second == 100.0
    lost = topic_status("orders", rows=1000, at=14.0, tail=70, subscriptions=(reader("back", position=60),))
    assert namespace_graph("dev", {"orders": lost}, {"orders": now}).edges[-1].rows_per_second is None
    returned = topic_status("orders", rows=1000, at=14.0, tail=14, subscriptions=(reader("away", position=60),))
    assert namespace_graph("dev", {"orders": returned}, {"orders": now}).edges[-1].rows_per_second is None


def test_a_required_subscription_that_was_dropped_blocks_too() -> None:
    full = topic_status("orders", application=IMPORTER, required=("billing",), waiting="acks=all: billing")
    assert namespace_graph("dev", {"orders": full}).blocks == (
        Block("application host-1-aa", "orders", "subscription billing"),
    )


def test_a_publisher_that_was_killed_is_absent_and_one_that_only_serves_is_none() -> None:
    dead = namespace_graph("dev", {"orders": topic_status("orders", application=IMPORTER, publishing=False)})
    assert dead.topics["orders"].state is TopicState.SERVED
    assert [node.state for node in dead.applications.values()] == [LinkState.ABSENT]
    assert [(edge.kind, edge.state) for edge in dead.edges] == [(EdgeKind.PUBLISHES, LinkState.ABSENT)]
    assert namespace_graph("dev", {"orders": topic_status("orders", publishing=False)}).edges == ()


@pytest.mark.parametrize(
    ("name", "half", "of_job"),
    [
        ("x", Application("host-2-bb", "Spark"), True),  # of the same application
        ("shop.enrich", Application("host-7-ff", "shop.enrich"), True),  # of an earlier one, by both names
        ("shop.enrich.view", Application("host-7-ff", "shop.enrich"), True),
        ("x", Application("host-7-ff", "shop.enrich"), False),  # by one name alone it may be another program
        ("shop.enrich", Application("host-7-ff", "debug.py"), False),
    ],
)
def test_who_knows_half_of_what_it_is(name: str, half: Application, of_job: bool) -> None:
    """As processes of a driver on a cluster, whose JVM was not told."""
    orders = topic_status("orders", application=IMPORTER, subscriptions=(reader(name, half),))
    graph = namespace_graph("dev", {"orders": orders, "enriched": topic_status("enriched", application=ENRICH)})
    (found,) = (edge.application for edge in graph.edges if edge.name == name)
    assert (found == "job shop/enrich") == of_job
    assert graph.applications["job shop/enrich"].run == "run-1"


def test_an_id_is_believed_before_a_name_and_one_of_two_jobs_is_of_neither() -> None:
    other = Application("host-3-cc", "shop.other", "shop", "other", "run-2")
    half = Application("host-3-cc", "shop.enrich")
    orders = topic_status("orders", application=ENRICH, subscriptions=(reader("shop.enrich", half),))
    known = {"orders": orders, "others": topic_status("others", application=other)}
    assert namespace_graph("dev", known).edges[1].application == "job shop/other"
    twin = Application("host-3-cc", "shop.twin", "shop", "twin")
    half = Application("host-3-cc", "report.py")
    known["orders"] = topic_status("orders", application=ENRICH, subscriptions=(reader("x", half),))
    known["twins"] = topic_status("twins", application=twin)
    assert namespace_graph("dev", known).edges[1].application == "application host-3-cc"


def test_what_is_shown_of_a_job_is_of_the_process_that_has_its_state() -> None:
    """The last that was heard of, in any order of topics; what another process says gives its id, and no run."""
    old = Application("host-8-yy", "shop.enrich", "shop", "enrich", "run-old")
    half = Application("host-7-ff", "shop.enrich")
    for first, second in ("ab", "ba"):
        known = {
            first: topic_status(
                first, publishing=False, subscriptions=(reader("x", old, state="absent", last_seen=900.0),)
            ),
            second: topic_status(
                second, publishing=False, subscriptions=(reader("x", ENRICH, state="absent", last_seen=5.0),)
            ),
        }
        (node,) = namespace_graph("dev", known).applications.values()
        assert (node.id, node.run, node.state) == ("host-2-bb", "run-1", LinkState.ABSENT)
        known["c"] = topic_status("c", publishing=False, subscriptions=(reader("shop.enrich", half),))
        (node,) = namespace_graph("dev", known).applications.values()
        assert (node.id, node.run, node.state) == ("host-7-ff", "", LinkState.CONNECTED)


def test_leases_and_publishers_are_of_no_job_by_their_names() -> None:
    lease = LeaseReply("shop.enrich", 0, 5, 60.0, True)
    orders = topic_status("orders", publisher="shop.enrich", leases=(lease,))
    graph = namespace_graph("dev", {"orders": orders, "enriched": topic_status("enriched", application=ENRICH)})
    assert [edge.application for edge in graph.edges if edge.topic == "orders"] == [
        "lease shop.enrich",
        "publisher shop.enrich",
    ]


def test_an_application_without_a_name_has_that_of_its_publisher() -> None:
    graph = namespace_graph("dev", {"orders": topic_status("orders", application=Application("i"), publisher="till")})
    assert graph.labels == {"application i": "till"}


def test_batches_that_were_taken_back_are_no_negative_rate() -> None:
    before = topic_status("orders", rows=1200, at=10.0, subscriptions=(reader("a", position=9),))
    now = topic_status("orders", rows=1100, at=12.0, subscriptions=(reader("a", position=8),))
    assert [edge.rows_per_second for edge in namespace_graph("dev", {"orders": now}, {"orders": before}).edges] == [
        0,
        0,
    ]


@pytest.mark.parametrize("topics", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_sparks_name_is_shown_if_any_process_knows_it(topics: str) -> None:
    """Else the file's; in any order."""
    said = {"nightly": "nightly", "report.py": "report.py", "Spark": "report.py"}
    known: dict[str, TopicStatus] = {}
    for topic, (name, shown) in zip(topics, reversed(said.items()), strict=True):
        known[topic] = topic_status(topic, application=Application("i", name))
        if len(known) > 1:
            assert namespace_graph("dev", known).labels == {"application i": shown}


def test_who_waits_for_whom() -> None:
    slow, fast = reader("slow", ENRICH, rows=500, position=1), reader("fast", rows=10, position=49)
    full = topic_status("orders", application=IMPORTER, waiting="the spool is full", subscriptions=(slow, fast))
    graph = namespace_graph("dev", {"orders": full})
    assert {edge.name for edge in graph.edges if edge.blocks} == {"slow"}
    assert graph.blocks == (Block("application host-1-aa", "orders", "job shop/enrich"),)
    assert graph.blocked_by == {("job shop/enrich", "orders"): ("import.py",)}


def test_a_lag_below_zero_is_none() -> None:
    """The newest batch was taken back, and a subscription had it."""
    orders = topic_status("orders", subscriptions=(reader("a", rows=-10),))
    assert next(edge.lag_rows for edge in namespace_graph("dev", {"orders": orders}).edges if edge.name == "a") == 0
