"""One coordinator for all processes of a driver: who starts it, how the others find it, and when it ends.

A driver is any process here: what matters is whether it lives.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

import jobpipe
from jobpipe.admin import Admin
from jobpipe.config import Config
from jobpipe.config.home_folder import make_home
from jobpipe.coordinator.topic_liveness import WatchedParent
from jobpipe.errors import ConfigError, TopicOwned
from jobpipe.operations.publisher_operations import MAX_WRITERS
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.coordinator_launcher import CoordinatorProcess, parent_of, this_process
from jobpipe.publishing.serving.shared_coordinator import FOLDER, attach_for, end_shared, file_of
from jobpipe.publishing.serving.shared_topics import TopicMark, opener_of
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.testing import Checker, Journal, NumberedRows
from tests.bus.kit import PATIENCE, ROOT, alive, kill, read, until

Configure = Callable[..., Config]

ATTACHER = """
import json, sys
from jobpipe.config import load
from jobpipe.coordinator.topic_liveness import WatchedParent
from jobpipe.errors import to_fault
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.publishing.serving.shared_coordinator import attach_for
from jobpipe.publishing.serving.shared_topics import opener_of
order = json.loads(sys.stdin.readline())
config, driver = load(overrides=order["settings"], environ={}), WatchedParent(**order["driver"])
print("{}", flush=True)
for line in sys.stdin:
    try:
        if line == "attach\\n":
            found = attach_for(driver)(config)
        else:
            given = {"opener": opener_of(driver), "attaching": attach_for(driver)}
            found = Publisher("orders", config=config, **given).coordinator
        answer = {"instance": found.instance, "pid": found.process.pid}
    except Exception as error:
        answer = {"fault": to_fault(error)}
    print(json.dumps(answer), flush=True)
"""


class Process:
    """A program; it ends with its standard input."""

    def __init__(self, program: str) -> None:
        command = [sys.executable, "-c", program]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True)

    def end(self) -> None:
        """End it, as programs end."""
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(timeout=PATIENCE)

    def kill(self) -> None:
        """``kill -9``."""
        kill(self.process.pid)
        self.end()


class Driver(Process):
    """A process that only lives."""

    def __init__(self) -> None:
        super().__init__("import sys; sys.stdin.read()")
        process = psutil.Process(self.process.pid)
        self.parent = parent_of(process)


class Attacher(Process):
    """A process of a driver that needs its coordinator."""

    def __init__(self, settings: dict[str, str], driver: Driver) -> None:
        super().__init__(ATTACHER)
        self.tell(json.dumps({"settings": settings, "driver": asdict(driver.parent)}))

    def tell(self, line: str) -> None:
        """Give an order; each has an answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for an answer; pytest's timeout is the deadline."""
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "fault" not in answer, answer
        return answer


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Return a starter of drivers and attachers, which end with the test."""
    started: list[Process] = []

    def begin(kind: type[Process], *arguments: Any) -> Process:
        started.append(kind(*arguments))
        return started[-1]

    yield begin
    for process in reversed(started):
        process.kill()


@pytest.fixture
def shared(configure: Configure) -> Iterator[Configure]:
    """Return a maker of configurations; what was started for them ends with the test."""
    made: list[Config] = []

    def make(changes: dict[str, str] | None = None) -> Config:
        made.append(configure(changes))
        return made[-1]

    yield make
    for config in made:
        for path in files(config):  # of tests that damage them
            with contextlib.suppress(ValueError, KeyError, TypeError):
                kill_coordinator(json.loads(path.read_text())["pid"])
            path.unlink()


def kill_coordinator(pid: int) -> None:
    """Kill a process if it is a coordinator."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if "jobpipe.coordinator" in psutil.Process(pid).cmdline():
            kill(pid)


def files(config: Config) -> list[Path]:
    """Return what tells of shared coordinators in a home."""
    return sorted((config.home / FOLDER).glob("*.json"))


def publisher(config: Config, driver: Driver, **options: Any) -> Publisher:
    """Open the topic as one of a driver's processes."""
    given = {"opener": opener_of(driver.parent), "attaching": attach_for(driver.parent), **options}
    return Publisher("orders", config=config, **given)


def attach(config: Config, driver: WatchedParent) -> CoordinatorProcess:
    """Find a driver's coordinator, or start it."""
    return attach_for(driver)(config)


