"""``jobpipe topics graph`` against real publishers and readers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.admin import Admin
from jobpipe.cli.topics import graph_command
from jobpipe.config import Config, load
from jobpipe.errors import LinkBroken, NotAuthorized, PeerNotTrusted, TopicAway, TopicNotFound
from jobpipe.operations.status_operations import TopicStatus
from jobpipe.publishing.topic_publisher import Publisher
from tests.cli.buskit import publish
from tests.cli.conftest import DEADLINE, Program, Run
from tests.statuses import subscription_status, topic_status

pytestmark = pytest.mark.zookeeper

Start = Callable[..., Program]


@pytest.fixture
def publisher(config: Config) -> Iterator[Publisher]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBPIPE_PIPELINE", "shop")
        patch.setenv("JOBPIPE_JOB", "import")
        made = Publisher("orders", config=config, name="till", parallelism=2)
    yield made
    made.close()


def graph(run: Run, file: str, *args: str) -> dict[str, Any]:
    result = run("topics", "graph", "--format", "json", *args, file=file)
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_an_empty_namespace(run: Run, file: str, config: Config) -> None:
    result = run("topics", "graph", file=file)
    assert (result.exit_code, result.stdout) == (0, f"namespace {config.namespace} has no topics\n")


def test_a_job_a_program_and_what_is_between_them(
    run: Run, file: str, config: Config, publisher: Publisher, start: Start
) -> None:
    publish(publisher, 0, 1)
    reader = start("topics", "tail", "orders", "--name", "billing", "--from", "earliest", "--json", file=file)
    for _ in range(8):
        assert reader.line()
    found = graph(run, file, "--interval", "0.1")
    job, program = found["applications"][1], found["applications"][0]
    assert (job["name"], job["pipeline"], job["job"], job["state"]) == ("shop.import", "shop", "import", "connected")
    assert (program["name"], program["pipeline"], program["job"]) == ("jobpipe.cli.main", "", "")
    assert f"-{reader.process.pid}-" in program["id"]
    (topic,) = found["topics"]
    assert (topic["name"], topic["state"], topic["rows"], topic["rows_per_second"]) == ("orders", "published", 8, 0.0)
    assert [(edge["application"], edge["kind"], edge["name"], edge["state"]) for edge in found["edges"]] == [
        (job["key"], "publishes", "till", "connected"),
        (program["key"], "reads", "billing", "connected"),
    ]
    assert graph(run, file, "--interval", "0")["topics"][0]["rows_per_second"] is None
    lines = run("graph", "--interval", "0", file=file).stdout.splitlines()
    assert lines[2:4] == ["[shop.import]", "└─ orders  8 rows · 2 partitions"]
    assert lines[4].startswith("   └─ [jobpipe.cli.main]  ")
    reader.close()
    until_absent(run, file)
    (edge,) = (edge for edge in graph(run, file, "--interval", "0")["edges"] if edge["kind"] == "reads")
    assert edge["application"] == program["key"]  # who it was is kept with the subscription


def test_rates_are_those_of_what_is_published(run: Run, file: str, publisher: Publisher) -> None:
    """Between two looks, 25 batches of four rows, over the time between them on the coordinator's clock."""
    publish(publisher, 0)
    looks: list[TopicStatus] = []
    ask = Admin.answers

    def noted(admin: Admin, topics: Sequence[str], timeout: float) -> dict[str, Any]:
        found = ask(admin, topics, timeout)
        looks.append(cast("TopicStatus", found["orders"]))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Admin, "answers", noted)
        patch.setattr(graph_command, "time", SimpleNamespace(sleep=lambda seconds: publish(publisher, *range(1, 26))))
        (topic,) = graph(run, file, "--interval", "1")["topics"]
    first, second = looks
    assert (first.rows, second.rows) == (4, 104)
    assert topic["rows_per_second"] == 100 / (second.at - first.at)


