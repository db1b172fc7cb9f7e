"""Random options for one read, and the model of what it must give.

The model of all of it: rows are (topic, n, partition, row, time); the options choose a start and an end for each topic;
expected are those rows with start <= place < end whose partition is assigned.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from tests.model.logs import BEGAN, Log, Row

Place = tuple[int, int]  # (n, r), as positions have them
MOST_PARTITIONS = 5  # that write_log gives a batch
EARLIEST, LATEST, COMMITTED = "earliest", "latest", "committed"


class Wrong(Exception):
    """The read has to fail with one clear error."""


class Unclear(Exception):
    """What has to come of it is not laid down."""


@dataclass(frozen=True)
class Bound:
    """One end of what is read of one topic, as the model has it."""

    kind: str  # earliest, latest, committed, offset, position, time
    n: int = 0  # or the time
    r: int = 0
    or_latest: bool = False  # of a start by time

    def place(self, log: Log, committed: Place) -> Place:
        """Return the place in the log. Raises Wrong where there is none."""
        if self.kind == "time":
            if log.tail == log.head and log.batches and self.n > log.batches[-1].time and not self.or_latest:
                raise Unclear(log.topic)  # when its newest batch was published is not known any more
            late = [batch.n for batch in log.batches if batch.time >= self.n]
            if not late and not self.or_latest:
                raise Wrong(f"{log.topic}: nothing was published since {self.n}")
            return (max(min(late, default=log.head), log.tail), 0)  # what was removed is passed over
        return {EARLIEST: (log.tail, 0), LATEST: (log.head, 0), COMMITTED: committed}.get(self.kind, (self.n, self.r))


@dataclass
class Trial:
    """A read.

    Attributes:
        options: Of ``load()``, without the configuration.
        logs: The topics that it reads, in name order.
        stream, available_now: How it reads.
        starts, ends: What the options say of each topic; a topic that is not here has the default.
        assigned: Partitions from 0, by topic; a topic that is not here: all.
        limits: Of micro-batches and tasks, by option, as numbers.
        patient: Rows are held back for longer than the trial lasts.
    """

    logs: list[Log]
    stream: bool
    options: dict[str, str] = field(default_factory=dict)
    available_now: bool = False
    starts: dict[str, Bound] = field(default_factory=dict)
    ends: dict[str, Bound] = field(default_factory=dict)
    assigned: dict[str, tuple[int, ...]] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    patient: bool = False

    def spans(self, stands: Mapping[str, Place], undecided: Collection[str]) -> dict[str, tuple[Place, Place]] | Wrong:
        """Return start and end in each topic, or why there are none.

        Args:
            stands: where the subscription stands, by topic.
            undecided: topics where it has acknowledged nothing since it was first asked where to begin: a stream that
                asks again under that name is told the same, whatever it asks for.
        """
        try:
            return {log.topic: self._span(log, stands, log.topic in undecided) for log in self.logs}
        except Wrong as wrong:
            return wrong

    def _span(self, log: Log, stands: Mapping[str, Place], undecided: bool) -> tuple[Place, Place]:
        # A new name begins at the head; a batch read of a name that is not there, and without one, at the tail.
        said = self.starts.get(log.topic), self.ends.get(log.topic)
        if said[0] and said[1] and said[0].kind == said[1].kind in ("offset", "time") and said[0].n > said[1].n:
            raise Wrong(f"{log.topic}: the options themselves end before they start")
        committed = stands.get(log.topic, (log.head, 0) if self.stream else (log.tail, 0))
        default = Bound(COMMITTED if self.stream else EARLIEST)
        if not self.stream and self.starts.get(log.topic, default).kind == LATEST:
            raise Wrong("a batch read does not begin at its end")
        known = self.stream and undecided
        start = committed if known else self.starts.get(log.topic, default).place(log, committed)
        end = self.ends.get(log.topic, Bound(LATEST)).place(log, committed)
        if not (log.tail, 0) <= start <= (log.head, 0):
            raise Wrong(f"{log.topic}: the start {start} is not in the log")
        if self.stream and end > (log.head, 0):
            end = (log.head, 0)  # it goes on until the end is there
        if end > (log.head, 0) or end < start:
            raise Wrong(f"{log.topic}: the end {end} is not in the log, or before the start {start}")
        if max(self.assigned.get(log.topic, (0,))) >= MOST_PARTITIONS:
            if not self.stream and not any(start <= place < end for place, _ in log.pieces()):
                raise Unclear(log.topic)  # who looks at no row may not notice
            raise Wrong(f"{log.topic}: there is no such partition")
        return start, end

    def expected(self, spans: Mapping[str, tuple[Place, Place]]) -> list[Row]:
        """Return the rows, in the order of topic, offset, partition and row."""
        rows = [(log.topic, place, row) for log in self.logs for place, row in log.rows()]
        return sorted(
            row
            for topic, place, row in rows
            if spans[topic][0] <= place < spans[topic][1] and row.partition in self.assigned.get(topic, range(99))
        )

    def __str__(self) -> str:
        kind = ("availableNow" if self.available_now else "stream") if self.stream else "batch"
        return f"{kind} {json.dumps(self.options, indent=2)}\n" + "\n".join(map(str, self.logs))


def draw_trial(group: Sequence[Log], rng: random.Random) -> Trial:
    """Draw a read of some topics of a group; one in six or so is wrong."""
    trial = Trial(sorted(rng.sample(group, rng.randint(1, len(group))), key=lambda log: log.topic), rng.random() < 0.6)
    trial.available_now = trial.stream and rng.random() < 0.4
    _draw_topics(trial, group, rng)
    _draw_ends(trial, rng)
    _draw_limits(trial, rng)
    if rng.random() < 0.5:
        trial.options["includeMetadata"] = "true"
    trial.options = dict(rng.sample(sorted(trial.options.items()), len(trial.options)))
    return trial


def _draw_topics(trial: Trial, group: Sequence[Log], rng: random.Random) -> None:
    names = [log.topic for log in trial.logs]
    form = rng.choice(("subscribe", "subscribe", "assign", "assign", "subscribePattern"))  # a pattern takes 0.3 s
    if form == "subscribe":
        trial.options[form] = rng.choice((",", " , ")).join(rng.sample(names, len(names)))
    elif form == "subscribePattern":
        trial.options[form] = "|".join(map(re.escape, names))
        if rng.random() < 0.3:
            trial.options["maxTopics"] = str(rng.randint(len(names), 50))
    else:
        for log in trial.logs:
            there = log.batches[max(0, min(log.tail, log.head - 1)) :]
            fewest = min((len(batch.layout) for batch in there), default=1)
            trial.assigned[log.topic] = tuple(sorted(rng.sample(range(fewest), rng.randint(1, fewest))))
        if rng.random() < 0.05:
            trial.assigned[rng.choice(names)] = (MOST_PARTITIONS,)
        trial.options[form] = json.dumps({t: [k + 1 for k in chosen] for t, chosen in trial.assigned.items()})


def _draw_ends(trial: Trial, rng: random.Random) -> None:
    form = rng.random()
    if form < 0.2:
        kind = rng.choice(("TIME", "OFFSET"))
        trial.options["boundaryType"] = kind
        if rng.random() < 0.9:
            _draw_one(trial, "lowerBound", kind, rng)
        if rng.random() < 0.6:
            _draw_one(trial, "upperBound", kind, rng)
        return
    for side in ("starting", "ending"):
        options = [f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"]  # the first given wins
        given = [option for option in options if rng.random() < (0.3 if side == "starting" else 0.15)]
        if side == "starting" and not given and rng.random() < 0.8:
            given = ["startingOffsets"]
        for option in reversed(given):
            _draw_one(trial, option, "TIME" if "Timestamp" in option else "OFFSET", rng)


def _draw_one(trial: Trial, option: str, kind: str, rng: random.Random) -> None:
    """Give one option a value, and note what it means for each topic."""
    starting = option.startswith(("starting", "lower"))
    side = trial.starts if starting else trial.ends
    side.clear()
    draw: Callable[[Log], tuple[Any, Bound]]
    one_for_all: bool | None = None if option.endswith("Bound") else option.endswith("Timestamp") and "By" not in option
    if kind == "TIME":
        or_latest = not starting
        if starting and "startingOffsetsByTimestampStrategy" not in trial.options and rng.random() < 0.6:
            trial.options["startingOffsetsByTimestampStrategy"] = rng.choice(("latest", "latest", "error"))
        if starting:
            or_latest = trial.options.get("startingOffsetsByTimestampStrategy") == "latest"

        def draw(log: Log) -> tuple[Any, Bound]:
            time = _draw_time(log, starting, rng)
            return _time_text(time, rng), Bound("time", time, or_latest=or_latest)
    else:

        def draw(log: Log) -> tuple[Any, Bound]:
            return _draw_place(log, starting, rng)

    if one_for_all is None:
        one_for_all = rng.random() < 0.5
    if option in ("startingOffsets", "endingOffsets") and rng.random() < 0.5:
        words = (EARLIEST, EARLIEST, EARLIEST, LATEST, COMMITTED) if starting else (LATEST,)
        trial.options[option] = word = rng.choice(words)
        side.update({log.topic: Bound(word) for log in trial.logs})
    elif one_for_all:
        shortest = min(trial.logs, key=lambda log: log.head)
        value, bound = draw(shortest)
        while isinstance(value, dict):  # a whole position is of one topic
            value, bound = draw(shortest)
        trial.options[option] = str(value)
        side.update({log.topic: bound for log in trial.logs})
    else:
        found = {log.topic: draw(log) for log in trial.logs}
        if "subscribePattern" in trial.options and len(found) > 1 and rng.random() < 0.4:
            del found[rng.choice(sorted(found))]
        trial.options[option] = json.dumps({topic: value for topic, (value, _) in found.items()})
        if starting:
            side.update({log.topic: Bound(EARLIEST) for log in trial.logs})  # those that a pattern's JSON leaves out
        side.update({topic: bound for topic, (_, bound) in found.items()})


def _draw_place(log: Log, starting: bool, rng: random.Random) -> tuple[Any, Bound]:
    middle = (log.tail + log.head) // 2
    if rng.random() < 0.15:
        if starting and rng.random() < 0.5:
            return -2, Bound(EARLIEST)
        return -1, Bound(LATEST)
    if rng.random() < 0.06:  # removed already, or not there yet
        n = rng.choice((rng.randint(0, log.tail), log.head + 1, log.head + 1000))
        return n, Bound("offset", n)
    n = rng.randint(log.tail, middle) if starting else rng.randint(middle, log.head)
    if rng.random() < 0.3:
        pieces = len(log.batches[n].record_batches()) if n < log.head else 0
        r = rng.randrange(pieces) if pieces else 0
        return log.position(n, r).to_json(), Bound("position", n, r)
    return n, Bound("offset", n)


def _draw_time(log: Log, starting: bool, rng: random.Random) -> int:
    if not log.batches or rng.random() < 0.1:
        return BEGAN + rng.choice((-1_000_000, 0, 100, 10**9))
    middle = (log.tail + log.head) // 2
    likely = log.batches[: middle + 1] if starting else log.batches[middle:]
    batch = rng.choice(log.batches if rng.random() < 0.1 or not likely else likely)
    return batch.time + rng.choice((-1, 0, 0, 0, 1))


def _time_text(time: int, rng: random.Random) -> int | str:
    if rng.random() < 0.6:
        return time
    zone = rng.choice((UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))))
    text = (datetime.fromtimestamp(time // 1000, zone) + timedelta(milliseconds=time % 1000)).isoformat()
    return text.replace("+00:00", "Z")


def _draw_limits(trial: Trial, rng: random.Random) -> None:
    def give(option: str, value: int, text: str | None = None) -> None:
        trial.limits[option] = value
        trial.options[option] = text or str(value)

    rows = sum(batch.rows for log in trial.logs for batch in log.batches)
    # With lower limits it would only take longer: more micro-batches, more tasks.
    if rng.random() < 0.5:
        give("maxRowsPerTrigger", max(rows // 50, rng.choice((1, 7, rng.randint(1, 60), rng.randint(100, 2000)))))
    if rng.random() < 0.3:
        least = sum(sum(map(sum, batch.sizes)) for log in trial.logs for batch in log.batches) // 50
        give("maxBytesPerTrigger", max(least, rng.choice((1, rng.randint(500, 20_000), 1 << 20))))
    if rng.random() < 0.25:
        give("minRowsPerTrigger", rng.randint(1, min(trial.limits.get("maxRowsPerTrigger", 300), 300)))
        trial.patient = trial.stream and not trial.available_now and rng.random() < 0.5
        trial.options["maxTriggerDelay"] = "1h" if trial.patient else "30ms"
    if rng.random() < 0.25:
        give("minPartitions", rng.randint(1, 20))
    if rng.random() < 0.25:
        give("maxRowsPerPartition", max(rows // 100, rng.choice((1, rng.randint(1, 200)))))