def ended(pid: int) -> None:
    """Wait for the end of a process."""
    until(lambda: not alive(pid), PATIENCE, f"the end of coordinator {pid}")


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_at_the_same_moment_get_one(
    shared: Configure, settings_of_test: dict[str, str], start: Callable[..., Any]
) -> None:
    """Neither the end nor the death of the one that started it ends it; a third process finds it."""
    config, driver = shared(), start(Driver)
    attachers = [start(Attacher, settings_of_test, driver) for _ in range(2)]
    for attacher in attachers:
        attacher.hear()
    for attacher in attachers:
        attacher.tell("attach")
    first, second = (attacher.hear() for attacher in attachers)
    assert first == second
    (file,) = files(config)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert list(file.parent.glob("*.new")) == []
    starter = psutil.Process(first["pid"]).parent()
    assert starter is not None
    for attacher in sorted(attachers, key=lambda each: each.process.pid != starter.pid):
        attacher.kill() if attacher.process.pid == starter.pid else attacher.end()
        found = attach(config, driver.parent)
        assert (found.instance, found.process.pid, found.alive) == (first["instance"], first["pid"], True)
    assert files(config) == [file]


@pytest.mark.slow
@pytest.mark.processes
def test_it_serves_a_topic_for_all_and_ends_after_the_driver(
    shared: Configure, settings_of_test: dict[str, str], start: Callable[..., Any]
) -> None:
    """Its processes come and go: the topic is published until the driver is dead, and served for the linger then."""
    config, driver = shared({"coordinator.linger": "1s"}), start(Driver)
    settings = {**settings_of_test, "jobpipe.coordinator.linger": "1s"}
    attacher = start(Attacher, settings, driver)
    attacher.hear()
    attacher.tell("open")
    pid = attacher.hear()["pid"]
    mine = publisher(config, driver)
    assert mine.coordinator.process.pid == pid
    with pytest.raises(TopicOwned, match="already has a publisher in this job"):
        publisher(config, driver, opener="ab" * 16)
    attacher.kill()
    rows, journal = NumberedRows("orders"), Journal()
    with journal.sealing(0, rows.ranges(0)):
        mine.seal("q", 0, rows.tables(0))
    mine.detach()
    with contextlib.closing(jobpipe.subscribe("orders", name="all", starting="earliest", config=config)) as reader:
        checker = Checker(rows, journal)
        read(reader, checker, journal.rows)
        checker.check()
    with Admin(config) as admin:
        status = admin.status("orders", timeout=PATIENCE)
        assert (status.publishing, status.served_for, status.head) == (True, None, 1)
        driver.kill()
        until(lambda: not admin.status("orders", timeout=PATIENCE).publishing, PATIENCE, "its publisher is gone")
    ended(pid)


@pytest.mark.slow
@pytest.mark.processes
def test_what_a_dead_driver_has_left_is_removed(shared: Configure, start: Callable[..., Any]) -> None:
    """The next driver starts a coordinator of its own; the same driver does so if its own coordinator died."""
    config, first, second = shared(), start(Driver), start(Driver)
    before = attach(config, first.parent)
    (of_first,) = files(config)
    foreign = of_first.with_name(f"ffffffff-{of_first.name.split('-', 1)[1]}")  # of another host with the same home
    foreign.write_text("{}")
    first.kill()
    ended(before.process.pid)  # it served nothing
    after = attach(config, second.parent)
    assert after.instance != before.instance
    assert not of_first.exists()
    assert foreign.exists()
    (of_second,) = {*files(config)} - {foreign}
    kill(after.process.pid)
    ended(after.process.pid)
    again = attach(config, second.parent)
    assert again.instance not in (before.instance, after.instance)
    assert {*files(config)} == {of_second, foreign}


@pytest.mark.slow
@pytest.mark.processes
def test_drivers_and_namespaces_do_not_share(shared: Configure, start: Callable[..., Any]) -> None:
    """``end_shared`` ends those of one namespace, of all drivers."""
    config, drivers = shared(), [start(Driver), start(Driver)]
    other = shared({"registerserver.topic.storage": f"{config.namespace}-other"})
    mine = [attach(config, driver.parent) for driver in drivers]
    elsewhere = attach(other, drivers[0].parent)
    assert len({found.instance for found in (*mine, elsewhere)}) == len(files(config)) == 3
    assert opener_of(drivers[0].parent) != opener_of(drivers[1].parent)
    end_shared(config)
    assert [found.alive for found in (*mine, elsewhere)] == [False, False, True]
    end_shared(config)  # nothing is left to end
    end_shared(other)
    assert not elsewhere.alive


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[1]", "7", "{}", '{"pid": 1}', "\x00", '{"pid": "1", "started": "x"}', "[" * 60_000],
)
def test_a_damaged_file_is_named(tmp_path: Path, configure: Configure, text: str) -> None:
    """It is not overwritten: the coordinator that it told of may still serve, and only the user can know."""
    config, driver = configure({"home": str(tmp_path / "home")}), this_process()
    path = empty_home(config, driver)
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not as jobpipe wrote it") as caught:
        attach(config, driver)
    assert caught.value.fields["file"] == str(path)
    assert str(path) in caught.value.message
    assert path.read_text() == text


