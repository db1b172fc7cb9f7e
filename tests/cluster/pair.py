"""A publisher and a subscriber of the flights on the cluster: two Spark applications, each with its own executors."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from tests.cluster.cluster import Cluster, Executor
from tests.cluster.flights import Feed, arrived_rows, check_arrived
from tests.cluster.hosts import END_SECONDS, Host, Network, OnHost, until
from tests.faults.spark.spark_rig import Events

PATIENCE = 180.0  # seconds; the machine may be very busy, and nothing waits so long when all is well
WIDTHS = (2, 4, 1, 3)  # tasks that write, batch after batch
IDLE = "spark.dynamicAllocation.executorIdleTimeout"
COME_AND_GO = {  # executors, as a job needs them
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "5s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.cores.max": "2",
    IDLE: "60s",
}


@dataclass(frozen=True)
class Holder:
    """A task that stands in the middle of its rows."""

    host: Host
    pid: int  # of its Python worker, on its host

    @classmethod
    def of(cls, network: Network, name: str) -> Holder:
        """Return what a file's name tells."""
        host, pid = name.split(":")
        return cls(network[host], int(pid))

    def executor(self) -> psutil.Process:
        """Return the JVM of its executor."""
        return next(process for process in self.host.process(self.pid).parents() if process.name() == "java")


class Side:
    """One of the two applications, over all its lives.

    Attributes:
        program: the driver of its life now.
        events: what it noted, of all lives.
    """

    def __init__(self, cluster: Cluster, job: str, folder: Path) -> None:
        self._cluster = cluster
        self._job = job
        self._starts = 0
        self.program: OnHost | None = None
        self.events = Events(folder / f"events-{job}")

    def start(self, host: Host, order: Mapping[str, Any], conf: Mapping[str, str]) -> OnHost:
        """Start its driver on a host."""
        self._starts += 1
        self.program = self._cluster.submit(host, self._job, order, conf, name=f"{self._job}-{self._starts}")
        return self.program

    @property
    def driver(self) -> OnHost:
        """Its driver now."""
        assert self.program is not None
        return self.program

    def count(self, what: str) -> int:
        """Return how often it noted something."""
        return len(self.events.read(what))

    def until_noted(self, what: str, count: int = 1, timeout: float = PATIENCE) -> dict[str, Any]:
        """Wait until it has noted something so many times, over all lives; return the last note."""

        def found() -> bool:
            driver = self.driver
            assert driver.alive or driver.code == 0 or self.count(what) >= count, (
                f"{driver} ended with code {driver.code}:\n{driver.log_end(60)}"
            )
            return self.count(what) >= count

        until(found, f"{count} times {what!r} of {self.driver}:\n{self.driver.log_end()}", timeout)
        return self.events.read(what)[-1]

    def executors(self) -> list[Executor]:
        """Return the executors of this life."""
        applications = self.events.read("application")
        return self._cluster.executors(applications[-1]["id"]) if applications else []


