"""Dead letters in memory: what is asked of the bus, answered by the test."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from jobpipe.control.letters.letter_views import LetterCounts, LetterGroupView, LetterJob, LetterRow, LetterRows
from jobpipe.metrics.metric_samples import TopicsSnapshot
from jobpipe.pipelines.dead_letters.redrive import Outcome
from tests.statuses import topic_status

DEAD = "flights.report.dead-letters"
DEADLINE = 20.0
LEFT = "1 letter cannot be published again: it came from a file"
GROUP = LetterGroupView(
    stage="python", error_class="ValueError", letters=3, redriven=0, left=1, first=1000.0, last=2000.0
)
ROW = LetterRow(
    offset=4,
    number=1,
    row='{"id": 7}',
    row_characters=9,
    error_class="ValueError",
    error_message="bad price",
    stage="python",
    topic="flights",
    source_offset=12,
    partition=0,
    row_number=3,
    run="run-1",
    at=2000.0,
)


@dataclass
class Letters:
    """Two letters of rows of topic ``flights`` that can be published again, and one that cannot."""

    jobs: list[LetterJob] = field(default_factory=lambda: [LetterJob("flights", "report", DEAD)])
    counts: LetterCounts = field(default_factory=lambda: LetterCounts(letters=3, looked_at=3, groups=(GROUP,)))
    rows: tuple[LetterRow, ...] = (ROW,)
    head: int = 5
    served: bool = True
    gate: threading.Event = field(default_factory=threading.Event)  # a redrive waits for it
    began: threading.Event = field(default_factory=threading.Event)
    fails: Exception | None = None
    then_fails: Exception | None = None  # a redrive, once it has published
    is_complete: bool = True  # what a redrive, or a plan, looks at
    published: bool = False
    asked: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.gate.set()

    def snapshot(self) -> TopicsSnapshot:
        return TopicsSnapshot({DEAD: topic_status(DEAD, head=self.head)} if self.served else {}, 0.0)

    def allowed(self, job: LetterJob) -> Callable[[str], bool]:
        return lambda topic: topic == "flights"

    def _asked(self, what: str) -> None:
        self.asked[what] += 1
        if self.fails is not None:
            raise self.fails

    def count(self, topic: str, stopped: Callable[[], bool]) -> LetterCounts:
        self._asked("count")
        group = replace(GROUP, redriven=2 if self.published else 0)
        return replace(self.counts, groups=(group,)) if self.counts.groups else self.counts

    def newest(self, topic: str, limit: int, stopped: Callable[[], bool]) -> LetterRows:
        self._asked("newest")
        return LetterRows(rows=self.rows[:limit])

    def redrive(
        self,
        topic: str,
        allowed: Callable[[str], bool],
        stopped: Callable[[], bool],
        outcome: Outcome,
        *,
        dry_run: bool,
    ) -> None:
        assert allowed("flights")
        assert not allowed("others")
        self._asked("plan" if dry_run else "redrive")
        if not dry_run:
            self.began.set()
            while not self.gate.wait(0.01):
                if stopped():
                    return
        outcome.is_complete = self.is_complete
        outcome.already = 2 if self.published else 0
        outcome.left["it came from a file"] = 1
        if not self.published:
            outcome.published["flights"] = 2
        if not dry_run:
            self.published = True
            if self.then_fails is not None:
                raise self.then_fails
