"""A control server over a registry in memory and a launcher whose attempts the test acts for."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from jobpipe.admin import TopicLine
from jobpipe.config import Config, load
from jobpipe.control.control_server import ControlServer
from jobpipe.control.control_service import JobStatus, Submission
from jobpipe.errors import ControlConflict, HoldNotFound, JobpipeError, NotAuthorized, TopicNotFound
from jobpipe.operations.admin_operations import HoldReply
from jobpipe.operations.status_operations import TopicStatus
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.plugins.api import Attempt, Launcher, LaunchState, LaunchStatus
from jobpipe.pipelines.plugins.plugin_discovery import PlugInKind, Plugins
from jobpipe.status_walk import Answer
from jobpipe.store.reading.boundary import Boundary
from jobpipe_registry.job_records import EndRecord, Lease, Order
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree
from tests.pipelines.waiting import DEADLINE, eventually
from tests.statuses import subscription_status, topic_status

KILLED = -9
NAME = "flights"


class Cluster:
    """Where attempts run: it outlives servers. Ids are the numbers of attempts."""

    def __init__(self) -> None:
        self.submitted: list[Attempt] = []
        self.canceled: list[str] = []
        self.asked_to_stop: list[str] = []
        self.fails: list[Exception] = []
        self.away = threading.Event()  # it does not answer
        self.gate = threading.Event()  # while it is not set, questions about attempts of `slow` wait
        self.slow: set[str] = set()
        self.ended: dict[str, int | None] = {}
        self.known_codes = True
        self.gate.set()

    def launcher(self) -> type[Launcher]:
        """Return the plug-in that asks it."""
        return type("Fake", (_Fake,), {"where": self, "__doc__": "Attempts that the test acts for."})

    def id_of(self, attempt: Attempt) -> str:
        return f"{attempt.job}-{attempt.number}"


class _Fake(Launcher):
    type = "fake"
    where: ClassVar[Cluster]

    def submit(self, attempt: Attempt) -> str:
        if self.where.fails:
            raise self.where.fails.pop(0)
        self.where.submitted.append(attempt)
        return self.where.id_of(attempt)

    def status(self, launched: str) -> LaunchStatus:
        if launched.split("-")[0] in self.where.slow:
            assert self.where.gate.wait(DEADLINE)
        if self.where.away.is_set():
            return LaunchStatus(LaunchState.UNKNOWN)
        if launched in self.where.ended:
            return LaunchStatus(LaunchState.ENDED, self.where.ended[launched])
        return LaunchStatus(LaunchState.RUNNING)

    def ask_to_stop(self, launched: str) -> None:
        self.where.asked_to_stop.append(launched)

    def cancel(self, launched: str) -> None:
        if self.where.away.is_set():
            raise JobpipeError("it does not answer")
        self.where.canceled.append(launched)
        self.where.ended.setdefault(launched, KILLED)


class FakePlugins(Plugins):
    """What is installed, and the launcher of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._launcher = cluster.launcher()

    def find(self, kind: PlugInKind, type_: str) -> type[Any]:
        return self._launcher if (kind, type_) == (PlugInKind.LAUNCHER, "fake") else super().find(kind, type_)


@dataclass
class Coordinators:
    """What is asked of the coordinators of topics."""

    waiting: dict[str, str] = field(default_factory=dict)  # a topic's publisher, for whom
    lags: dict[str, dict[str, int]] = field(default_factory=dict)  # of a topic's subscriptions, in rows
    asked: int = 0
    served: set[str] = field(default_factory=set)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    required: dict[tuple[str, str], bool] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)  # where topics end
    held: dict[tuple[str, str], int] = field(default_factory=dict)  # from which time, in milliseconds
    gaps: dict[tuple[str, str], str] = field(default_factory=dict)  # why those holds are none any more
    refused: set[str] = field(default_factory=set)  # names of holds
    looks: int = 0  # how often holds were asked for

    def statuses(self, topics: Sequence[str], timeout: float) -> dict[str, TopicStatus]:
        self.asked += bool(topics)
        return {
            topic: topic_status(
                topic,
                waiting=self.waiting.get(topic),
                subscriptions=tuple(
                    subscription_status(name, batches=1, rows=rows) for name, rows in self.lags.get(topic, {}).items()
                ),
            )
            for topic in topics
        }

    def drop(self, topic: str, name: str) -> None:
        if topic not in self.served:
            raise TopicNotFound(f"topic {topic!r} is not served", topic=topic)
        assert self.required.get((topic, name)) is False
        self.dropped.append((topic, name))

    def require(self, topic: str, name: str, *, required: bool = True) -> None:
        if topic not in self.served:
            raise TopicNotFound(f"topic {topic!r} is not served", topic=topic)
        self.required[(topic, name)] = required

    def topics(self) -> list[TopicLine]:
        return [TopicLine(topic, None) for topic in sorted(self.served)]

    def answers(self, topics: Sequence[str], timeout: float) -> dict[str, Answer]:
        return {topic: topic_status(topic) for topic in topics}

    def status(self, topic: str) -> TopicStatus:
        if topic not in self.heads:
            raise TopicNotFound(f"topic {topic!r} is not served", topic=topic)
        return topic_status(topic, head=self.heads[topic])

    def holds(self, topic: str) -> list[HoldReply]:
        if topic not in self.served:
            raise TopicNotFound(f"topic {topic!r} is not served", topic=topic)
        self.looks += 1
        return [self._hold(*key) for key in self.held if key[0] == topic]

    def _hold(self, topic: str, name: str) -> HoldReply:
        gap = self.gaps.get((topic, name))
        lost, left = (0, 60.0) if gap is None else (3, None)
        return HoldReply(name=name, owner="me", offset=0, max_time=60.0, since=0.0, lost=lost, left=left, gap=gap)

    def hold(self, topic: str, name: str, to: Boundary) -> HoldReply:
        """As the bus: it moves on only."""
        if topic not in self.served:
            raise TopicNotFound(f"topic {topic!r} is not served", topic=topic)
        assert (to.kind, to.otherwise) == ("time", "latest")
        if name in self.refused:
            raise NotAuthorized("another identity has it")
        stands, asked = self.held.get((topic, name)), int(str(to.value))
        if stands is None or stands < asked or (topic, name) in self.gaps:
            self.held[(topic, name)] = asked
            self.gaps.pop((topic, name), None)
        return self._hold(topic, name)

    def release(self, topic: str, name: str) -> HoldReply:
        if topic not in self.served:
            raise TopicNotFound(f"topic {topic!r} is not served", topic=topic)
        if (topic, name) not in self.held:
            raise HoldNotFound(f"no hold {name}", topic=topic)
        found = self._hold(topic, name)
        del self.held[(topic, name)]
        return found

    def close(self) -> None:
        pass