class Pair:
    """One topic with its two applications.

    Args:
        table: all flights.
        topic: its name; names the folders too.
        files: how many files, and so micro-batches, all flights take.
        options: of the sink, settings included.
        subscriber_options: of the source.
        movable: the publisher's checkpoint lies where its driver may move to.
    """

    def __init__(
        self,
        cluster: Cluster,
        table: pa.Table,
        topic: str,
        *,
        files: int = 16,
        options: Mapping[str, Any] | None = None,
        subscriber_options: Mapping[str, str] | None = None,
        movable: bool = False,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.network = cluster.network
        self.outside, self.inside = self.network.shared_disk / topic, self.network.shared / topic
        self.feed = Feed(table, self.outside / "input", files)
        self.options = dict(options or {})
        self.subscriber_options = dict(subscriber_options or {})
        self.lost: set[int] = set()  # files, and so offsets, that the subscriber passes over
        self._checkpoint = self.inside / "checkpoint" if movable else self.network.disk / f"checkpoint-{topic}"
        self.publisher = Side(cluster, "publish", self.outside)
        self.subscriber = Side(cluster, "subscribe", self.outside)

    @property
    def output(self) -> Path:
        """Where the subscriber's rows lie."""
        return self.outside / "output"

    @property
    def arrived(self) -> int:
        """How many rows the subscriber has."""
        return arrived_rows(self.output)

    @property
    def wanted(self) -> int:
        """How many rows the subscriber must get to have all that were given."""
        return sum(self.feed.rows_of(n) for n in range(self.feed.given) if n not in self.lost)

    def link(self) -> dict[str, Any]:
        """Return what the subscriber's last progress says of the topic."""
        reports = [event["report"] for event in self.subscriber.events.read("link")]
        report: dict[str, Any] = (reports[-1] if reports else None) or {}
        return dict(report.get(self.topic, {}))

    def start(self, publisher_host: Host, subscriber_host: Host) -> None:
        """Start both drivers, with a first file to publish, and wait until its rows have arrived."""
        self.feed.give(1)
        self._submit_publisher(publisher_host, {})
        self._submit_subscriber(subscriber_host)
        self.publisher.until_noted("open")
        self.subscriber.until_noted("started")
        self.until_arrived()

    def publish(self, host: Host, *, conf: Mapping[str, str] | None = None, **changes: Any) -> None:
        """Start the publisher's driver on a host, and wait until it serves the topic.

        Args:
            host: where.
            conf: of Spark.
            changes: options of the sink, from now on.
        """
        self.options |= changes
        opened = self.publisher.count("open")
        self._submit_publisher(host, conf or {})
        self.publisher.until_noted("open", opened + 1)

    def subscribe(self, host: Host, **changes: str) -> None:
        """Start the subscriber's driver on a host, and wait until its query runs; ``changes`` are of its options."""
        self.subscriber_options |= changes
        begun = self.subscriber.count("started")
        self._submit_subscriber(host)
        self.subscriber.until_noted("started", begun + 1)

    def _submit_publisher(self, host: Host, conf: Mapping[str, str]) -> None:
        order = {
            "topic": self.topic,
            "input": str(self.inside / "input"),
            "checkpoint": str(self._checkpoint),
            "events": str(self.inside / "events-publish"),
            "hold": str(self.inside / "hold-writing"),
            "finish": str(self.inside / "finish"),
            "widths": list(WIDTHS),
            "options": self.options,
        }
        self.publisher.start(host, order, {**COME_AND_GO, **conf})

    def _submit_subscriber(self, host: Host) -> None:
        order = {
            "output": str(self.inside / "output"),
            "checkpoint": str(self.network.disk / f"checkpoint-{self.topic}-subscriber"),
            "events": str(self.inside / "events-subscribe"),
            "hold": str(self.inside / "hold-reading"),
            "options": {
                "subscribe": self.topic,
                "name": "keeper",
                "startingOffsets": "earliest",
                "discoveryTimeout": f"{PATIENCE:g}s",
                **self.subscriber_options,
            },
        }
        self.subscriber.start(host, order, {})

    def give(self, files: int, timeout: float = PATIENCE) -> None:
        """Give so many more files, and wait until their rows have arrived."""
        self.feed.give(files)
        self.until_arrived(timeout)

    def until_arrived(self, timeout: float = PATIENCE) -> None:
        """Wait until all rows given so far have arrived."""

        def all_there() -> bool:
            for side in (self.publisher, self.subscriber):
                driver = side.driver
                assert driver.alive or driver.code == 0, f"{driver} ended with {driver.code}:\n{driver.log_end(60)}"
            return self.arrived >= self.wanted

        until(all_there, f"all {self.wanted} rows that were given (topic {self.topic})", timeout)

    def check(self) -> dict[str, Any]:
        """Check all that has arrived against all that was given."""
        return check_arrived(self.output, self.feed.expected(self.lost))

    def end(self) -> dict[str, Any]:
        """Give all flights there are left, let both end, and check all."""
        self.feed.give_rest()
        (self.outside / "finish").touch()
        assert self.publisher.driver.wait(PATIENCE) == 0, self.publisher.driver.log_end(60)
        assert self.subscriber.driver.wait(PATIENCE) == 0, self.subscriber.driver.log_end(60)
        return self.check()

    def status(self) -> dict[str, Any]:
        """Return what ``sink.status()`` said after the last batch."""
        status: dict[str, Any] = self.publisher.events.read("sealed")[-1]["status"]
        return status

    def described(self, host: Host) -> dict[str, Any]:
        """Return what ``jobpipe topics describe`` says on a host."""
        found: dict[str, Any] = self.cluster.jobpipe(host, "describe", self.topic)
        return found

    @contextmanager
    def holding(self, what: str) -> Iterator[Callable[[], list[Holder]]]:
        """Let tasks stop in the middle of their rows during the block, or until its end.

        Args:
            what: ``writing``, of the publisher, or ``reading``, of the subscriber.

        Yields:
            What tells the tasks that stand still.
        """
        folder = self.outside / f"hold-{what}"
        folder.mkdir()
        try:
            yield lambda: [Holder.of(self.network, file.name) for file in sorted(folder.glob("*"))]
        finally:
            shutil.rmtree(folder.rename(folder.with_suffix(".over")))  # in one step: tasks still tell of themselves

    def kill(self) -> None:
        """End both applications, and their coordinator."""
        for side in (self.publisher, self.subscriber):
            if side.program is not None and side.program.alive:
                side.program.kill()
        for host in self.cluster.edges:
            if host.up:
                kill_coordinators(host)


def kill_coordinators(host: Host) -> None:
    """``kill -9`` of the coordinators and data processes of a host; they are gone on return."""
    found = [process for process in host.processes() if "jobpipe.coordinator" in " ".join(process.cmdline())]
    for process in found:
        process.kill()
    assert not psutil.wait_procs(found, END_SECONDS)[1]
