"""What the server says of dead letters. Values alone; times are seconds since 1970."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from jobpipe.plural import counted


@dataclass(frozen=True)
class LetterJob:
    """A job, and the topic that its dead letters go to."""

    pipeline: str
    job: str
    topic: str


@dataclass(frozen=True, kw_only=True)
class LetterGroupView:
    """The letters of one stage and error.

    Attributes:
        redriven: letters whose rows were published again; None: a topic that they came from cannot be asked.
        left: letters whose rows cannot be published again.
        first, last: when rows failed; None if no letter says that.
    """

    stage: str
    error_class: str
    letters: int
    redriven: int | None
    left: int
    first: float | None
    last: float | None


@dataclass(frozen=True, kw_only=True)
class LetterCounts:
    """The letters of a topic.

    Attributes:
        letters: that the topic has.
        looked_at: of how many, the newest, the groups are: fewer if there are too many, or they are too large.
    """

    letters: int
    looked_at: int
    groups: tuple[LetterGroupView, ...]

    @property
    def is_complete(self) -> bool:
        """Whether all letters were looked at."""
        return self.looked_at >= self.letters


@dataclass(frozen=True, kw_only=True)
class LetterRow:
    """A dead letter.

    Attributes:
        offset, number: of its batch in the letters' topic, and of the letter in it.
        row: as JSON, or as the source had it; shortened to some characters, of ``row_characters``. None: not shown.
        error_message: shortened too.
        topic, source_offset, partition, row_number: where its row was in the topic that it came from, if it came from
            one and that is known.
        file: that the row came from.
    """

    offset: int
    number: int
    row: str | None
    row_characters: int
    error_class: str | None
    error_message: str | None
    stage: str | None
    topic: str | None = None
    source_offset: int | None = None
    partition: int | None = None
    row_number: int | None = None
    file: str | None = None
    run: str | None = None
    at: float | None = None


@dataclass(frozen=True, kw_only=True)
class LetterRows:
    """The newest letters, the newest first.

    Attributes:
        note: what is missing; "" if nothing is.
    """

    rows: tuple[LetterRow, ...]
    note: str = ""


class RedriveState(StrEnum):
    """How a redrive stands."""

    PLANNED = "planned"  # nothing was published: what it would do
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # it ended early, with the server
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class LeftView:
    """Letters that are left, and why."""

    reason: str
    letters: int


@dataclass(frozen=True, kw_only=True)
class RedriveView:
    """A redrive, or what one would do.

    Attributes:
        by: who asked for it.
        published: rows by topic.
        already: letters whose rows were published again before.
        left: letters whose rows cannot be published again.
        error: why it failed; of a plan, why there is none. What it published by then stays published, and another
            redrive publishes the rest. Then the numbers above are the least: the answer for a batch may be lost.
    """

    topic: str
    state: RedriveState
    by: str = ""
    began: float | None = None
    ended: float | None = None
    published: Mapping[str, int]
    already: int = 0
    left: tuple[LeftView, ...] = ()
    error: str = ""

    @property
    def rows(self) -> int:
        """How many rows it published, or would publish."""
        return sum(self.published.values())

    @property
    def said(self) -> str:
        """What it does, or did, in sentences."""
        return ". ".join(self._said())

    def _said(self) -> Iterator[str]:
        if self.error:
            yield self.error
            for topic, rows in self.published.items():
                yield f"At least {counted(rows, 'row')} {'was' if rows == 1 else 'were'} published to {topic} again"
            return
        done = "A redrive publishes" if self.state is RedriveState.PLANNED else "It published"
        for topic, rows in self.published.items():
            yield f"{done} {counted(rows, 'row')} to {topic} again"
        if not self.rows:
            yield f"{done} nothing"
        if self.already:
            yield f"{counted(self.already, 'row')} {'was' if self.already == 1 else 'were'} published again before"
        for each in self.left:
            yield f"{counted(each.letters, 'letter')} cannot be published again: {each.reason}"


@dataclass(frozen=True, kw_only=True)
class LetterTopic:
    """The dead letters of a job.

    Attributes:
        counts: None while they are not known.
        problem: why the newest counts are not known; "" if nothing is wrong.
        redrive: the one that is under way, or the last one since the server has started.
    """

    pipeline: str
    job: str
    topic: str
    counts: LetterCounts | None
    problem: str = ""
    redrive: RedriveView | None = None
