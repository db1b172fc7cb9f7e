"""What many topics, readers and publishers ask of ZooKeeper, and how long a walk over many topics takes.

Real handlers, locators and coordinators against the embedded ZooKeeper of a home of its own; requests are the packets
that the server received, the question itself left out. Usage, some six minutes: python benchmarks/registry_load.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from jobpipe.admin import Admin
from jobpipe.config import Config, config_from_dict, load
from jobpipe.discovery.registry_handler import open_handler
from jobpipe.discovery.topic_lookup import TopicLocator
from jobpipe.operations.status_operations import TopicStatus
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from jobpipe_registry.embedded.four_letter_words import ask
from jobpipe_registry.handler import RegisterServerHandler
from jobpipe_registry.topic_records import OwnerRecord, RegisterRecord
from jobpipe_registry.tree.tree_handler import TreeHandler
from jobpipe_registry.zookeeper.zookeeper_tls import make_context

PARTITIONS = 4
IDLE_SECONDS = 90.0
spawn = multiprocessing.get_context("spawn")
SMALL = pa.table({"id": pa.array(range(10), pa.int64())})


class Server:
    """The embedded ZooKeeper, and what it received."""

    def __init__(self, home: Path) -> None:
        self._server = EmbeddedZooKeeper(home)
        self._port = int(self._server.ensure().rpartition(":")[2])
        self._tls = make_context(self._server.tls)

    def received(self) -> int:
        """Return the packets since it started."""
        for line in (ask(self._port, "srvr", self._tls) or "").splitlines():
            if line.startswith("Received:"):
                return int(line.split()[1])
        raise RuntimeError("ZooKeeper does not answer srvr")

    def cost(self, work: Callable[[], object]) -> tuple[int, float]:
        """Return the requests and the seconds of some work."""
        before, began = self.received(), time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        return self.received() - before - 1, seconds

    def stop(self) -> None:
        """End it."""
        self._server.stop()


def record(index: int, epoch: int, port: int = 1) -> RegisterRecord:
    """Return the registration of a partition."""
    place = f"127.0.0.1:{port}"
    return RegisterRecord("127.0.0.1", port, PARTITIONS, index, place, place, epoch, "a", True)


def publish(handler: RegisterServerHandler, topic: str, port: int = 1) -> None:
    """Ask the registry for what a coordinator asks, from the claim to the registrations."""

    def owner(epoch: int) -> OwnerRecord:
        return OwnerRecord("host", 4711, 1.5e9, f"127.0.0.1:{port}", epoch, "a", "job")

    handler.epoch(topic)
    handler.create_topic_node(topic)
    handler.claim(topic, owner(0))
    handler.epoch(topic)
    epoch = handler.next_epoch(topic, 1)
    handler.recovery_point(topic)
    handler.claim(topic, owner(epoch))
    handler.register_all(topic, [record(index, epoch, port) for index in range(1, PARTITIONS + 1)])


def one_session(server: Server, config: Config, counts: list[int]) -> Table:
    """Topics of one session: requests and seconds."""
    table = Table(
        *("topics", "session", "register, a topic", "seconds", "idle, a second", "withdraw, a topic", "seconds"),
        title=f"One session, {PARTITIONS} partitions a topic",
    )
    for count in counts:
        handlers: list[RegisterServerHandler] = []
        opened, _ = server.cost(lambda found=handlers: found.append(open_handler(config)))  # type: ignore[misc]
        handler = handlers[0]

        def all_topics(handler: RegisterServerHandler = handler, count: int = count) -> None:
            for number in range(count):
                publish(handler, f"of-{count}-{number}")

        made, seconds = server.cost(all_topics)
        looked, _ = server.cost(lambda: time.sleep(1.0))
        idle, _ = server.cost(lambda: time.sleep(20.0))
        gone, closing = server.cost(handler.shutdown)
        row = [f"{(made + looked) / count:.1f}", f"{seconds:.2f}", f"{idle / 20:.1f}", f"{gone / count:.1f}"]
        table.add_row(str(count), str(opened), *row, f"{closing:.2f}")
    return table


@contextlib.contextmanager
def locators(config: Config, count: int) -> Iterator[list[TopicLocator]]:
    """Readers' sessions."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(TopicLocator(config))
            stack.callback(made[-1].close)
        yield made


