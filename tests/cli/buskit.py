"""What the tests with a real bus share."""

from __future__ import annotations

import json
import time

import pyarrow as pa

from jobpipe.admin import Admin
from jobpipe.config import Config
from jobpipe.publishing.topic_publisher import Publisher
from tests.cli.conftest import DEADLINE


def tables(batch: int) -> list[pa.Table]:
    """Two partitions: three rows and one, numbered through."""
    first = 4 * batch
    return [
        pa.table({"n": [first, first + 1, first + 2], "text": ["a", None, "c"]}),
        pa.table({"n": [first + 3], "text": ["d"]}),
    ]


def publish(publisher: Publisher, *batches: int) -> None:
    """Seal batches of four rows."""
    for batch in batches:
        publisher.seal("query", batch, tables(batch), run_id=str(publisher.epoch))


def numbers(text: str) -> list[int]:
    """Return the numbers of the rows that ``tail --json`` printed."""
    return [json.loads(line)["n"] for line in text.splitlines()]


def until_gone(config: Config, topic: str) -> None:
    """Wait until nobody serves the topic."""
    deadline = time.monotonic() + DEADLINE
    with Admin(config) as admin:
        while any(line.name == topic and line.location is not None for line in admin.topics()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
