"""What the readers give equals the model, for random logs and random options; tests/model/trial.py has the model."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from jobpipe.errors import JobpipeError
from tests.model.conftest import World
from tests.model.logs import Log, Row
from tests.model.query import Checkpoint, MicroBatch, read_batch, run_stream
from tests.model.trial import Place, Trial, Unclear, Wrong, draw_trial

pytestmark = pytest.mark.timeout(600)

TRIALS = 20  # of each test; there are six
Spans = dict[str, tuple[Place, Place]]
Lies = tuple[str, int, int, int]  # topic, offset, partition, row: where a row lies


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_what_is_read_equals_the_model(world: World, number: int) -> None:
    """Exactly the expected rows, each once, in order; limits hold; what cannot be fails before any task."""
    for trial_number in range(number * TRIALS, (number + 1) * TRIALS):
        rng = random.Random(f"{world.seed} {trial_number}")
        trial = draw_trial(rng.choice(world.groups), rng)
        try:
            _check(world, trial, f"t{trial_number}", rng)
        except Unclear:
            continue
        except BaseException as error:
            error.add_note(f"JOBPIPE_SEED={world.seed}, trial {trial_number}: {trial}")
            raise


def _check(world: World, trial: Trial, name: str, rng: random.Random) -> None:
    stands: dict[str, Place] = {}
    undecided: set[str] = set()
    if rng.random() < 0.3:
        stands, undecided = _stand_somewhere(world, trial, name, rng)
    if trial.stream or stands or "committed" in trial.options.get("startingOffsets", ""):
        trial.options["name"] = name
    options = {**world.settings, **trial.options}
    spans = trial.spans(stands, undecided)
    if isinstance(spans, Wrong):
        with pytest.raises(JobpipeError) as caught:
            _read(trial, options, Checkpoint(), rng, None)
        text = str(caught.value)
        names = [*(log.topic for log in trial.logs), *(f"option: {option} = " for option in trial.options)]
        assert any(name in text for name in names), f"{spans}: names neither topic nor option: {text}"
        return
    rows = trial.expected(spans)
    checkpoint = Checkpoint()
    _read(trial, options, checkpoint, rng, None if trial.patient else len(rows))
    batches = [batch for _, batch in sorted(checkpoint.batches.items())]
    if trial.patient:
        spans = _what_was_held_back(trial, spans, checkpoint)
        rows = trial.expected(spans)
    parallelism = {row[:4]: len(log.batches[row.n].layout) for log in trial.logs for _, row in log.rows()}
    _check_rows(rows, batches, parallelism)
    _check_tasks(trial, batches)
    if trial.stream:
        _check_limits(trial, batches)
        for log in trial.logs:
            n = world.served.committed(log.topic, name)
            assert n == spans[log.topic][1][0], f"{log.topic}: acknowledged to {n}, but read {spans[log.topic]}"


def _stand_somewhere(world: World, trial: Trial, name: str, rng: random.Random) -> tuple[dict[str, Place], set[str]]:
    """Let the name read some of its topics first; return where it stands then, and where it has not moved."""
    topics = ",".join(log.topic for log in trial.logs)
    options = {**world.settings, "subscribe": topics, "name": name, "startingOffsets": "earliest"}
    options["maxRowsPerTrigger"] = str(rng.randint(1, 500))
    run_stream(options, checkpoint := Checkpoint(), rng, most=rng.randrange(4))
    stands: dict[str, Place] = {}
    for log in trial.logs:
        n = world.served.committed(log.topic, name)
        assert n <= (checkpoint.offsets[-1][log.topic]["n"] if checkpoint.offsets else log.tail)
        stands[log.topic] = (n, 0)
    return stands, {log.topic for log in trial.logs if stands[log.topic] == (log.tail, 0)}


def _read(trial: Trial, options: Mapping[str, str], into: Checkpoint, rng: random.Random, enough: int | None) -> None:
    if trial.stream:
        run_stream(options, into, rng, available_now=trial.available_now, enough=enough)
    else:
        into.batches[0] = MicroBatch({}, {}, read_batch(options))


def _check_rows(expected: Sequence[Row], batches: Sequence[MicroBatch], parallelism: Mapping[Lies, int]) -> None:
    """Check that these rows came, each once, in order; and what the metadata say, where they were asked for."""
    got: list[Lies] = []
    published = {row[:4]: row.time for row in expected}
    for batch in batches:
        for pieces in batch.read:
            rows = [row for piece in pieces for row in piece.to_pylist()]
            part = [_lies(row) for row in rows]
            assert len({(topic, partition) for topic, _, partition, _ in part}) <= 1, "one task, two partitions"
            got += part
            for lies, about in zip(part, (row.get("_jobpipe") for row in rows), strict=True):
                if about is not None and lies in published:
                    said = (about["topic"], about["offset"], about["partition"], about["row"])
                    assert said == lies, f"the metadata say {about}"
                    assert about["published"].timestamp() * 1000 == pytest.approx(published[lies], abs=0.1)
                    assert about["parallelism"] == parallelism[lies], f"the metadata say {about}"
    missing, surplus = sorted(set(published) - set(got)), sorted(set(got) - set(published))
    assert not missing, f"{len(missing)} of {len(expected)} rows are missing: {missing[:5]}"
    assert not surplus, f"{len(surplus)} rows too much: {surplus[:5]}"
    assert len(got) == len(expected), f"{len(got) - len(expected)} rows came twice"
    for key, rows in itertools.groupby(sorted(got, key=_key), _key):  # a stable sort
        there = list(rows)
        assert there == sorted(there), f"{key}: out of order"


def _lies(row: Mapping[str, Any]) -> Lies:
    return row["topic"], row["n"], row["partition"], row["row"]


def _key(lies: Lies) -> tuple[str, int]:
    return lies[0], lies[2]


def _check_tasks(trial: Trial, batches: Sequence[MicroBatch]) -> None:
    """Check how many tasks each read has, and how many rows each of them."""
    pieces = {
        (log.topic, place[0], piece.partition, row): place
        for log in trial.logs
        for place, piece in log.pieces()
        for row in range(piece.first, piece.first + piece.rows)
    }
    most = trial.limits.get("maxRowsPerPartition", 1 << 60)
    for batch in batches:
        there: set[tuple[str, int, int]] = set()
        for task in batch.read:
            rows = [_lies(row) for part in task for row in part.to_pylist()]
            mine = {(lies[0], *pieces[lies]) for lies in rows}
            assert len(rows) <= most or len(mine) == 1, f"{len(rows)} rows in a task, of {len(mine)} record batches"
            there |= mine
        least = min(trial.limits.get("minPartitions", 0), len(there))
        assert len(batch.read) >= least, f"{len(batch.read)} tasks for {len(there)} record batches"


def _what_was_held_back(trial: Trial, spans: Spans, checkpoint: Checkpoint) -> Spans:
    """Check that each micro-batch had enough rows ahead of it, and that few are left; return what was to be read.

    Nothing is held back where nothing follows: behind an end mark, or at the end that the options name.
    """
    least, final = trial.limits["minRowsPerTrigger"], bool(trial.ends)
    final = final or any(log.batches and log.batches[-1].is_end for log in trial.logs)
    size = trial.limits.get("maxBytesPerTrigger", 1 << 60)

    def ahead(offset: dict[str, Any]) -> tuple[int, int]:
        places = {topic: (at["n"], at["r"]) for topic, at in offset.items()}
        pieces = [
            piece
            for log in trial.logs
            for place, piece in log.pieces()
            if places.get(log.topic, spans[log.topic][0]) <= place < spans[log.topic][1]
        ]
        return sum(piece.rows for piece in pieces), sum(piece.size for piece in pieces)

    for _, batch in sorted(checkpoint.batches.items()):
        rows, much = ahead(batch.start)
        if batch.rows:
            assert final or rows >= least or much >= size, f"{rows} rows were ahead of {batch.start}: not enough"
    last = checkpoint.offsets[-1] if checkpoint.offsets else {}
    rows, much = ahead(last)
    assert rows == 0 or (rows < least and much < size), f"{rows} rows were held back behind {last}"
    if not last:
        return {topic: (start, start) for topic, (start, _) in spans.items()}
    return {topic: (start, (last[topic]["n"], last[topic]["r"])) for topic, (start, _) in spans.items()}


def _check_limits(trial: Trial, batches: Sequence[MicroBatch]) -> None:
    logs = {log.topic: log for log in trial.logs}
    for batch in batches:
        taken = {topic: _taken(logs[topic], batch, topic) for topic in batch.end}
        for option, which in (("maxRowsPerTrigger", 0), ("maxBytesPerTrigger", 1)):
            # A topic may pass the limit with one record batch: less cannot be read.
            counted = sum(sum(piece[which] for piece in pieces) for pieces in taken.values() if len(pieces) > 1)
            assert counted <= trial.limits.get(option, counted), f"{option}: {counted} in {batch.start}..{batch.end}"


def _taken(log: Log, batch: MicroBatch, topic: str) -> list[tuple[int, int]]:
    """Return (rows, bytes) of the record batches of one topic in a micro-batch."""
    if topic not in batch.start:
        return []
    start, end = ((at["n"], at["r"]) for at in (batch.start[topic], batch.end[topic]))
    return [(piece.rows, piece.size) for place, piece in log.pieces() if start <= place < end]
