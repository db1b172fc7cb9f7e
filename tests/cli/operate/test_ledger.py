"""``jobpipe ledger`` over answers of coordinators: what is shown, what it ends with, and what a terminal gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from click.testing import Result

from jobpipe.admin import TopicLine
from jobpipe.cli.common.exit_codes import Exit
from jobpipe.config import Config
from jobpipe.discovery.topic_lookup import Location
from jobpipe.errors import (
    JobpipeError,
    LinkBroken,
    NotAuthorized,
    RegistryUnavailable,
    RemoteProtocolError,
    TopicAway,
    TopicNotFound,
)
from jobpipe.net.address import Endpoint
from jobpipe.operations.messages.ledger_messages import (
    MAX_DIFFERENCES,
    HopCounts,
    HopLedger,
    HopMinute,
    LedgerMinute,
    RowDifference,
)
from jobpipe.operations.status_operations import LedgerReply, TopicStatus
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.subscribing.python_client import Subscription, subscribe
from tests.cli.buskit import publish
from tests.cli.conftest import Run
from tests.docs.pages import ROOT, block
from tests.statuses import subscription_status, topic_status

FOUND = RowDifference(
    first=41, end=44, published=100, read=99, partitions=(2,), found=1_795_943_642.0, reason="counted"
)
EQUAL = HopCounts(committed=500, read=500)
LOST = HopCounts(committed=600, read=599, lost=1, differences=1, newest=FOUND)
MINUTE = 29_932_394  # in which FOUND was found
OLDER = RemoteProtocolError("unknown operation 'ledger'", op="ledger")


@dataclass
class World:
    """What coordinators say; errors where they do not."""

    statuses: dict[str, TopicStatus | JobpipeError] = field(default_factory=dict)
    replies: dict[str, LedgerReply | JobpipeError] = field(default_factory=dict)
    away: tuple[str, ...] = ()
    asked: list[tuple[tuple[str, ...], int, str | None]] = field(default_factory=list)

    def __call__(self, config: object) -> World:
        return self

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topics(self) -> list[TopicLine]:
        place = Endpoint("127.0.0.1", 1)
        lines = [TopicLine(name, Location(name, place, place, 1, "i", 1, True)) for name in self.statuses]
        return lines + [TopicLine(name, None) for name in self.away]

    def answers(self, topics: Sequence[str], timeout: float) -> dict[str, TopicStatus | JobpipeError]:
        return {topic: self.statuses[topic] for topic in topics}

    def status(self, topic: str, timeout: float) -> TopicStatus:
        found = self.statuses.get(topic, TopicNotFound(f"topic {topic!r} is not served"))
        if isinstance(found, JobpipeError):
            raise found
        return found

    def ledgers(
        self, topics: Sequence[str], timeout: float, *, minutes: int, name: str | None
    ) -> Mapping[str, LedgerReply | JobpipeError]:
        self.asked.append((tuple(topics), minutes, name))
        return {topic: self.replies.get(topic, OLDER) for topic in topics}

    def put(self, topic: str, name: str, counts: HopCounts | None, *, rows: int = 0, **given: Any) -> None:
        """Add a subscription to a topic, and what its ledger says of it."""
        known = self.statuses.get(topic)
        lines = known.subscriptions if isinstance(known, TopicStatus) else ()
        line = subscription_status(name, rows=rows, position=44, counts=counts)
        self.statuses[topic] = topic_status(topic, subscriptions=(*lines, line))
        if counts is not None:
            reply = self.replies.get(topic)
            hops = reply.hops if isinstance(reply, LedgerReply) else ()
            hop = HopLedger(name=name, position=44, counts=counts, **{"minutes": (), **given})
            minutes = tuple(LedgerMinute(MINUTE - 1 + each, 40 + each, 44, 9) for each in range(len(hop.minutes)))
            self.replies[topic] = LedgerReply(topic=topic, at=1.0, minutes=minutes, hops=(*hops, hop))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr("jobpipe.admin.Admin", made)
    return made


@pytest.fixture
def ledger(world: World, run: Run, write: Callable[..., str]) -> Callable[..., Result]:
    return lambda *args: run("ledger", *args, file=write({"jobpipe.registerserver.topic.storage": "/shop"}))


def test_all_hops_of_a_namespace(world: World, ledger: Callable[..., Result]) -> None:
    """One line for each, and one sentence for each difference, with what to do."""
    world.put("orders", "audit", EQUAL)
    world.put("orders", "billing", LOST, rows=3, differences=(FOUND,))
    world.put("trades", "risk", replace(EQUAL, read=490, unproven=10, moved=7))
    result = ledger()
    assert (result.exit_code, result.stderr) == (Exit.DIFFERENT, "")
    assert result.stdout.splitlines() == [
        "TOPIC   SUBSCRIPTION  POSITION  PUBLISHED  READ  COMMITTED  OPEN  UNPROVEN  MOVED  LOST  DOUBLED  STATE",
        "orders  audit               44        500   500        500     0         0      0     0        0  equal",
        "orders  billing             44        600   599        600     3         0      0     1        0  DIFFERENT",
        "trades  risk                44        507   490        500     0        10      7     0        0  unproven",
        "",
        "topic 'orders', subscription 'billing': offsets 41 to 43, partition 2: 99 rows read of 100 published; "
        "its readers counted other rows than were published; found 2026-11-29 09:14:02 UTC",
        "",
        "what to do (counted): compare the range with what the job wrote, and read it again from its first offset if "
        "rows are missing",
    ]
    assert world.asked == [(("orders",), 1, None)]  # what is equal needs no further question


def test_one_hop_by_minute(world: World, ledger: Callable[..., Result]) -> None:
    minutes = (None, HopMinute(100, 100, 99, differs=True), HopMinute(50, 20, 20))
    world.put("orders", "audit", EQUAL)
    world.put("orders", "billing", LOST, rows=30, minutes=minutes, differences=(FOUND,))
    result = ledger("orders", "billing")
    assert result.exit_code == Exit.DIFFERENT
    assert world.asked == [(("orders",), 10, "billing")]
    assert "audit" not in result.stdout
    assert [line.split()[2:] for line in result.stdout.splitlines()[4:7]] == [
        ["2026-11-29", "09:15", "42", "to", "43", "50", "20", "20", "30", "0", "0", "open"],
        ["2026-11-29", "09:14", "41", "to", "43", "100", "99", "100", "0", "0", "0", "DIFFERENT"],
        ["2026-11-29", "09:13", "40", "to", "43", "-", "-", "-", "-", "-", "-", "no", "account"],
    ]
    ledger("orders", "billing", "--minutes", "60")
    ledger("orders", "--minutes", "5")
    assert world.asked[1:] == [(("orders",), 60, "billing"), (("orders",), 5, None)]


def test_json_has_stable_keys(world: World, ledger: Callable[..., Result]) -> None:
    world.put("orders", "billing", LOST, rows=30, minutes=(None, HopMinute(50, 20, 20)), differences=(FOUND,))
    world.put("orders", "late", None)
    result = ledger("orders", "--minutes", "2", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["namespace"]) == (Exit.DIFFERENT, "/shop")
    billing, late = found["hops"]
    said = billing["differences"][0].pop("said")
    assert said.startswith("offsets 41 to 43, partition 2: 99 rows read of 100 published")
    assert billing == {
        "topic": "orders",
        "subscription": "billing",
        "state": "different",
        "position": 44,
        "published": 600,
        "open": 30,
        "read": 599,
        "committed": 600,
        "unproven": 0,
        "moved": 0,
        "lost": 1,
        "doubled": 0,
        "differences": [
            {
                "first": 41,
                "end": 44,
                "partitions": [2],
                "published": 100,
                "read": 99,
                "reason": "counted",
                "found": 1_795_943_642.0,
            }
        ],
        "minutes": [
            {
                "minute": 60 * MINUTE,
                "first": 41,
                "end": 44,
                "open": 30,
                "published": 50,
                "read": 20,
                "committed": 20,
                "unproven": 0,
                "moved": 0,
                "state": "open",
            },
            {
                "minute": 60 * (MINUTE - 1),
                "first": 40,
                "end": 44,
                **dict.fromkeys(("open", "published", "read", "committed", "unproven", "moved")),
                "state": "no account",
            },
        ],
    }
    assert (late["state"], late["published"], late["lost"], late["differences"]) == ("no account", None, None, [])
    assert json.loads(ledger("orders", "--json").stdout)["hops"][0]["minutes"] == []


@pytest.mark.parametrize(
    ("counts", "lag", "code"),
    [
        pytest.param(EQUAL, 0, Exit.OK, id="equal"),
        pytest.param(EQUAL, 9, Exit.OK, id="open"),
        pytest.param(replace(EQUAL, read=0, unproven=500), 0, Exit.OK, id="unproven"),
        pytest.param(replace(EQUAL, moved=5), 0, Exit.OK, id="moved"),
        pytest.param(LOST, 0, Exit.DIFFERENT, id="lost"),
        pytest.param(replace(LOST, read=601, lost=0, doubled=1), 0, Exit.DIFFERENT, id="doubled"),
    ],
)
def test_only_a_difference_is_an_alarm(
    world: World, ledger: Callable[..., Result], counts: HopCounts, lag: int, code: Exit
) -> None:
    world.put("orders", "billing", counts, rows=lag, differences=(FOUND,) if counts.differences else ())
    for more in ((), ("--json",), ("orders",), ("orders", "billing"), ("orders", "billing", "--json")):
        result = ledger(*more)
        assert (result.exit_code, result.stderr) == (code, "")


def test_differences_of_long_ago(world: World, ledger: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay, unless only new ones are asked for."""
    monkeypatch.setattr("jobpipe.cli.operate.ledger_command.time.time", lambda: FOUND.found + 7200.0)
    world.put("orders", "billing", LOST, differences=(FOUND,))
    assert ledger().exit_code == Exit.DIFFERENT
    assert ledger("--hours", "3").exit_code == Exit.DIFFERENT
    old = ledger("--hours", "1.5")
    assert (old.exit_code, "99 rows read" in old.stdout) == (Exit.OK, False)
    assert old.stdout.splitlines()[1].split()[-3:] == ["1", "0", "equal"]  # but they are in the sums
    assert ledger("--hours", "0").exit_code == Exit.USAGE


