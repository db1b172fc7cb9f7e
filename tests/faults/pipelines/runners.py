"""Attempts of one job, each a runner of its own; the registry of each may be cut off."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
import yaml
from pyarrow import csv

from jobpipe.config import Config, load
from jobpipe.discovery.registry_handler import open_handler
from jobpipe.jobs.session_processes import members
from jobpipe.net.tls.certificates import ensure_home
from jobpipe.pipelines.loading.snapshot import Snapshot
from jobpipe.testing.numbered_rows import NumberedRows
from jobpipe_registry.job_records import EndRecord, Lease, Order
from tests.faults.pipelines.held_sink import HELD_BY, Entry, read_journal
from tests.faults.rig import SESSION, SHARED, gone
from tests.harness.program import MARK, marked
from tests.harness.zookeeper import ZooKeeper, settings_of

T = TypeVar("T")

ROOT = Path(__file__).parents[3]
PATIENCE = 240.0  # seconds; JVMs start, on a machine that may be very busy
END_SECONDS = 30.0
POLL_SECONDS = 0.05
PIPELINE, JOB, RUN = "cutoff", "copy", "run-1"
ROWS = 10  # of each micro-batch: one file
BATCHES = 6
COLUMNS = "partition int, number bigint, payload string, digest bigint"  # of NumberedRows
HELD = 2  # the micro-batch in which attempts are held


class Runner:
    """One attempt, as the launcher ``local`` starts it: the leader of a session."""

    def __init__(self, number: int, snapshot: Path, log: Path, release: Path, environ: Mapping[str, str]) -> None:
        self.number = number
        self.log = log
        self._release = release
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "jobpipe.jobs.runner", str(snapshot)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=snapshot.parent,
                env=dict(environ),
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether its Python lives."""
        return self.process.poll() is None

    @property
    def said(self) -> str:
        """What it printed."""
        return self.log.read_text(errors="replace")

    def release(self) -> None:
        """Let it go on in the micro-batch that it is held in."""
        self._release.touch()

    def suspend(self) -> None:
        """SIGSTOP to all its processes."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to all of them."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in members(self.process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Return its exit code; no process of its session is left then."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"attempt {self.number} did not end within {timeout:g} s: {self.said}") from None
        gone(members(self.process.pid), END_SECONDS)
        return code

    def kill(self) -> None:
        """``kill -9`` of all its processes."""
        self._signal(signal.SIGKILL)
        if self.alive:
            self.process.kill()
        self.process.wait(END_SECONDS)


class Runners:
    """One job, its attempts, and a registry that the first attempt reaches through a proxy. A context manager.

    Args:
        rows: what is in the files of the input; by default numbers alone.
        sinks: of the job, given the one of type ``python`` that holds it; by default that one alone.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rows: NumberedRows | None = None,
        sinks: Callable[[dict[str, Any]], Sequence[Mapping[str, Any]]] = lambda held: [held],
    ) -> None:
        assert SHARED.zookeeper is not None
        self.folder = folder
        self.storage = folder / "state"
        self._rows = rows
        self._sinks = sinks
        self._mark = uuid.uuid4().hex
        self._runners: list[Runner] = []
        self._stack = contextlib.ExitStack()
        self.storage.mkdir()
        self._write_input(folder / "input")
        self.zookeeper = ZooKeeper(SHARED.zookeeper, shared=True)
        self._stack.callback(self.zookeeper.close)
        try:
            self.config = self._configure("direct", self.zookeeper.proxy.upstream)
            self._configure("proxied", self.zookeeper.endpoint)
            handler = open_handler(self.config)
            self._stack.callback(handler.shutdown)
            self.jobs = handler.jobs
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Runners:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            for runner in self._runners:
                runner.kill()
            left = marked(self._mark)  # coordinators, which have sessions of their own
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            gone(left, END_SECONDS)

    def _configure(self, name: str, connect: str) -> Config:
        home = self.folder / "home"
        files = ensure_home(home)
        settings = {
            "home": str(home),
            **settings_of(self.zookeeper._server, connect),
            "registerserver.session.timeout": f"{SESSION:g}s",
            "registerserver.connect.timeout": "5s",
            "registerserver.topic.storage": f"/{self._mark}/topics",
            "sinkserver.subnet": "127.0.0.0/8",
            "spool.dir": str(self.folder / "spool"),
            "ssl.ca": str(files.ca),
            "ssl.cert": str(files.cert),
            "ssl.key": str(files.key),
        }
        file = self._config_file(name)
        file.write_text(yaml.safe_dump({f"jobpipe.{key}": value for key, value in settings.items()}))
        file.chmod(0o600)
        return load(file, environ={})

    def _config_file(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    # -- the job -------------------------------------------------------------------------------------------------------

    def _write_input(self, folder: Path) -> None:
        """Write a file for each micro-batch."""
        folder.mkdir()
        for batch in range(BATCHES):
            file = folder / f"{batch}.csv"
            if self._rows is None:
                numbers = range(batch * ROWS, (batch + 1) * ROWS)
                file.write_text("".join(f"{number}\n" for number in numbers))
            else:
                (table,) = self._rows.tables(batch)
                csv.write_csv(table, file, csv.WriteOptions(include_header=False))
            os.utime(file, (batch, batch))  # Spark reads the oldest first

    def order(self, number: int) -> None:
        """Order an attempt."""
        self.jobs.set_order(PIPELINE, JOB, Order(RUN, number, "run"), self.jobs.state(PIPELINE, JOB).version)

    def start(self, number: int, *, proxied: bool = False, hold: int = HELD, storage: Path | None = None) -> Runner:
        """Start an attempt.

        Args:
            proxied: it reaches the registry through the proxy.
            hold: in which micro-batch it is held; -1 in none.
            storage: where it finds what is in :attr:`storage`.
        """
        release = self.folder / f"release-{number}"
        held = {
            "type": "python",
            "foreach-batch": "tests.faults.pipelines.held_sink:HeldSink",
            "options": {"journal": str(self._journal)},
        }
        snapshot = self.folder / f"attempt-{number}.json"
        Snapshot(
            file=self.folder / "pipeline.yaml",
            folder=self.folder,
            tree=self._tree(self._sinks(held)),
            job=JOB,
            run=RUN,
            attempt=number,
            storage=f"file://{storage or self.storage}/{JOB}",
            config=self._config_file("proxied" if proxied else "direct"),
            stop_seconds=60.0,
        ).write(snapshot)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        order = json.dumps({"attempt": number, "hold": hold, "release": str(release)})
        environ = {**os.environ, "PYTHONPATH": path, MARK: self._mark, HELD_BY: order}
        runner = Runner(number, snapshot, self.folder / f"attempt-{number}.log", release, environ)
        self._runners.append(runner)
        return runner

    def _tree(self, sinks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        source = {
            "type": "csv",
            "path": str(self.folder / "input"),
            "schema": "number bigint" if self._rows is None else COLUMNS,
            "options": {"maxFilesPerTrigger": 1},
        }
        job: dict[str, Any] = {"source": source, "trigger": {"available-now": True}}
        job |= {"sink": dict(sinks[0])} if len(sinks) == 1 else {"sinks": [dict(sink) for sink in sinks]}
        pipeline = {
            "name": PIPELINE,
            "launcher": {"type": "local", "master": "local[1]"},
            "configuration": {"spark.sql.shuffle.partitions": 1},
        }
        return {"pipeline": pipeline, "jobs": {JOB: job}}

    # -- the first attempt's registry ----------------------------------------------------------------------------------

    def cut(self) -> None:
        """Cut the first attempt off: its connections stay, and nothing passes."""
        self.zookeeper.proxy.pause()

    def let_back(self) -> None:
        """Let it reach the registry again."""
        self.zookeeper.proxy.reset()  # what it sent while it was cut off is gone
        self.zookeeper.proxy.resume()

    # -- what has happened ---------------------------------------------------------------------------------------------

    @property
    def _journal(self) -> Path:
        return self.folder / "journal"

    def noted(self, what: str, attempt: int) -> list[Entry]:
        """Return the beginnings, or the ends, of an attempt's micro-batches."""
        return [each for each in read_journal(self._journal) if (each.what, each.attempt) == (what, attempt)]

    @property
    def committed(self) -> list[int]:
        """The micro-batches in Spark's commit log."""
        folder = self.storage / JOB / "commits"
        return sorted(int(file.name) for file in folder.iterdir() if file.name.isdigit()) if folder.exists() else []

    @property
    def lease(self) -> Lease | None:
        """Who has the lease."""
        return self.jobs.state(PIPELINE, JOB).lease

    @property
    def end(self) -> EndRecord | None:
        """The end record."""
        return self.jobs.state(PIPELINE, JOB).end

    @property
    def mark(self) -> str:
        """The mark beside the checkpoint."""
        return (self.storage / JOB / "attempt").read_text()

    def wait_until(self, condition: Callable[[], T], what: str, *living: Runner, timeout: float = PATIENCE) -> T:
        """Wait until the condition holds; return its value. The attempts ``living`` go on meanwhile."""
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            for runner in living:
                assert runner.alive, f"{what}: attempt {runner.number} ended: {runner.said}"
            assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}; {self._said()}"
            time.sleep(POLL_SECONDS)
        return value

    def wait_until_held(self, runner: Runner) -> None:
        """Wait until an attempt is in the micro-batch that it is held in."""
        self.wait_until(
            lambda: any(entry.batch == HELD for entry in self.noted("begin", runner.number)),
            f"attempt {runner.number} is in batch {HELD}",
            runner,
        )

    def wait_until_leaseless(self) -> None:
        """Wait until the session of the lease has expired."""
        self.wait_until(lambda: self.lease is None, "the lease is gone")

    def _said(self) -> str:
        return "\n".join(f"attempt {runner.number}: {runner.said}" for runner in self._runners)


@contextlib.contextmanager
def running(folder: Path, *, storage: Path | None = None, **how: Any) -> Iterator[tuple[Runners, Runner]]:
    """Have a first attempt, which reaches the registry through the proxy, in the middle of batch :data:`HELD`."""
    with Runners(folder, **how) as runners:
        runners.order(1)
        first = runners.start(1, proxied=True, storage=storage)
        runners.wait_until_held(first)
        yield runners, first