def test_a_topic_that_does_not_answer_has_no_silence(run: Run, file: str, publisher: Publisher) -> None:
    """It is named on standard error. The exit code is that of the worst, but 0 for what need not be an error."""
    with pytest.MonkeyPatch.context() as patch:
        for answers, code, said in (
            ({"o": topic_status("o"), "dead": LinkBroken("refused")}, 3, "topic dead does not answer: refused\n"),
            ({"o": topic_status("o"), "secret": PeerNotTrusted("no")}, 0, "topic secret refuses us: no\n"),
            ({"o": topic_status("o"), "gone": TopicNotFound("no")}, 0, "topic gone is away: no\n"),
            (
                {"a": NotAuthorized("no"), "b": LinkBroken("x")},
                3,
                "topic a refuses us: no\ntopic b does not answer: x\n",
            ),
            ({"a": NotAuthorized("no"), "gone": TopicAway("x")}, 4, "topic a refuses us: no\ntopic gone is away: x\n"),
            ({"gone": TopicAway("x")}, 0, "topic gone is away: x\n"),
        ):
            patch.setattr(Admin, "answers", lambda *_, answers=answers: answers)
            result = run("topics", "graph", "--interval", "0", file=file)
            assert (result.exit_code, result.stderr.partition("jobpipe: ")[0]) == (code, said)


def test_a_topic_that_did_not_answer_at_first_has_no_rates(run: Run, file: str, publisher: Publisher) -> None:
    looks = iter([{"orders": LinkBroken("timed out")}, {"orders": topic_status("orders", at=9.0)}])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Admin, "answers", lambda *_: next(looks))
        result = run("topics", "graph", "--interval", "0.01", file=file)
    assert (result.exit_code, result.stderr) == (0, "topic orders has no rates: timed out\n")


def test_more_than_mermaid_draws_is_told(run: Run, file: str, publisher: Publisher) -> None:
    """Too many edges, or too much text; here the publisher's edge is one of them."""
    many = tuple(subscription_status(f"s{number}") for number in range(500))
    wide = tuple(subscription_status(f"{number:0>128}") for number in range(300))
    with pytest.MonkeyPatch.context() as patch:
        for lines, told in ((many[:499], False), (many, True), (wide[:100], False), (wide, True)):
            status = topic_status("orders", subscriptions=lines)
            patch.setattr(Admin, "answers", lambda *_, status=status: {"orders": status})
            result = run("topics", "graph", "--interval", "0", "--format", "mermaid", file=file)
            assert (result.exit_code, "Mermaid draws at most 500" in result.stderr) == (0, told)


def test_a_terminal_that_knows_ascii_alone(file: str, publisher: Publisher, start: Start) -> None:
    publish(publisher, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONIOENCODING", "ascii")
        code, out, err = start("graph", "--interval", "0", file=file).end()
    assert (code, err) == (0, "")
    assert out.splitlines()[2:] == ["[shop.import]", "`- orders  4 rows - 2 partitions"]


def until_absent(run: Run, file: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while any(edge["state"] == "connected" for edge in graph(run, file, "--interval", "0")["edges"][1:]):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_who_blocks_whom(run: Run, file: str, config: Config, settings_of_test: dict[str, str]) -> None:
    waits = load(overrides={**settings_of_test, "acks": "all", "acks.timeout": "60s"}, environ={})
    publisher = Publisher("orders", config=waits, name="till", required_subscribers=["billing"])
    sealing = threading.Thread(target=lambda: publish(publisher, 0), daemon=True)
    sealing.start()
    try:
        deadline = time.monotonic() + DEADLINE
        while not (found := graph(run, file, "--interval", "0"))["blocks"]:
            assert time.monotonic() < deadline
        (block,) = found["blocks"]
        keys = {each["key"]: each["name"] for each in found["applications"]}
        assert (block["topic"], keys[block["by"]]) == ("orders", "billing")
        for shape, said in (("text", "BLOCKS"), ("dot", "color=red"), ("mermaid", "linkStyle")):
            result = run("topics", "graph", "--interval", "0", "--format", shape, file=file)
            assert (result.exit_code, said in result.stdout) == (0, True)
        run("topics", "tail", "orders", "--name", "billing", "--from", "earliest", "--timeout", "0", file=file)
        sealing.join(DEADLINE)
        assert not sealing.is_alive()
    finally:
        publisher.close()