class Worker:
    """An attempt that has taken its lease."""

    def __init__(self, world: World, job: str, run: str, number: int) -> None:
        self.handler = world.session()
        self.run, self.number, self.job = run, number, job
        self._world = world
        self.lost: list[str] = []
        lease = Lease(run, number, "elsewhere", 4711, 1.5e9, f"{run}-{number}", application="app-1")
        self.handler.jobs.take_lease(NAME, job, lease, self.lost.append)

    def end(self, state: str, code: int | None, **more: Any) -> None:
        """Leave an end record, and end."""
        self.handler.jobs.release_lease(NAME, self.job, EndRecord(self.run, self.number, state, 1.5e9, **more))
        self.gone(code)

    def gone(self, code: int | None) -> None:
        """End without a word."""
        self.handler.shutdown()
        self._world.cluster.ended[f"{self.job}-{self.number}"] = code


class World:
    """One home, with one server after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Config = load(
            overrides={"jobpipe.home": str(folder / "home"), "jobpipe.server.roots": str(folder)}, environ={}
        )
        self.registry = MemoryTree()
        self.cluster = Cluster()
        self.topics = Coordinators()
        self._handlers: list[MemoryRegisterServerHandler] = []
        self._servers: list[ControlServer] = []

    def session(self, _config: Config | None = None) -> MemoryRegisterServerHandler:
        handler = MemoryRegisterServerHandler(self.registry)
        handler.start({"topic.storage": "/test/topics", "connect.timeout": "5"})
        self._handlers.append(handler)
        return handler

    def server(self, **more: Any) -> ControlServer:
        """Return a server that has started."""
        server = ControlServer(
            self.config,
            plugins=FakePlugins(self.cluster),
            opened=self.session,
            admin=lambda config: self.topics,  # type: ignore[arg-type,return-value]
            **{"stop_seconds": DEADLINE, "lost_seconds": 0.2, **more},
        )
        server.start()
        self._servers.append(server)
        return server

    def submission(self, jobs: Mapping[str, Any] | None = None, **pipeline: Any) -> Submission:
        """Return a file of jobs that read `rate`, or what is given of them."""
        section = {
            "name": NAME,
            "launcher": {"type": "fake"},
            "restart": {"delay": "20ms", "max-delay": "50ms", "max-attempts": 3},
            **pipeline,
        }
        plain = {"report": job_of()} if jobs is None else dict(jobs)
        return Submission(
            file=self.folder / "pipeline.yaml", folder=self.folder, tree={"pipeline": section, "jobs": plain}
        )

    def order(self, job: str = "report") -> Order | None:
        return self.jobs.state(NAME, job).order

    @property
    def jobs(self) -> Any:
        if not self._handlers:
            self.session()
        for handler in self._handlers:
            if handler.memory_nodes().ready:
                return handler.jobs
        return self.session().jobs

    def attempt(self, number: int, job: str = "report") -> Attempt:
        """Wait until that one, from 1, of those of a job was submitted; return it."""

        def found() -> Attempt | None:
            own = [each for each in self.cluster.submitted if each.job == job]
            return own[number - 1] if len(own) >= number else None

        attempt = eventually(found)
        assert isinstance(attempt, Attempt)
        return attempt

    def work(self, number: int, job: str = "report") -> Worker:
        """Let that attempt take its lease."""
        attempt = self.attempt(number, job)
        return Worker(self, job, attempt.run, attempt.number)

    def close(self) -> None:
        self.cluster.gate.set()
        for server in self._servers:
            server.close()
        for handler in self._handlers:
            handler.shutdown()


def job_of(**more: Any) -> dict[str, Any]:
    return {"source": {"type": "rate"}, "sink": {"type": "console"}, **more}


def status(server: ControlServer, job: str = "report") -> JobStatus:
    (found,) = [each for each in server.pipeline(NAME).jobs if each.name == job]
    return found


def deleted(server: ControlServer) -> bool:
    """Delete the pipeline; False while what is left of an attempt is still looked after."""
    try:
        server.delete(NAME)
    except ControlConflict:
        return False
    return True


def wait(server: ControlServer, state: JobState, job: str = "report", detail: str = "") -> JobStatus:
    """Wait for a state of a job."""
    last: list[JobStatus] = []

    def is_there() -> bool:
        last[:] = [status(server, job)]
        return last[0].state is state and detail in last[0].detail

    try:
        eventually(is_there)
    except AssertionError:
        raise AssertionError(f"{state} did not come; it is {last[0]}") from None
    return last[0]


def states(server: ControlServer, job: str = "report") -> list[JobState | None]:
    """Return the states that a job had, by the events."""
    return [event.state for event in server.events() if event.job == job and event.what == "state"]