def test_many_differences_of_one_hop(world: World, ledger: Callable[..., Result]) -> None:
    """Among others the newest are named, and how to see the rest."""
    many = tuple(replace(FOUND, first=each, end=each + 1) for each in range(MAX_DIFFERENCES))
    counts = replace(LOST, differences=1000, newest=many[-1])
    world.put("orders", "billing", counts, differences=many)
    lines = [line for line in ledger().stdout.splitlines() if "rows read" in line or " more" in line]
    assert len(lines) == 4
    assert "offset 99, " in lines[0]
    assert lines[-1] == "  and 97 more: jobpipe ledger orders billing"
    lines = [line for line in ledger("orders", "billing").stdout.splitlines() if "rows read" in line]
    assert len(lines) == MAX_DIFFERENCES


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        pytest.param(LinkBroken("refused"), Exit.UNREACHABLE, "topic other does not answer: refused", id="silent"),
        pytest.param(NotAuthorized("no"), Exit.NOT_AUTHORIZED, "topic other refuses us: no", id="refused"),
        pytest.param(TopicAway("it went"), Exit.OK, "topic other is away: it went", id="away"),
    ],
)
def test_what_could_not_be_asked_is_said(
    world: World, ledger: Callable[..., Result], answer: JobpipeError, code: Exit, said: str
) -> None:
    """And it hides no other topic; a difference comes first."""
    world.put("orders", "billing", EQUAL)
    assert ledger().exit_code == Exit.OK
    world.statuses["other"] = answer
    result = ledger()
    assert (result.exit_code, result.stderr) == (code, f"{said}\n")
    assert "equal" in result.stdout
    world.put("third", "billing", LOST, differences=(FOUND,))
    assert ledger().exit_code == Exit.DIFFERENT
    if code is not Exit.OK:
        del world.statuses["orders"], world.statuses["third"]
        assert ledger().exit_code == code


