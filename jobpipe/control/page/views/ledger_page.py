"""The pages of the ledger: all hops with their numbers, and one hop by minute, with its differences in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from jobpipe.control.control_service import Control
from jobpipe.control.page.graph_drawing import topic_href
from jobpipe.control.page.marks import Mark, ledger_mark
from jobpipe.control.page.page_snapshot import PageSnapshot
from jobpipe.control.page.rendering import RenderedPage, render_page
from jobpipe.control.page.views.recent_answers import RecentAnswers
from jobpipe.errors import JobpipeError, PipelineNotFound, short_repr
from jobpipe.ledger.difference_words import difference_words, minute_words, no_ledger_words, remedy_words
from jobpipe.ledger.hop_lines import HopLine, MinuteLine, hop_lines
from jobpipe.ledger.hop_states import NEWS_SECONDS, HopState
from jobpipe.operations.status_operations import LedgerReply, TopicStatus

MOST_HOPS = 500  # in the list
MINUTES = 60
MOST_DIFFERENCES = 20  # in words
SAID: Mapping[HopState, str] = {
    HopState.EQUAL: "All rows that were published up to its position were read and committed.",
    HopState.OPEN: "Some rows are not committed, or not judged yet. That is no alarm.",
    HopState.UNPROVEN: "All rows are committed. Of some it cannot be known whether they were read, since a process "
    "ended or a link broke before the readers had reported, or the reader is of an older version.",
    HopState.MOVED: "All rows are read and committed but those over which the position was moved.",
    HopState.DIFFERENT: "Rows were lost, or came twice.",
    HopState.NO_ACCOUNT: "Nothing is counted yet: it has acknowledged nothing, or its coordinator is of an older "
    "version.",
}


@dataclass(frozen=True)
class LedgerLine:
    """A hop in the list."""

    hop: HopLine
    mark: Mark
    href: str


@dataclass(frozen=True)
class MinuteRow:
    """A minute of a hop; ``at`` in seconds since 1970, ``words`` in UTC."""

    line: MinuteLine
    mark: Mark
    at: int
    words: str


def ledger_href(topic: str, subscription: str) -> str:
    """Return the address of the ledger of a subscription."""
    return f"/ui/ledger/{quote(topic, safe='')}?{urlencode({'subscription': subscription})}"


def news_since(snapshot: PageSnapshot) -> float:
    """Return since when a difference must have been found to be one that needs attention."""
    return snapshot.at - NEWS_SECONDS


class LedgerPages:
    """Makes them; a coordinator is asked for a ledger at most once in some seconds, however many look."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._ledgers: RecentAnswers[LedgerReply] = RecentAnswers()

    def all(self, snapshot: PageSnapshot) -> RenderedPage:
        """Return the page that lists the hops: those that differ first."""
        since = news_since(snapshot)
        hops = [hop for status in _statuses(snapshot) for hop in hop_lines(status, since=since)]
        hops.sort(key=lambda hop: (hop.state is not HopState.DIFFERENT, hop.topic, hop.name))
        return render_page(
            "ledger.html",
            "Ledger",
            snapshot=snapshot,
            lines=[
                LedgerLine(hop, ledger_mark(hop.state), ledger_href(hop.topic, hop.name)) for hop in hops[:MOST_HOPS]
            ],
            more=max(0, len(hops) - MOST_HOPS),
            unknown=[name for name, answer in sorted(snapshot.topics.items()) if isinstance(answer, JobpipeError)],
        )

    def one(self, topic: str, query: Mapping[str, str], snapshot: PageSnapshot) -> RenderedPage:
        """Return the page of one hop.

        Raises:
            PipelineNotFound: no coordinator says that there is one.
        """
        name = query.get("subscription", "")
        status = next((status for status in _statuses(snapshot) if status.topic == topic), None)
        if status is None or name not in {line.name for line in status.subscriptions}:
            what = f"topic {short_repr(topic)} has no subscription {short_repr(name)} now, or it is not served"
            raise PipelineNotFound(what, job=name[:100])
        found = self._ledgers.get((topic, name), lambda: self._control.ledger(topic, minutes=MINUTES, name=name))
        problem = no_ledger_words(found) if isinstance(found, JobpipeError) else ""
        reply = None if isinstance(found, JobpipeError) else found
        (hop,) = hop_lines(status, reply, name=name, since=news_since(snapshot))
        (every,) = hop_lines(status, reply, name=name)
        shown = every.differences[:MOST_DIFFERENCES]
        return render_page(
            "hop_ledger.html",
            f"Ledger of {name}",
            snapshot=snapshot,
            hop=hop,
            mark=ledger_mark(hop.state),
            said=SAID[hop.state],
            problem=problem,
            topic_href=topic_href,
            minutes=[_minute_row(each) for each in hop.minutes],
            differences=[difference_words(each) for each in shown],
            more=len(every.differences) - len(shown),
            remedies=[(reason, remedy_words(reason)) for reason in dict.fromkeys(each.reason for each in shown)],
        )


def _statuses(snapshot: PageSnapshot) -> list[TopicStatus]:
    return [answer for answer in snapshot.topics.values() if isinstance(answer, TopicStatus)]


def _minute_row(line: MinuteLine) -> MinuteRow:
    minute = line.minute.minute
    return MinuteRow(line, ledger_mark(line.state), 60 * minute, minute_words(minute))
