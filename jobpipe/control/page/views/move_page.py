"""The page on which a subscription is moved: a form, what the move means in rows, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from jobpipe.control.control_service import Control
from jobpipe.control.page.page_snapshot import PageSnapshot
from jobpipe.control.page.rendering import RenderedPage, render_page
from jobpipe.control.page.views.page_action import PageAction, body_of
from jobpipe.control.page.views.recent_answers import RecentAnswers
from jobpipe.control.permissions import Caller, Right
from jobpipe.control.positions.move_plan import MovePlan
from jobpipe.control.positions.subscription_moves import SubscriptionMoves
from jobpipe.errors import ConfigError, JobpipeError
from jobpipe.operations.status_operations import SubscriptionStatus, TopicStatus

PLACES = ("earliest", "latest", "offset", "time")


@dataclass(frozen=True)
class PlannedAction:
    """What a move means, and the button for it; ``error`` says why there is no plan."""

    plan: MovePlan | None = None
    error: str = ""
    action: PageAction | None = None


def move_href(topic: str, subscription: str) -> str:
    """Return the address of the page for a subscription."""
    return f"/ui/topics/{quote(topic, safe='')}/move?{urlencode({'subscription': subscription})}"


class MovePage:
    """Makes the page; plans are made at most once in some seconds, however many look."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._plans: RecentAnswers[MovePlan] = RecentAnswers()

    def forget(self) -> None:
        """Plan again: something has happened."""
        self._plans.forget()

    def render(self, topic: str, query: Mapping[str, str], snapshot: PageSnapshot, caller: Caller) -> RenderedPage:
        """Return the page for a subscription of a topic, and a place to go to."""
        name, to = query.get("subscription", "")[:200], query.get("to", "")
        moves, operates = self._control.moves, caller.right.includes(Right.OPERATE)
        path = f"/topics/{quote(topic, safe='')}/subscriptions/{quote(name, safe='')}/position"
        last = moves.last(topic).get(name)
        planned = undo = None
        if to:
            planned = self._planned(
                ("move", topic, name, *map(query.get, ("to", "offset", "time"))),
                lambda: _plan(moves, topic, name, query),
            )
            if operates and planned.plan is not None and not planned.plan.obstacles:
                planned = _with_action(planned, "Move", path, {"to": planned.plan.to})
        if last is not None:
            undo = self._planned(("undo", topic, name), lambda: moves.plan_undo(topic, name))
            if undo.plan is not None and undo.plan.undoes is not None:
                last = undo.plan.undoes
                if operates and not undo.plan.obstacles:
                    undo = _with_action(undo, "Undo", f"{path}/undo", {"number": last.number})
        return render_page(
            "move.html",
            f"Move {name}",
            snapshot=snapshot,
            topic=topic,
            name=name,
            line=_line(snapshot, topic, name),
            places=PLACES,
            to=to if to in PLACES else "earliest",
            offset=query.get("offset", "")[:20],
            time=query.get("time", "")[:40],
            planned=planned,
            last=last,
            undo=undo,
            may_operate=operates,
        )

    def _planned(self, key: tuple[object, ...], make: Callable[[], MovePlan]) -> PlannedAction:
        found = self._plans.get(key, make)
        return PlannedAction(error=found.message) if isinstance(found, JobpipeError) else PlannedAction(found)


def _plan(moves: SubscriptionMoves, topic: str, name: str, query: Mapping[str, str]) -> MovePlan:
    to = query.get("to", "")
    if to == "offset":
        to = query.get("offset", "").strip()
        if not (to.isascii() and to.isdecimal()):
            raise ConfigError("give the offset to move to", key="offset")
    elif to == "time":
        to = query.get("time", "").strip()
        if not to:
            raise ConfigError("give the time to move to", key="time")
        to = to if to.endswith("Z") else f"{to}Z"  # a browser's field for times knows no zones
    return moves.plan(topic, name, to)


def _with_action(planned: PlannedAction, label: str, path: str, body: Mapping[str, int]) -> PlannedAction:
    assert planned.plan is not None  # noqa: S101 - as the caller has seen
    plan = planned.plan
    question = ". ".join((plan.said, *plan.remarks)) + "."
    body_text = body_of({**body, "expected": plan.at})
    return PlannedAction(plan, action=PageAction(label, "POST", path, question, not plan.again, body_text))


def _line(snapshot: PageSnapshot, topic: str, name: str) -> SubscriptionStatus | None:
    answer = snapshot.topics.get(topic)
    lines = answer.subscriptions if isinstance(answer, TopicStatus) else ()
    return next((line for line in lines if line.name == name), None)