def readers(server: Server, config: Config, count: int) -> Table:
    """Readers of one topic each: their start, idle, and the restart of all publishers."""
    table = Table("readers of a topic each", "requests of each", "seconds", title=f"{count} readers")
    handler = open_handler(config)
    assert isinstance(handler, TreeHandler)
    topics = [f"read-{number}" for number in range(count)]
    for topic in topics:
        publish(handler, topic)
    made: list[TopicLocator] = []
    opened, seconds = server.cost(lambda: made.extend(TopicLocator(config) for _ in topics))
    table.add_row("open a session", f"{opened / count:.1f}", f"{seconds:.1f}")

    def find() -> None:
        for locator, topic in zip(made, topics, strict=True):
            locator.follow(topic)
        for locator, topic in zip(made, topics, strict=True):
            locator.wait(topic, 60.0)

    found, seconds = server.cost(find)
    table.add_row("find the topic", f"{found / count:.1f}", f"{seconds:.1f}")
    before, _ = server.cost(lambda: time.sleep(IDLE_SECONDS))
    table.add_row("idle, a second, with pings", f"{before / count / IDLE_SECONDS:.3f}", "")
    other = open_handler(config)

    def restart() -> None:
        handler._parts().nodes.close(5.0)  # as if killed: nothing is withdrawn
        for topic in topics:
            publish(other, topic, port=2)
        deadline = time.monotonic() + 60.0
        for locator, topic in zip(made, topics, strict=True):
            while (place := locator.current(topic)) is None or place.control.port != 2:
                if time.monotonic() > deadline:
                    raise TimeoutError(topic)
                time.sleep(0.01)

    again, seconds = server.cost(restart)
    table.add_row("all publishers die and come again, theirs included", f"{again / count:.1f}", f"{seconds:.1f}")
    for locator in made:
        locator.close()
    for each in (handler, other):
        each.shutdown()
    return table


class PatternReader:
    """What a query with ``subscribePattern`` asks the registry for; it has no links."""

    def __init__(self, locator: TopicLocator, pattern: str) -> None:
        self._locator = locator
        self._pattern = re.compile(pattern)
        self.found: dict[str, float] = {}
        self._lock = threading.Lock()
        locator.follow_names(self._on_names)

    def _on_names(self, names: list[str]) -> None:
        for name in names:
            if self._pattern.fullmatch(name) and name not in self.found:
                with self._lock:
                    self.found[name] = 0.0
                self._locator.listen(name, lambda name=name: self._on_place(name))  # type: ignore[misc]
                self._locator.follow(name)

    def _on_place(self, name: str) -> None:
        if self._locator.current(name) is not None:
            self.found[name] = self.found[name] or time.monotonic()

    def has(self, topics: int) -> bool:
        """Tell whether it knows where so many topics are served."""
        with self._lock:
            return sum(moment > 0 for moment in self.found.values()) >= topics


def patterns(server: Server, config: Config, count: int, topics: int) -> Table:
    """Readers by pattern: how they find the topics, idle, and one new topic."""
    table = Table("", "requests of each", "seconds", title=f"{count} readers by pattern, {topics} topics")
    handler = open_handler(config)
    for number in range(topics):
        publish(handler, f"pattern-{number}")
    with locators(config, count) as sessions:
        made: list[PatternReader] = []

        def until(known: int) -> None:
            deadline = time.monotonic() + 120.0
            while not all(reader.has(known) for reader in made):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{known} topics")
                time.sleep(0.01)

        def discover() -> None:
            made.extend(PatternReader(session, r"pattern-\d+") for session in sessions)
            until(topics)

        found, seconds = server.cost(discover)
        table.add_row("find all", f"{found / count:.1f}", f"{seconds:.1f}")
        time.sleep(5.0)
        idle, _ = server.cost(lambda: time.sleep(IDLE_SECONDS))
        own = topics * (PARTITIONS + 1) / 10.0  # the publisher's own look
        row = f"{(idle / IDLE_SECONDS - own) / count:.2f}"
        table.add_row("idle, a second, with pings, the publisher's left out", row, "")

        def one_more() -> None:
            publish(handler, f"pattern-{topics}")
            began = time.monotonic()
            until(topics + 1)
            known.append(max(reader.found[f"pattern-{topics}"] for reader in made) - began)

        known: list[float] = []
        new, _ = server.cost(one_more)
        table.add_row("a new topic, until the last one knows it", f"{new / count:.1f}", f"{max(0.0, known[0]):.2f}")
    handler.shutdown()
    return table