def test_topics_that_are_not_served_now_are_said(world: World, ledger: Callable[..., Result]) -> None:
    world.away = ("gone",)
    result = ledger()
    assert (result.exit_code, result.stdout) == (Exit.OK, "no topic is served\n")
    assert result.stderr == "topic gone is away: topic 'gone' is not served now\n"
    world.statuses["empty"] = topic_status("empty")
    assert ledger().stdout == "no subscriptions\n"


def test_an_older_coordinator_is_no_proof(world: World, ledger: Callable[..., Result]) -> None:
    """A subscription that has no account yet is no error; one that no coordinator counts is."""
    world.put("orders", "billing", None)
    world.replies["orders"] = LedgerReply(topic="orders", at=1.0, minutes=(), hops=())
    result = ledger()
    assert (result.exit_code, result.stderr) == (Exit.OK, "")
    assert result.stdout.splitlines()[1].endswith("no account")
    world.replies["orders"] = OLDER
    result = ledger()
    assert result.exit_code == Exit.UNREACHABLE
    assert result.stderr == (
        "topic orders tells no ledger: its coordinator is of an older version, which does not count rows\n"
    )


def test_a_ledger_that_does_not_come_hides_no_difference(world: World, ledger: Callable[..., Result]) -> None:
    """The status has the newest one."""
    world.put("orders", "billing", LOST, differences=(FOUND,))
    world.replies["orders"] = LinkBroken("cut")
    result = ledger("orders", "billing")
    assert (result.exit_code, result.stderr) == (Exit.DIFFERENT, "topic orders tells no ledger: cut\n")
    assert "99 rows read of 100 published" in result.stdout


