"""What the tests of flow jobs share: a publisher of numbered rows, a flow that passes rows on, and a judged target."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import jobpipe
from jobpipe.config import Config
from jobpipe.errors import JobpipeError
from jobpipe.flows.flow_driver import Flow
from jobpipe.flows.flow_settings import FlowOptions
from jobpipe.flows.task_threads import ThreadRunner
from jobpipe.flows.user_function import FlowContext
from jobpipe.publishing.plain_publisher import PlainPublisher
from jobpipe.store.reading.boundary import Boundary
from jobpipe.testing import SCHEMA, Checker, Journal, NumberedRows, Report
from tests.bus.kit import PATIENCE, until


def same(batch: pa.RecordBatch, context: FlowContext) -> pa.RecordBatch:
    """Pass rows on."""
    return batch


def numbered(batch: pa.RecordBatch, partitions: int) -> pa.Array[Any]:
    """Return each row's partition; with fewer than it has, they fold."""
    return pa.array([each % partitions for each in batch.column("partition").to_pylist()], pa.int32())


class Chain:
    """A source of numbered rows, flows behind it, and what reached a topic behind those."""

    def __init__(self, config: Config, *, partitions: int = 2, rows: int = 20, payload: int = 16) -> None:
        self.config = config
        self.rows = NumberedRows("source", partitions=partitions, rows=rows, payload=payload)
        self.journal = Journal()
        self.flows: list[Flow] = []
        self._batch = 0
        self._readers: list[threading.Thread] = []
        self._subscriptions: list[Any] = []
        self.source = self.publisher()

    def publisher(self, **given: Any) -> PlainPublisher:
        """Open the source."""
        parallelism = given.pop("parallelism", self.rows.partitions)
        return jobpipe.publisher(
            "source",
            name="importer",
            parallelism=parallelism,
            partitioner=numbered,
            config=given.pop("config", self.config),
            **given,
        )

    def publish(self, batches: int) -> None:
        """Publish the next batches, and note them."""
        for batch_id in range(self._batch, self._batch + batches):
            with self.journal.sealing(batch_id, self.rows.ranges(batch_id)):
                self.source.write(pa.concat_tables(self.rows.tables(batch_id)), batch_id=batch_id)
        self._batch += batches

    def flow(
        self,
        function: Any = same,
        *,
        source: str = "source",
        publish: str | None = "target",
        setup: Any = None,
        lanes: int | None = 2,
        name: str = "flow",
        config: Config | None = None,
        **options: Any,
    ) -> Flow:
        """Begin a flow from the earliest rows on."""
        schema = options.pop("schema", SCHEMA if publish else None)
        starting = options.pop("starting", Boundary.of("earliest", "s"))
        given = FlowOptions(config or self.config, source, name, starting, publish=publish, schema=schema, **options)
        self.flows.append(Flow(given, ThreadRunner(function, setup, lanes)))
        return self.flows[-1]

    def reader(
        self, topic: str = "target", name: str = "all", pause: float = 0.0, wait: threading.Event | None = None
    ) -> Checker:
        """Read a topic from its beginning, in a thread, until it ends; once ``wait`` is set."""
        checker = Checker(self.rows, self.journal)
        subscription = jobpipe.subscribe(topic, name=name, starting="earliest", config=self.config)
        stop = threading.Event()

        def read() -> None:
            try:
                for batch in subscription:
                    checker.take(batch)
                    if wait is not None:
                        wait.wait(PATIENCE)
                    stop.wait(pause)
            except JobpipeError:
                return

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        self._readers.append(thread)
        self._subscriptions.append(subscription)
        return checker

    def arrived(self, checker: Checker, rows: int | None = None) -> None:
        """Wait until so many rows are there, or all that were published."""
        wanted = self.journal.rows if rows is None else rows
        until(lambda: checker.rows >= wanted, PATIENCE, lambda: f"{wanted} rows; {checker.report()}; {self.said()}")

    def end(self, checker: Checker) -> Report:
        """End the source; the flows must end, the target too, and hold each row once, in order."""
        self.source.close(final=True)
        for flow in self.flows:
            if flow.status().state.value == "running":
                flow.await_end(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
            assert not reader.is_alive(), f"the target has no end; {checker.report()}; {self.said()}"
        return checker.check()

    def said(self) -> list[Any]:
        """Return how the flows stand."""
        return [flow.status() for flow in self.flows]

    def close(self) -> None:
        """End all, whatever state it is in."""
        for flow in reversed(self.flows):
            flow.stop()
        for subscription in self._subscriptions:
            subscription.close()
        self.source.close()


@contextmanager
def chain(config: Config, **given: Any) -> Iterator[Chain]:
    """Make a chain; no thread of its flows is left at the end."""
    made = Chain(config, **given)
    try:
        yield made
    finally:
        made.close()
    until(lambda: not left(), 10.0, lambda: f"these go on: {left()}")


def left() -> list[str]:
    """Return the threads of flows that run."""
    names = ("flow-", "seal-", "read-")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(names) and thread.is_alive()]
