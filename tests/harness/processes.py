"""A bus of real processes to be hurt: publisher job, coordinator, data process, subscriber jobs, ZooKeeper.

    with Harness(tmp_path, partitions=2, rows=100) as rig:
        rig.publisher.start(pause=0.01)
        rig.consumer().start()
        rig.wait_until(lambda: rig.received() > 1000, "rows")
        rig.publisher.kill()                  # kill -9
        rig.coordinator().suspend()           # SIGSTOP
        ...
        rig.publisher.start()                 # goes on from its checkpoint
        rig.finish()                          # end mark, all programs end by themselves
        rig.verdict()                         # nothing lost, nothing twice, in order

Everything lives below one folder and ends with :meth:`Harness.close`, by process id: programs that the harness started,
and what these started (they inherit a mark in their environment). ZooKeeper stands behind a
:class:`~tests.harness.proxies.proxy.FaultProxy`, and with ``proxied`` coordinator and data process do too, as
subscribers see them.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import psutil

from jobpipe.config import Config, load
from jobpipe.errors import SpoolError
from jobpipe.net.tls.certificates import ensure_home
from jobpipe.store.log.spool_folders import read_status
from jobpipe.store.spool.spool_files import CATALOG
from jobpipe.testing.delivery_checker import Checker, Report
from jobpipe.testing.journal import Journal
from jobpipe.testing.numbered_rows import NumberedRows
from tests.harness.jobs.consume import ConsumeOrder, Received
from tests.harness.jobs.flow import TASK, FlowOrder
from tests.harness.jobs.publish import PublishOrder
from tests.harness.program import (
    DEADLINE_SECONDS,
    END_SECONDS,
    MARK,
    NAME,
    Order,
    Program,
    marked,
    module_of,
    name_of,
)
from tests.harness.proxies.proxies import open_proxies
from tests.harness.proxies.proxy import FaultProxy
from tests.harness.zookeeper import ZooKeeper

T = TypeVar("T")

POLL_SECONDS = 0.02


class Harness:
    """One topic with its publisher job, its subscriber jobs and a ZooKeeper of its own. Use it as a context manager.

    Args:
        folder: For everything.
        topic: Its name.
        partitions: Of each batch.
        rows: Of each partition of each batch.
        payload: Characters of a row.
        settings: Keys of the configuration, without ``jobpipe.``.
        proxied: Put a proxy before every port of the bus: :attr:`proxies`. All links of subscribers and flows pass
            them; a publisher's own link to its coordinator does not.
        zookeeper: Home of a ZooKeeper that others use too: starting one takes seconds. None for one of its own, which
            alone may be killed and stopped; a proxy of its own it has in any case.
    """

    def __init__(
        self,
        folder: Path,
        *,
        topic: str = "orders",
        partitions: int = 2,
        rows: int = 50,
        payload: int = 16,
        settings: Mapping[str, str] | None = None,
        proxied: bool = False,
        zookeeper: Path | None = None,
    ) -> None:
        self.folder = folder
        self.topic = topic
        self.rows = NumberedRows(topic, partitions=partitions, rows=rows, payload=payload)
        self.proxies: list[FaultProxy] = []
        self._mark = uuid.uuid4().hex
        self._made: list[Program] = []
        self._consumers: dict[str, Program] = {}
        self._flows: dict[str, Program] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.zookeeper = ZooKeeper(zookeeper or folder / "home", shared=zookeeper is not None)
        self._namespace = "/jobpipe/topics" if zookeeper is None else f"/{self._mark}/topics"
        try:
            network = open_proxies(self.proxies) if proxied else {}
            self.config = self.subscribers_config = self._configure({**network, **(settings or {})})
        except BaseException:
            self.close()
            raise
        self.publisher = self._program("tests.harness.jobs.publish", "publisher", self._publish_order)

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- processes -----------------------------------------------------------------------------------------------------

    def consumer(self, name: str = "all", topic: str | None = None) -> Program:
        """Return the subscriber job of a name, by default of the publisher's topic; made with the first call."""
        if name not in self._consumers:
            Received(self._store(name)).close()  # made here: two that make it at once would be in each other's way

            def order(**changes: Any) -> ConsumeOrder:
                return ConsumeOrder(
                    **{
                        "config": self.subscribers_config.to_dict(),
                        "store": str(self._store(name)),
                        "topic": topic or self.topic,
                        "name": name,
                        "parent": os.getpid(),
                        **changes,
                    }
                )

            self._consumers[name] = self._program("tests.harness.jobs.consume", f"consumer-{name}", order)
        return self._consumers[name]

    def flow(self, name: str, publish: str) -> Program:
        """Return a flow job that passes the publisher's rows on to another topic; made with the first call."""
        if name not in self._flows:

            def order(**changes: Any) -> FlowOrder:
                return FlowOrder(
                    **{
                        "config": self.subscribers_config.to_dict(),
                        "topic": self.topic,
                        "publish": publish,
                        "name": name,
                        "parent": os.getpid(),
                        **changes,
                    }
                )

            self._flows[name] = self._program("tests.harness.jobs.flow", f"flow-{name}", order)
        return self._flows[name]

    def flow_tasks(self, name: str) -> list[psutil.Process]:
        """Return the attempts of a flow's tasks that live, the youngest last."""
        return [each for each in self._processes_of(TASK) if name_of(each) == f"flow-{name}"]

    def flow_coordinators(self, name: str) -> list[psutil.Process]:
        """Return the coordinators of what a flow publishes, the youngest last."""
        return [each for each in self._processes_of("jobpipe.coordinator") if name_of(each) == f"flow-{name}"]

    def coordinators(self) -> list[psutil.Process]:
        """Return the publisher's coordinators, the youngest last; those of killed publishers live on for a while."""
        return [each for each in self._processes_of("jobpipe.coordinator") if not name_of(each).startswith("flow-")]

    def coordinator(self) -> psutil.Process:
        """Return the youngest coordinator; it has ``kill``, ``suspend``, ``resume``, ``terminate``."""
        return self.wait_until(self.coordinators, "a coordinator")[-1]

    def data_processes(self) -> list[psutil.Process]:
        """Return the data processes of the publisher's coordinators, the youngest last."""
        found = self._processes_of("jobpipe.coordinator.data.data_process")
        return [each for each in found if not name_of(each).startswith("flow-")]

    def data_process(self) -> psutil.Process:
        """Return the youngest of these."""
        return self.wait_until(self.data_processes, "a data process")[-1]

    # -- what has happened ---------------------------------------------------------------------------------------------

    @property
    def journal(self) -> Journal:
        """What the publisher sealed so far, or was about to."""
        return Journal(self._publish_order().journal)

    def received(self, name: str = "all") -> int:
        """Return how many rows a subscriber has stored."""
        if not self._store(name).exists():
            return 0
        with contextlib.closing(Received(self._store(name))) as received:
            return received.rows

    def caught_up(self, name: str = "all") -> bool:
        """Tell whether a subscriber has at least as many rows as are known to be sealed."""
        return self.received(name) >= self.journal.rows

    def wait_until(self, condition: Callable[[], T], what: str = "", timeout: float = DEADLINE_SECONDS) -> T:
        """Wait until the condition holds; return its value.

        Raises:
            AssertionError: it does not in time, or a program failed that was not hurt on purpose.
        """
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            self.check_programs()
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout:g} s: {what or condition}; {self.state()}")
            time.sleep(POLL_SECONDS)
        return value

    def check_programs(self) -> None:
        """See that no program ended by an error of its own.

        Raises:
            AssertionError: one did; with the end of its log.
        """
        failures = [failure for program in self._programs() if (failure := program.failure) is not None]
        if failures:
            raise AssertionError("\n".join(failures))

    def state(self) -> str:
        """Return a line for error messages."""
        rows = {name: self.received(name) for name in self._consumers}
        return f"{self.journal.rows} rows sealed, received {rows}; {self._programs()}, {self.coordinators()}"

    def finish(self, timeout: float = DEADLINE_SECONDS) -> None:
        """Let the publisher end with an end mark, and its subscribers follow; those that were killed start once more.

        Args:
            timeout: Seconds without a row that is sealed or arrives. What is left to read may take longer.

        Raises:
            AssertionError: a program does not end in time, or with an error.
        """
        self._publish_order().finish.touch()
        for program in self._programs():
            program.resume()
            if not program.alive and program.process.returncode != 0:
                program.start()
        moved, before = time.monotonic(), -1
        while any(program.alive for program in self._programs()) and time.monotonic() - moved < timeout:
            done = self._publish_order().journal.stat().st_size + sum(map(self.received, self._consumers))
            if done != before:
                moved, before = time.monotonic(), done
            self.check_programs()  # the others would wait for one that failed
            time.sleep(POLL_SECONDS)
        for program in self._programs():
            program.wait(0.0)
        self.check_programs()

    def verdict(self, name: str = "all", *, max_pause: float | None = None) -> Report:
        """Compare what a subscriber has stored with what was sealed.

        Args:
            name: The subscription.
            max_pause: Seconds that rows may take to arrive.

        Raises:
            AssertionError: rows are lost, twice, out of order, damaged, or there was no progress; or the ledger says
                so of a row, and nothing of that is true.
        """
        now: list[float] = []
        checker: Checker | None = None
        with contextlib.closing(Received(self._store(name))) as received:
            for at, table in received.batches():
                now[:] = [at]
                checker = checker or Checker(self.rows, self.journal, clock=lambda: now[0])
                checker.take(table)
        report = (checker or Checker(self.rows, self.journal)).check(max_pause=max_pause)
        for catalog in self.config.spool_dir.glob(f"*/{CATALOG}"):
            with contextlib.suppress(SpoolError):  # one that a fault has spoilt
                lines = read_status(catalog.parent, catalog.parent.name).subscriptions
                assert not (found := [line for line in lines if line.difference]), f"no row was lost: {found}"
        return report

    # -- end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End everything that was started, by process id; whatever state it is in. Idempotent."""
        try:
            for program in self._made:  # also those that another took the place of
                if program.starts:
                    program.kill()
            for process in self._marked():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._wait_for_end()
        finally:
            for proxy in self.proxies:
                proxy.close()
            self.zookeeper.close()

    def _wait_for_end(self) -> None:
        deadline = time.monotonic() + END_SECONDS
        while left := self._marked():
            if time.monotonic() > deadline:
                raise AssertionError(f"these go on running, although killed: {left}")
            time.sleep(POLL_SECONDS)

    # -- how it is made ------------------------------------------------------------------------------------------------

    def _configure(self, settings: Mapping[str, str]) -> Config:
        home = self.folder / "home"
        files = ensure_home(home)
        return load(
            overrides={
                "home": str(home),
                **self.zookeeper.settings,
                "registerserver.session.timeout": "4s",
                "registerserver.topic.storage": self._namespace,
                "sinkserver.subnet": "127.0.0.0/8",
                "spool.dir": str(self.folder / "spool"),
                "coordinator.linger": "20s",
                "ssl.ca": str(files.ca),
                "ssl.cert": str(files.cert),
                "ssl.key": str(files.key),
                **settings,
            },
            environ={},
        )

    def _program(self, module: str, name: str, make_order: Callable[..., Order]) -> Program:
        environ = {**os.environ, MARK: self._mark, NAME: name}
        self._made.append(Program(module, make_order, self.folder / f"{name}.log", environ))
        return self._made[-1]

    def _publish_order(self, **changes: Any) -> PublishOrder:
        return PublishOrder(
            **{
                "config": self.config.to_dict(),
                "folder": str(self.folder),
                "topic": self.topic,
                "partitions": self.rows.partitions,
                "rows": self.rows.rows,
                "payload": self.rows.payload,
                "parent": os.getpid(),
                **changes,
            }
        )

    def _store(self, name: str) -> Path:
        return self.folder / f"received-{name}.sqlite"

    def _programs(self) -> list[Program]:
        """Programs that were started, the publisher first, then what reads it."""
        made = [self.publisher] if hasattr(self, "publisher") else []
        return [program for program in [*made, *self._flows.values(), *self._consumers.values()] if program.starts]

    def _processes_of(self, module: str) -> list[psutil.Process]:
        found = []
        for process in self._marked():
            with contextlib.suppress(psutil.Error):
                if module_of(process) == module:
                    found.append(process)
        return sorted(found, key=lambda process: (process.create_time(), process.pid))

    def _marked(self) -> list[psutil.Process]:
        return marked(self._mark)
