"""A publisher job to be killed: does what JSON lines on its standard input say, and answers with JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jobpipe
from jobpipe.config import Config, load
from jobpipe.errors import to_fault
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.subscribing.python_client import Subscription
from jobpipe.testing import Journal, NumberedRows
from tests.bus.kit import coordinator_of, publish


class Job:
    """The state between two orders."""

    def __init__(self) -> None:
        self.config = Config()
        self.rows = NumberedRows("")
        self.journal = Journal()
        self.publisher: Publisher | None = None
        self.subscription: Subscription | None = None

    def settings(self, settings: dict[str, str]) -> dict[str, Any]:
        """Take the configuration."""
        self.config = load(overrides=settings, environ={})
        return {}

    def open(
        self, topic: str, journal: str, partitions: int, rows: int, payload: int, **options: Any
    ) -> dict[str, Any]:
        """Open the topic."""
        self.rows = NumberedRows(topic, partitions=partitions, rows=rows, payload=payload)
        self.journal = Journal(Path(journal))
        self.publisher = Publisher(topic, config=self.config, parallelism=partitions, **options)
        return {
            "epoch": self.publisher.epoch,
            "log": self.publisher.log_id,
            "coordinator": coordinator_of(self.publisher),
        }

    def seal(self, first: int, count: int) -> dict[str, Any]:
        """Publish batches."""
        done = publish(self._topic(), self.rows, self.journal, range(first, first + count))
        return {"sealed": len(done)}

    def drain(self, timeout: float) -> dict[str, Any]:
        """Wait until all have read."""
        self._topic().drain(timeout)
        return {}

    def close(self, final: bool) -> dict[str, Any]:
        """Give the topic up."""
        self._topic().close(final)
        return {}

    def take_name(self, topic: str, name: str, starting: str) -> dict[str, Any]:
        """Become the live subscriber of that name."""
        self.subscription = jobpipe.subscribe(topic, name=name, starting=starting, config=self.config)
        return {"position": self.subscription.position().to_json()}

    def use_name(self) -> dict[str, Any]:
        """Read on under that name."""
        assert self.subscription is not None
        return {"batches": len(list(self.subscription.batches(timeout=0.2)))}

    def _topic(self) -> Publisher:
        assert self.publisher is not None
        return self.publisher


def main() -> None:
    """Obey until the end of the input."""
    job = Job()
    for line in sys.stdin:
        order = json.loads(line)
        work: Callable[..., dict[str, Any]] = getattr(job, order.pop("do"))
        try:
            answer = work(**order)
        except Exception as error:
            answer = {"fault": to_fault(error)}
        print(json.dumps(answer, default=str), flush=True)


if __name__ == "__main__":
    main()