def test_what_is_not_there(world: World, ledger: Callable[..., Result]) -> None:
    world.put("orders", "billing", EQUAL)
    result = ledger("orders", "biling")
    assert result.exit_code == Exit.UNHEALTHY
    assert result.stderr == "jobpipe: topic 'orders' has no subscription 'biling'; it has billing\n"
    assert ledger("order").exit_code == Exit.UNHEALTHY
    world.statuses["orders"] = LinkBroken("refused")
    assert ledger("orders").exit_code == Exit.UNREACHABLE
    world.statuses["orders"] = RegistryUnavailable("no answer")
    assert ledger("orders").exit_code == Exit.UNREACHABLE


def test_the_page_is_run(world: World, ledger: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/ledger.md: each command, and the sample, with its long line broken."""
    monkeypatch.setattr("jobpipe.cli.operate.ledger_command.time.time", lambda: FOUND.found + 2 * 86_400.0)
    world.put("orders", "audit", EQUAL)
    world.put("orders", "billing", LOST, rows=3, differences=(FOUND,))
    world.put("trades", "risk", replace(EQUAL, read=490, unproven=10, moved=7))
    shown = []
    for line in block("docs/ledger.md", "ledger").splitlines():
        program, command, *words = line.partition("#")[0].split()
        assert (program, command) == ("jobpipe", "ledger")
        result = ledger(*words)
        assert result.exit_code == (Exit.OK if "--hours" in words else Exit.DIFFERENT)
        shown.append(result.stdout)
    page = (ROOT / "docs" / "ledger.md").read_text()
    sample = [line[4:] for line in page.splitlines() if line.startswith("    ")]
    assert sample[:4] == shown[0].splitlines()[:4]
    assert " ".join(sample[4:]) == shown[0].splitlines()[5]


@pytest.mark.parametrize("name", ["\x1b[2Jx", "a\nb", "\u202egnp.exe", "x" * 10_000])
def test_names_do_nothing_to_a_terminal(world: World, ledger: Callable[..., Result], name: str) -> None:
    """Those of errors, of arguments and of a peer that does not keep to its rules."""
    hostile = replace(FOUND, reason=name)
    world.put("orders", name, replace(LOST, newest=hostile), differences=(hostile,))
    world.statuses[name] = LinkBroken(name)
    for more in ((), ("orders",), ("orders", name), (name, name)):
        result = ledger(*more)
        assert result.exit_code in (Exit.DIFFERENT, Exit.UNREACHABLE)
        for line in (result.stdout + result.stderr).splitlines():
            assert line.isprintable()


@pytest.mark.zookeeper
def test_of_a_real_coordinator(run: Run, config: Config, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal at first; then a reader leaves rows out, and the range is named."""
    rows_of = Subscription._rows
    with closing(Publisher("orders", config=config, name="importer", parallelism=2)) as publisher:
        publish(publisher, 0, 1)
        with subscribe("orders", name="billing", starting="earliest", config=config) as subscription:
            assert sum(batch.num_rows for batch in subscription.batches(timeout=1.0)) == 8
            first = run("ledger", file=file)
            assert (first.exit_code, first.stdout.splitlines()[1].split()[-1]) == (0, "equal"), first.output
            monkeypatch.setattr(Subscription, "_rows", lambda self, plan: list(rows_of(self, plan))[1:])
            publish(publisher, 2)
            assert sum(batch.num_rows for batch in subscription.batches(timeout=1.0)) == 1
        found = run("ledger", file=file)
        assert found.exit_code == Exit.DIFFERENT
        text = " ".join(found.stdout.split())
        assert "topic 'orders', subscription 'billing': offset 2: 1 row read of 4 published" in text, found.stdout
        told = json.loads(run("ledger", "orders", "billing", "--json", file=file).stdout)
        minutes = next(hop["minutes"] for hop in told["hops"])
        assert sum(each["published"] for each in minutes) == 12
        assert sum(each["read"] for each in minutes) == 9