def test_an_endpoint_that_is_none(tmp_path: Path, configure: Configure) -> None:
    config, driver = configure({"home": str(tmp_path / "home")}), this_process()
    path = empty_home(config, driver)
    where = {"endpoint": "nowhere", "data": "127.0.0.1:2", "instance": "i", "secret": "s"}
    path.write_text(json.dumps({**asdict(driver), **where}))
    with pytest.raises(ConfigError, match=r"is not as jobpipe wrote it.*nowhere"):
        attach(config, driver)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["planner", "committer"])
def test_a_batch_in_progress_outlives_its_coordinator(shared: Configure, first: str) -> None:
    """Whichever process opens the topic again tells the batches of all, and none of their files is swept."""
    config, driver = shared(), this_process()
    mark, rows = TopicMark(driver, config, "orders"), NumberedRows("orders", partitions=1, rows=2000, payload=200)
    given: dict[str, Any] = {"opener": opener_of(driver), "attaching": attach_for(driver), "others": mark.writing}
    planner, committer = (Publisher("orders", config=config, **given) for _ in range(2))
    planner.prepare("a" * 32)
    target = planner.target()
    mark.note_writing("a" * 32, target.write_id)
    (table,) = rows.tables(0)
    segments = target.write(table.schema, [(batch, 0) for batch in table.to_batches()], "0-0")
    assert segments[0].file
    both = (planner, committer) if first == "planner" else (committer, planner)
    with planner._channel._lock, committer._channel._lock:  # the guards of both wait; the order is chosen here
        kill_coordinator(planner.coordinator.process.pid)
        assert planner.coordinator.ended(PATIENCE)
        for publisher in both:
            publisher.status()
    key = BatchKey("q", 0, "r")
    with committer.batch(key, written_as=target.write_id) as batch:
        assert batch.replayed_at is None
        assert batch.seal(committer.target(), table.schema, None, segments).position.n == 1
    for publisher in both:
        publisher.detach()


def test_what_is_in_progress_is_noted_by_writer(tmp_path: Path, configure: Configure) -> None:
    """The newest of each; at most as many as the protocol takes."""
    config = configure({"home": str(tmp_path / "home")})
    mark = TopicMark(this_process(), config, "orders")
    assert mark.writing() == ()
    for write_id in ("01", "02"):
        mark.note_writing("a", write_id)
    mark.note_writing("b", "03")
    assert mark.writing() == ("02", "03")
    mark.forget_writing("a")
    (mark.folder / "c").write_text("no write id")
    assert mark.writing() == ("03",)
    for number in range(MAX_WRITERS + 5):
        mark.note_writing(f"{number:x}", "04")
    assert len(mark.writing()) == MAX_WRITERS
    assert len(list(mark.folder.iterdir())) == MAX_WRITERS
    mark.forget()
    assert mark.writing() == ()


@pytest.mark.processes
def test_what_a_file_tells_is_believed_while_the_process_lives(
    tmp_path: Path, configure: Configure, start: Callable[..., Any]
) -> None:
    """Whose child it is does not matter: its end can be waited for."""
    config, driver, told = configure({"home": str(tmp_path / "home")}), this_process(), start(Driver)
    where = {"endpoint": "127.0.0.1:1", "data": "127.0.0.1:2", "instance": "i", "secret": "s"}
    empty_home(config, driver).write_text(json.dumps({**asdict(told.parent), **where}))
    found = attach(config, driver)
    assert (str(found.endpoint), str(found.data), found.instance, found.secret) == tuple(where.values())
    assert found.alive
    assert not found.ended(0.01)
    found.process.terminate()
    assert found.ended(PATIENCE)
    assert found.process.poll() == 0
    found.process.kill()  # nothing is left to kill


def test_a_folder_of_others_is_refused(tmp_path: Path, configure: Configure) -> None:
    """The secret of the job lies in it."""
    config, driver = configure({"home": str(tmp_path / "home")}), this_process()
    folder = empty_home(config, driver).parent
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match=f"{folder}: "):
        attach(config, driver)


def empty_home(config: Config, driver: WatchedParent) -> Path:
    """Return where a driver's coordinator is told of, in a home where nothing runs."""
    make_home(config.home)
    path = file_of(driver, config)
    path.parent.mkdir(mode=0o700)
    return path
