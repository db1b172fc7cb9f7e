"""What the plain client asks of a coordinator, and what a lost link means to it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from jobpipe.config import Config
from jobpipe.errors import LinkBroken, LinkTimeout, RemoteProtocolError, TopicNotFound
from jobpipe.operations.range_messages import News
from jobpipe.operations.subscriber_operations import FirstReply, FirstRequest, PlanReply, PlanRequest
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import EARLIEST
from jobpipe.subscribing import python_client, topic_follower
from jobpipe.subscribing.python_client import Subscription
from jobpipe.subscribing.topic_follower import FollowerState, TopicFollower

GOLDEN = Path(__file__).parents[2] / "operations" / "golden" / "control.json"
LOCATOR = SimpleNamespace(session_timeout=1.0)
ROWS = pa.record_batch({"row": [1]})


def recorded() -> PlanReply:
    """Return a reply that was answered after a wait, with a row."""
    exchanges = json.loads(GOLDEN.read_text())["plan"]
    exchange = next(each for each in exchanges if "reply_blob" in each)
    return PlanReply.from_json(exchange["reply"], bytes.fromhex(exchange["reply_blob"]))


WHOLE = recorded()
START, END = WHOLE.start, WHOLE.end
NOTHING = replace(WHOLE, start=END, rows=0, bytes=0, partitions=0, held=())
OVER = replace(NOTHING, ends=True)


class Answers:
    """Stands for the follower: gives one answer after another; None is a lost link."""

    def __init__(self, *answers: PlanReply | None) -> None:
        self.answers = list(answers)
        self.asked: list[PlanRequest] = []
        self.polled: list[float] = []
        self.state = FollowerState.CONNECTED
        self.location = None

    def start(self) -> None: ...

    def close(self) -> None: ...

    def call(self, make: Callable[[int], Any], *, timeout: float, wait: bool = True) -> Any:
        request = make(1)
        return FirstReply(START, 0) if isinstance(request, FirstRequest) else self._answer(request)

    def ask_once(self, make: Callable[[int], Any], *, timeout: float) -> PlanReply | None:
        request = make(1)
        assert timeout > request.wait
        return self._answer(request)

    def _answer(self, request: PlanRequest) -> PlanReply | None:
        self.asked.append(request)
        return self.answers.pop(0)

    def poll(self, position: Position, timeout: float) -> News | None:
        self.polled.append(timeout)
        return News(END, ended=False)

    def wait_beyond(self, position: Position, timeout: float) -> None:
        return None

    def note_news(self, news: News) -> None: ...


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[PlanReply]:
    """The plans whose rows were fetched from the data process."""
    plans: list[PlanReply] = []

    def fetch_plan(topic: str, plan: PlanReply, data: str, config: Config) -> Iterator[Any]:
        plans.append(plan)
        yield SimpleNamespace(batch=ROWS, header=SimpleNamespace(n=0, epoch=1))

    monkeypatch.setattr(python_client, "fetch_plan", fetch_plan)
    monkeypatch.setattr(python_client, "connect", lambda *what, **how: None)
    return plans


def subscription(config: Config, answers: Answers) -> Subscription:
    made = Subscription("orders", name="a", starting=EARLIEST, config=config)
    made._follower = cast("TopicFollower", answers)
    return made


def read(config: Config, answers: Answers, timeout: float | None = None) -> int:
    """Return how many rows come."""
    with subscription(config, answers) as made:
        return sum(batch.num_rows for batch in made.batches(timeout))


def test_one_request_a_batch(config: Config, fetched: list[PlanReply]) -> None:
    """It waits, acknowledges what was read before, and brings the rows."""
    answers = Answers(WHOLE, NOTHING, OVER)
    assert read(config, answers) == 1
    assert [asked.start for asked in answers.asked] == [START, END, END]
    assert all(asked.wait > 0 and asked.held for asked in answers.asked)
    assert (fetched, answers.polled) == ([], [])


def test_an_older_coordinator_is_polled_and_rows_are_fetched(config: Config, fetched: list[PlanReply]) -> None:
    old = [replace(plan, news=None, held=None) for plan in (WHOLE, NOTHING, OVER)]
    answers = Answers(*old)
    assert read(config, answers) == 1
    assert (len(fetched), len(answers.polled)) == (1, 1)


def test_rows_that_came_damaged_are_fetched(config: Config, fetched: list[PlanReply]) -> None:
    assert WHOLE.held is not None
    part = WHOLE.held[0]
    damaged = replace(part, data=part.data[:-1] + bytes([part.data[-1] ^ 1]))
    for held in ((damaged, *WHOLE.held[1:]), ()):
        answers = Answers(replace(WHOLE, held=held), OVER)
        assert read(config, answers) == 1
    assert len(fetched) == 2


def test_rows_of_a_large_batch_are_fetched(config: Config, fetched: list[PlanReply]) -> None:
    assert read(config, Answers(replace(WHOLE, held=None), OVER)) == 1
    assert len(fetched) == 1


def test_a_lost_link_is_waited_for_and_the_plan_asked_again(config: Config, fetched: list[PlanReply]) -> None:
    answers = Answers(None, WHOLE, None, None, OVER)
    assert read(config, answers) == 1
    assert [asked.start for asked in answers.asked] == [START, START, END, END, END]
    assert len(answers.polled) == 3


@pytest.mark.parametrize(("timeout", "connects"), [(None, [True, True]), (5.0, [False])])
def test_without_a_link_the_first_plan_does_not_wait(
    config: Config,
    fetched: list[PlanReply],
    monkeypatch: pytest.MonkeyPatch,
    timeout: float | None,
    connects: list[bool],
) -> None:
    """A link is waited for first: without end, or no longer than ``read.timeout`` if the caller has a timeout."""
    patience: list[bool] = []
    monkeypatch.setattr(python_client, "connect", lambda *what, patient: patience.append(patient))
    answers = Answers(replace(OVER, start=START, end=START, news=None))
    answers.state = FollowerState.RECONNECTING
    assert read(config, answers, timeout) == 0
    assert answers.asked[0].wait == 0
    assert patience == connects


@pytest.mark.slow
@pytest.mark.parametrize("answer", [NOTHING, None, replace(NOTHING, news=None)])
def test_a_timeout_ends_it(config: Config, fetched: list[PlanReply], answer: PlanReply | None) -> None:
    answers = Answers(WHOLE, *[answer] * 100_000)
    began = time.monotonic()
    assert read(config, answers, 0.05) == 1
    assert time.monotonic() - began < 5.0
    assert all(asked.wait <= 0.05 for asked in answers.asked)


# -- the link ----------------------------------------------------------------------------------------------------------


class FakeLink:
    """A link that says whether it was closed."""

    peer = "127.0.0.1:7400"

    def __init__(self, made: TopicFollower, ended: Exception | None = None) -> None:
        self.made = made
        self.ended = ended
        self.closed = False

    async def close(self, reason: str = "") -> None:
        self.closed = True
        self.made._link = None


def linked(monkeypatch: pytest.MonkeyPatch, error: Exception, ended: Exception | None = None) -> tuple[Any, FakeLink]:
    """Return a follower whose link answers with an error."""

    async def ask(*what: Any, **how: Any) -> None:
        await asyncio.sleep(0)
        raise error

    monkeypatch.setattr(topic_follower, "ask", ask)
    made = TopicFollower("orders", "a", locator=cast("Any", LOCATOR), tls=lambda _: None, polls=False)
    link = FakeLink(made, ended)
    made._link, made._state = cast("Any", link), FollowerState.CONNECTED
    return made, link


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (LinkTimeout("no answer"), None),
        (TopicNotFound("no longer served here"), None),
        (LinkBroken("cut"), LinkBroken("cut")),
        (RemoteProtocolError("a damaged frame"), RemoteProtocolError("a damaged frame")),
    ],
)
def test_a_link_that_gives_no_answer_is_replaced(
    monkeypatch: pytest.MonkeyPatch, error: Exception, ended: Exception | None
) -> None:
    """One that lives would be kept: nobody polls over it."""
    made, link = linked(monkeypatch, error, ended)
    assert made.ask_once(lambda grant: PlanRequest(grant, START), timeout=1.0) is None
    assert link.closed
    assert made.ask_once(lambda grant: PlanRequest(grant, START), timeout=1.0) is None


def test_a_refusal_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    made, link = linked(monkeypatch, RemoteProtocolError("malformed"))
    with pytest.raises(RemoteProtocolError):
        made.ask_once(lambda grant: PlanRequest(grant, START), timeout=1.0)
    assert not link.closed


def test_a_link_that_does_not_close_keeps_no_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What ends the program, as Ctrl-C, is not replaced by that."""
    made, link = linked(monkeypatch, LinkTimeout("no answer"))
    monkeypatch.setattr(topic_follower, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(link, "close", lambda reason: asyncio.Event().wait())
    made.close()
    assert made.state is FollowerState.CLOSED
    assert "topic 'orders': closing its link: not done within 0.05 s" in caplog.text
