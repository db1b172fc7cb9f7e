"""Reports to a topic's data process, from a worker, how many rows it has read of a range: for the ledger.

The report takes the link over which the rows came, and is no reason to fail. The data process knows which reports a
reader owes: while one does, nothing is judged, and when its link breaks its part is not taken for unread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from jobpipe.config import Config
from jobpipe.discovery.node_overrides import on_this_node
from jobpipe.errors import JobpipeError, LinkError, LinkTimeout
from jobpipe.net.address import Endpoint
from jobpipe.operations.data_operations import CountedPart, CountRequest, PieceCount
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.store.catalog.position import Position
from jobpipe.subscribing.fetching.link_pool import pooled
from jobpipe.subscribing.fetching.part_fetch import FetchRange

log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
TRIES = 2  # the second one over a new link


@dataclass(frozen=True)
class CountedRange:
    """What a micro-batch reads of a topic, as all its tasks know it.

    Attributes:
        name: the subscription's.
        start, end: the range.
        reading: an id of this reading of the range, the same for all its tasks.
    """

    name: str
    start: Position
    end: Position
    reading: str

    def part(self, number: int) -> CountedPart:
        """Return what the report of one part will be of.

        Args:
            number: which part of the reading it is: a task that is tried again has the same one, and no other task.
        """
        return CountedPart(self.name, self.start, self.end, self.reading, number)


def counted(batches: Iterable[pa.RecordBatch], part: FetchRange, config: Config) -> Iterator[pa.RecordBatch]:
    """Yield what a task has read of a part, and report how many rows it was when all of it was taken.

    Args:
        batches: as they are handed on.
        part: what was read; nothing is reported of one without ``counts``.
        config: to dial with.
    """
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
    if part.counts is not None:  # also of no row: some may have been lost on the way
        _report(part, part.counts, rows, config)


def _report(part: FetchRange, counts: CountedPart, rows: int, config: Config) -> None:
    endpoint, piece = Endpoint.parse(part.data), PieceCount(counts.number, part.partition, rows)
    asked = CountRequest(counts.name, counts.start, counts.end, counts.reading, (piece,))
    for left in reversed(range(TRIES)):
        try:
            with pooled(endpoint, part.topic, on_this_node(config, endpoint)) as link:
                ask_blocking(link, asked, timeout=ANSWER_SECONDS)
        except LinkTimeout as error:  # another link would not be faster
            log.info("topic %s: how many rows were read is not reported (%s)", part.topic, error)
            return
        except LinkError as error:
            level = logging.DEBUG if left else logging.INFO
            log.log(level, "topic %s: how many rows were read is not reported (%s)", part.topic, error)
        except JobpipeError as error:  # as of a data process of an older version
            log.debug("topic %s: rows are not counted there (%s)", part.topic, error)
            return
        else:
            return
