"""What Spark makes tasks of: an input partition for each publisher partition of a range, or of its pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jobpipe.operations.reader_operations import CutReply, CutRequest
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.spark.source.partition_reader import RangePartition
from jobpipe.store.catalog.position import Position
from jobpipe.subscribing.fetching.count_report import CountedRange
from jobpipe.subscribing.fetching.part_fetch import FetchRange

AskCut = Callable[[str, CutRequest], CutReply]


@dataclass(frozen=True)
class TopicRange:
    """A part of one read: batches of one topic and shape, without holes.

    Attributes:
        topic: The topic of the range.
        start, end: What is read lies between them.
        partitions: The publisher's that are read, from 0.
        data: Hint of where they are served.
        rows: About so many, of all partitions.
        counts: What its tasks count it as, for the ledger; None for a batch read.
    """

    topic: str
    start: Position
    end: Position
    partitions: Sequence[int]
    data: str
    rows: int
    counts: CountedRange | None = None


def input_partitions(ranges: Sequence[TopicRange], options: SourceOptions, ask: AskCut) -> list[RangePartition]:
    """Return the input partitions of one read.

    Without ``minPartitions`` and ``maxRowsPerPartition`` there is one for each publisher partition. With either, the
    coordinators split the ranges between record batches; pieces without rows of a partition make none. A replay
    after a restart may be cut in other places: Spark needs the same rows again, not the same tasks.

    Args:
        ranges: what is read.
        options: of the ``load()``.
        ask: sends a request to a topic's coordinator.

    Raises:
        DataLoss: a range does not fit the log any more.
        ConfigError: the options lead to more input partitions than anybody can want.
    """
    made = _made(ranges, options, ask)
    for number, each in enumerate(made):
        if each.counts is not None:
            each.wanted = replace(each.wanted, counts=each.counts.part(number))
    return made


def _made(ranges: Sequence[TopicRange], options: SourceOptions, ask: AskCut) -> list[RangePartition]:
    if options.min_partitions is None and options.max_rows_per_partition is None:
        return [_partition(part, part.start, part.end, k) for part in ranges for k in part.partitions]
    ranges = [part for part in ranges if part.partitions]
    made: list[list[RangePartition]] = []
    rows_left = sum(part.rows for part in ranges)
    for part in ranges:
        left = _missing(options, made)
        share = -(-left * part.rows // rows_left) if rows_left else left
        rows_left -= part.rows
        made.append(_cut(part, options, max(share, 1), ask))
    for number, part in enumerate(ranges):  # what later ones could not give, earlier ones may
        if (missing := _missing(options, made)) > 0:
            made[number] = _cut(part, options, len(made[number]) + missing, ask)
    return [each for pieces in made for each in pieces]


def _missing(options: SourceOptions, made: Sequence[Sequence[RangePartition]]) -> int:
    """Return how many input partitions minPartitions asks for still."""
    return max((options.min_partitions or 0) - sum(map(len, made)), 0)


def _cut(part: TopicRange, options: SourceOptions, at_least: int, ask: AskCut) -> list[RangePartition]:
    """Return one range in pieces: so many input partitions at least, if it has the record batches for them."""
    asked = CutRequest(
        start=part.start,
        end=part.end,
        partitions=tuple(part.partitions),
        max_rows=options.max_rows_per_partition,
        at_least=at_least,
    )
    made: list[RangePartition] = []
    here = part.start
    for piece in ask(part.topic, asked).pieces:
        made += [_partition(part, here, piece.end, k) for k in piece.partitions]
        here = piece.end
    return made


def _partition(part: TopicRange, start: Position, end: Position, k: int) -> RangePartition:
    return RangePartition(FetchRange(part.topic, start, end, k, part.data), part.counts)