def hold_topics(settings: dict[str, Any], names: list[str], pipe: Connection) -> None:
    """Publish so many topics of this process's own coordinator until told to end."""
    config = config_from_dict(settings)
    try:
        publishers = [Publisher(name, config=config) for name in names]
        for publisher in publishers:
            publisher.seal("q", 0, [SMALL], run_id="r")
        pipe.send("ready")
        with contextlib.suppress(EOFError):
            pipe.recv()
    finally:
        end_coordinators()


@contextlib.contextmanager
def served_topics(config: Config, coordinators: int, topics: int) -> Iterator[None]:
    """Serve topics by so many processes, each with a coordinator of its own."""
    started = []
    try:
        for number in range(coordinators):
            mine, theirs = spawn.Pipe()
            names = [f"walk-{number}-{topic}" for topic in range(topics)]
            process = spawn.Process(target=hold_topics, args=(config.to_dict(), names, theirs))
            process.start()
            theirs.close()
            started.append((process, mine))
        for _, mine in started:
            mine.recv()
        yield
    finally:
        for process, mine in started:
            mine.close()  # its recv() ends
            process.join(60)


def walks(config: Config, coordinators: int, topics: int) -> Table:
    """How long the answers of all topics take; the second time links are there."""
    table = Table("", "seconds", title=f"{coordinators * topics} topics of {coordinators} coordinators")
    with served_topics(config, coordinators, topics), Admin(config) as admin:
        for what in ("topics, first", "topics, again", "topics, once more"):
            began = time.perf_counter()
            served = [line.name for line in admin.topics() if line.location is not None]
            listed = time.perf_counter() - began
            answers = admin.statuses(served, 5.0)
            known = sum(isinstance(answer, TopicStatus) for answer in answers.values())
            table.add_row(f"{what}: the registry alone", f"{listed:.2f}")
            table.add_row(f"{what}: with {known} answers of {len(served)}", f"{time.perf_counter() - began:.2f}")
        for command in (("topics",), ("topics", "lag")):
            began = time.perf_counter()
            run_command(config, *command)
            table.add_row(
                f"jobpipe {' '.join(command)}, the process's start included", f"{time.perf_counter() - began:.2f}"
            )
    return table


def silent_coordinators(config: Config, count: int) -> Table:
    """How long a walk takes if no coordinator answers: each has a port that takes connections, and says nothing."""
    table = Table("", "seconds", title=f"{count} silent coordinators, a topic each")
    handler = open_handler(config)
    with contextlib.ExitStack() as stack:
        for number in range(count):
            silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            publish(handler, f"silent-{number}", port=silent.getsockname()[1])
        for command in (("topics",), ("topics", "lag")):
            began = time.perf_counter()
            run_command(config, *command, expected=(0, 3))  # 3: no answer
            table.add_row(
                f"jobpipe {' '.join(command)}, the process's start included", f"{time.perf_counter() - began:.2f}"
            )
    handler.shutdown()
    return table


def run_command(config: Config, *command: str, expected: Sequence[int] = (0,)) -> None:
    """Run ``jobpipe`` as a person does."""
    file = config.home / "walk.yaml"
    file.write_text(json.dumps(config.to_dict()))
    program = [sys.executable, "-m", "jobpipe.cli.main", "--config", str(file), *command]
    code = subprocess.run(program, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    if code not in expected:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", default="10,100,300,1000", help="of one session")
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--pattern-readers", type=int, default=10)
    parser.add_argument("--pattern-topics", type=int, default=100)
    parser.add_argument("--walk-topics", type=int, default=50, help="of each of four coordinators")
    parser.add_argument("--silent", type=int, default=1000)
    parser.add_argument("--only", choices=("session", "readers", "patterns", "walks", "silent"))
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="jobpipe-registry-load-") as home:
        server = Server(Path(home))

        def config(name: str) -> Config:
            storage = {"registerserver.topic.storage": f"/{name}/topics", "registerserver.connect.timeout": "30s"}
            return load(overrides={f"jobpipe.{k}": v for k, v in {"home": home, **storage}.items()}, environ={})

        try:
            if options.only in (None, "session"):
                counts = [int(text) for text in options.topics.split(",")]
                console.print(one_session(server, config("session"), counts))
            if options.only in (None, "readers"):
                console.print(readers(server, config("readers"), options.readers))
            if options.only in (None, "patterns"):
                console.print(patterns(server, config("patterns"), options.pattern_readers, options.pattern_topics))
            if options.only in (None, "walks"):
                console.print(walks(config("walks"), 4, options.walk_topics))
            if options.only in (None, "silent"):
                console.print(silent_coordinators(config("silent"), options.silent))
        finally:
            end_coordinators()
            server.stop()


if __name__ == "__main__":
    main()
