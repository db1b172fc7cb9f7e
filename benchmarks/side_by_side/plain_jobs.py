"""Jobs that are no query of Spark's: a job A that publishes what the feed brings, a job B whose rows end elsewhere."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.side_by_side.arrivals import Arrivals, Counting
from benchmarks.side_by_side.contestants.chains import Chain

END_SECONDS = 30.0


class _Plain(Counting):
    """What both have: threads, and whether one of them failed."""

    def __init__(self, contestant: Chain) -> None:
        super().__init__()
        self.contestant = contestant
        self._failed: list[BaseException] = []

    def check(self) -> None:
        """Raise the error of what runs here, if it failed."""
        if self._failed:
            raise self._failed[0]

    def guarded(self, work: Callable[[], None]) -> threading.Thread:
        """Start a thread whose error :meth:`check` raises."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised where it is asked for
                self._failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def end(self) -> None:
        """End all."""
        self.contestant.close()


class Sender(_Plain):
    """Job A without Spark: it publishes what has come from the feed meanwhile, again and again."""

    def prepare(self, stream: str, shape: str) -> None:
        """Make the topic, without a row."""
        if shape != "narrow":
            raise ValueError(f"{self.contestant.name} has narrow rows only, not {shape}")
        self.contestant.prepare_plain(stream)

    def paced(self, stream: str, shape: str, port: int, trigger: float) -> None:
        """Publish the rows of a feed as fast as it goes."""
        if trigger:
            raise ValueError(f"{self.contestant.name} has no trigger")
        send = self.contestant.sender(stream)
        feed = socket.create_connection(("127.0.0.1", port))

        def pass_on() -> None:
            rest = b""
            with feed:
                while piece := feed.recv(1 << 20):
                    *lines, rest = (rest + piece).split(b"\n")
                    rows = [[int(word) for word in line.split()] for line in lines]
                    if rows:
                        ids = np.concatenate([np.arange(first, first + count) for first, count, _ in rows])
                        made = np.repeat([at for *_, at in rows], [count for _, count, _ in rows])
                        send(ids.astype(np.int64), made.astype(np.int64))

        self._thread = self.guarded(pass_on)

    def stop(self, stream: str) -> None:
        """Wait for the end of the feed."""
        self._thread.join(END_SECONDS)
        self.check()
        self.contestant.finish(stream)


class Taker(_Plain):
    """Job B whose rows do not end in a query: in a client, in a flow job's function, or behind a topic of its own."""

    def __init__(self, contestant: Chain, name: str, spark: SparkSession | None) -> None:
        super().__init__(contestant)
        self._name = name
        self._spark = spark
        self._over: Callable[[], None] | None = None

    def paced(self, stream: str, shape: str, pace: dict[str, Any]) -> None:
        """Take rows; one is there once the contestant holds it, with all its columns."""
        self.arrivals = Arrivals()
        self._over = self.contestant.take(self._spark, stream, self._name, self)

    def stop(self, stream: str) -> None:
        """Take no more."""
        over, self._over = self._over, None
        if over is not None:
            over()
        self.check()

    def end(self) -> None:
        """End all."""
        super().end()
        if self._spark is not None:
            self._spark.stop()
