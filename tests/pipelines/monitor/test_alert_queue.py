"""The outbox of alerts: what is sent when, and what is given up; `post` is a stand-in."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any

import pytest

from jobpipe.config.types.secrets import Secret
from jobpipe.jobs.alerts import alert_queue
from jobpipe.jobs.alerts.alert_queue import GIVE_UP_SECONDS, MOST_WAITING, REJECTED_ATTEMPTS, SENDERS, Alert, AlertQueue
from jobpipe.jobs.alerts.webhook import Webhook, WebhookError, WebhookRefused, WebhookRejected
from tests.pipelines.waiting import DEADLINE, eventually


class Hooks:
    """Webhooks by their paths; each answers by a function, or well."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[], None]] = {}
        self.sent: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self.tried: list[tuple[str, int]] = []

    def post(self, hook: Webhook, message: Mapping[str, Any], **_: object) -> None:
        self.tried.append((hook.target, message["event"]))
        self.answers.get(hook.target, lambda: None)()
        self.sent.put((hook.target, message["event"]))

    def next(self) -> tuple[str, int]:
        return self.sent.get(timeout=DEADLINE)


ENVIRON = {name: f"https://{name.lower()}.example.org/{name}" for name in ("A", "B", *(f"DEAD{n}" for n in range(9)))}


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Hooks:
    made = Hooks()
    monkeypatch.setattr(alert_queue, "post", made.post)
    return made


class Made:
    """An outbox, and what it has told to be done."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.done: list[int] = []
        self.queue = AlertQueue(
            environ=ENVIRON, done=lambda alert: self.done.append(alert.event), first_delay=0.001, clock=lambda: self.now
        )
        self.queue.start()

    def add(self, to: str, event: int) -> None:
        self.queue.add(
            Alert(
                name="FAILED",
                pipeline="p",
                job="j",
                at=1.0,
                event=event,
                detail="",
                number=1,
                since=1000.0,
                url=Secret(f"env:{to}"),
            )
        )


@pytest.fixture
def made(hooks: Hooks) -> Iterator[Made]:
    found = Made()
    yield found
    found.queue.close()


def fail(error: WebhookError) -> Callable[[], None]:
    def answer() -> None:
        raise error

    return answer


def test_dead_webhooks_delay_no_other_one(made: Made, hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though there are more of them than threads, with more alerts than one queue has."""
    monkeypatch.setattr(made.queue, "_first_delay", 3600.0)
    for number in range(SENDERS + 2):
        hooks.answers[f"/DEAD{number}"] = fail(WebhookError("no answer"))
        for event in range(MOST_WAITING):
            made.add(f"DEAD{number}", event)
    made.add("A", 7)
    assert hooks.next() == ("/A", 7)
    made.add("A", 8)
    assert hooks.next() == ("/A", 8)


def test_one_attempt_at_a_time_for_each_address_in_order(made: Made, hooks: Hooks) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    def answer() -> None:
        begun.release()
        assert gate.wait(DEADLINE)

    hooks.answers["/A"] = answer
    for event in (1, 2, 3):
        made.add("A", event)
    assert begun.acquire(timeout=DEADLINE)
    made.add("B", 4)
    assert hooks.next() == ("/B", 4)
    assert hooks.tried == [("/A", 1), ("/B", 4)]
    gate.set()
    assert [hooks.next() for _ in range(3)] == [("/A", 1), ("/A", 2), ("/A", 3)]


def test_an_alert_waits_for_hours_and_is_given_up_then(
    made: Made, hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.answers["/A"] = fail(WebhookError("no answer"))
    made.add("A", 1)
    eventually(lambda: len(hooks.tried) > 6)
    made.now += GIVE_UP_SECONDS - 1.0
    tried = len(hooks.tried)
    eventually(lambda: len(hooks.tried) > tried + 1)
    assert made.done == []
    made.now += 1.0
    eventually(lambda: made.done == [1])
    assert "alert FAILED of p/j could not be delivered to webhook 1, and is given up: no answer" in caplog.text


@pytest.mark.parametrize(
    ("error", "attempts"), [(WebhookRejected("status 404"), REJECTED_ATTEMPTS), (WebhookRefused("status 302"), 1)]
)
def test_what_is_refused_is_given_up_sooner_and_the_next_one_is_sent(
    made: Made, hooks: Hooks, error: WebhookError, attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    hooks.answers["/A"] = lambda: fail(error)() if hooks.tried[-1][1] == 1 else None
    made.add("A", 1)
    made.add("A", 2)
    assert hooks.next() == ("/A", 2)
    assert [event for _, event in hooks.tried] == [1] * attempts + [2]
    assert str(error) in caplog.text


def test_of_too_many_the_oldest_are_given_up(
    made: Made, hooks: Hooks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(made.queue, "_first_delay", 3600.0)
    monkeypatch.setattr(alert_queue, "MOST_DESTINATIONS", 1)
    hooks.answers["/A"] = fail(WebhookError("no answer"))
    for event in range(MOST_WAITING):
        made.add("A", event)
    eventually(lambda: not any(each.busy for each in made.queue._destinations.values()))
    made.add("A", MOST_WAITING)
    assert made.done == [0]
    made.add("B", 77)
    assert made.done == [0, 77]
    assert "alerts for 1 webhooks wait already" in caplog.text


def test_the_end_waits_a_while_for_what_is_not_sent(hooks: Hooks) -> None:
    made = Made()
    made.add("A", 1)
    assert made.queue.close(within=DEADLINE) == 0
    assert made.done == [1]
    made = Made()
    hooks.answers["/A"] = fail(WebhookError("no answer"))
    made.add("A", 1)
    assert made.queue.close(within=0.01) == 1
