"""``python -m tests.harness.jobs.publish``: a publisher job to be killed.

Told what to do by one JSON line on standard input (:class:`PublishOrder`). It seals numbered batches as Spark does: the
number of the last batch stands in a small durable file, its checkpoint, written after the seal has returned. Killed
between the two, it replays that batch, with the same rows, when it is started again. A file ``finish`` in its folder
lets it seal an end mark, close the topic and end; SIGTERM does so without the end mark. It ends by itself when the
process that started it is gone.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jobpipe.config import config_from_dict
from jobpipe.coordinator.server_process import set_up_logging
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.testing.journal import Journal
from jobpipe.testing.numbered_rows import NumberedRows


@dataclass(frozen=True)
class PublishOrder:
    """What a publisher job is told.

    Attributes:
        config: As :meth:`jobpipe.config.Config.to_dict` writes it.
        folder: Of its checkpoint and journal; outlives it.
        batches: Ends with an end mark after so many, those of earlier lives included; None publishes for ever.
        pause: Seconds after each batch.
        options: For :class:`jobpipe.publishing.topic_publisher.Publisher`, for example ``min_subscribers``.
        parent: Process id of the starter.
    """

    config: dict[str, str]
    folder: str
    topic: str
    partitions: int
    rows: int
    payload: int
    parent: int
    batches: int | None = None
    pause: float = 0.0
    query: str = "query"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def journal(self) -> Path:
        """What it was about to seal, and what it sealed."""
        return Path(self.folder) / "journal"

    @property
    def checkpoint(self) -> Path:
        """The number of the last batch that it knows to be sealed."""
        return Path(self.folder) / "checkpoint"

    @property
    def finish(self) -> Path:
        """Make this file, and the publisher ends after the batch it is in, or was in when killed, with an end mark."""
        return Path(self.folder) / "finish"

    def line(self) -> bytes:
        """Return the order as the program reads it."""
        return json.dumps(asdict(self)).encode() + b"\n"


def publish(order: PublishOrder, stop: threading.Event) -> None:
    """Seal batches until ``stop``, ``order.batches``, ``order.finish``, or the end of the starter."""
    rows = NumberedRows(order.topic, partitions=order.partitions, rows=order.rows, payload=order.payload)
    _drop_torn_line(order.journal)
    journal = Journal(order.journal)
    publisher = Publisher(
        order.topic, config=config_from_dict(order.config), parallelism=order.partitions, **order.options
    )
    run_id = uuid.uuid4().hex
    final = False
    for batch_id in itertools.count(last_batch(order.checkpoint) + 1):
        finished = order.finish.exists() or (order.batches is not None and batch_id >= order.batches)
        final = finished and not journal.is_open(batch_id)
        if final:
            break
        if stop.is_set() or os.getppid() != order.parent:
            break
        journal.intend(batch_id, rows.ranges(batch_id))
        _force(order.journal)
        publisher.seal(order.query, batch_id, rows.tables(batch_id), run_id=run_id)
        journal.seal(batch_id)
        _force(order.journal)
        _note(order.checkpoint, batch_id)
        stop.wait(order.pause)
    publisher.close(final=final)


def last_batch(checkpoint: Path) -> int:
    """Return the number in a checkpoint file, -1 if there is none."""
    return int(checkpoint.read_text()) if checkpoint.exists() else -1


def _note(checkpoint: Path, batch_id: int) -> None:
    """Move the checkpoint on; a zombie that wakes up does not move its successor's back."""
    if last_batch(checkpoint) >= batch_id:
        return
    fresh = checkpoint.with_suffix(f".{os.getpid()}")
    fresh.write_text(str(batch_id))
    _force(fresh)
    fresh.rename(checkpoint)
    _force(checkpoint.parent)


def _force(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _drop_torn_line(journal: Path) -> None:
    """Remove what a killed writer left unfinished: the next entry must begin a line."""
    if journal.exists():
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)


def main() -> None:
    """Obey one order."""
    set_up_logging()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    publish(PublishOrder(**json.loads(sys.stdin.buffer.readline())), stop)


if __name__ == "__main__":
    main()
