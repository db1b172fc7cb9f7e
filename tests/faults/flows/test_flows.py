"""Flow jobs whose processes are killed, whose links are cut, and whose ZooKeeper is away: each row once, in order."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

import jobpipe
from jobpipe.config import Config, load
from jobpipe.net.tls.certificates import ensure_home
from tests.bus.flows.flowkit import Chain, chain
from tests.bus.kit import PATIENCE, ROOT, coordinator_of, kill, until
from tests.faults.rig import SHARED, chance
from tests.harness.proxies.proxies import open_proxies
from tests.harness.proxies.proxy import FaultProxy
from tests.harness.zookeeper import ZooKeeper

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(180)]

SIZES = pytest.mark.parametrize("payload", [16, pytest.param(2000, marks=pytest.mark.slow)], ids=["small", "files"])
JOB = Path(__file__).with_name("flow_job.py")


@contextmanager
def publishing(line: Chain, pause: float = 0.03) -> Iterator[None]:
    """Publish batch after batch in a thread, until the block ends."""
    stop, errors = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            while not stop.is_set():
                line.publish(1)
                stop.wait(pause)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert not thread.is_alive(), "still publishing"
    assert not errors, errors


def elsewhere(settings: dict[str, str], **changes: str) -> dict[str, str]:
    """Return settings with which a job starts a coordinator of its own: its spool is another."""
    return {**settings, "jobpipe.spool.dir": settings["jobpipe.spool.dir"] + "-target", **changes}


def loaded(settings: dict[str, str]) -> Config:
    """Return the configuration that these settings make."""
    return load(overrides=settings, environ={})


def job(settings: dict[str, str]) -> subprocess.Popen[str]:
    """Start a flow job in a process of its own."""
    return subprocess.Popen(
        [sys.executable, str(JOB), json.dumps(settings)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@SIZES
def test_its_driver_is_killed(settings_of_test: dict[str, str], config: Config, payload: int) -> None:
    """``kill -9`` at random moments; the next one goes on by the cursors."""
    moments, pids, running = chance(), list[int](), list[subprocess.Popen[str]]()
    try:
        with chain(config, rows=40, payload=payload) as line:
            checker = line.reader()
            with publishing(line):
                for _ in range(2):
                    process = job(elsewhere(settings_of_test))
                    running.append(process)
                    assert process.stdout is not None
                    pids.append(int(process.stdout.readline()))
                    time.sleep(moments.uniform(0.0, 1.0))
                    process.kill()
                    process.wait(PATIENCE)
                    process.stdout.close()
            running.append(job(elsewhere(settings_of_test)))
            assert running[-1].stdout is not None
            pids.append(int(running[-1].stdout.readline()))
            line.end(checker)
            assert running[-1].wait(PATIENCE) == 0
            running[-1].stdout.close()
    finally:
        for process in running:
            kill(process.pid)
        for pid in pids:
            kill(pid, signal.SIGTERM)


@SIZES
def test_a_coordinator_is_killed(settings_of_test: dict[str, str], config: Config, payload: int) -> None:
    """That of the source and that of the target, by turns; the flow goes on by itself."""
    moments = chance()
    with chain(config, rows=40, payload=payload) as line:
        flow = line.flow(config=loaded(elsewhere(settings_of_test)))
        checker = line.reader()
        assert flow._ends.publisher is not None
        with publishing(line):
            for publisher in (line.source._publisher, flow._ends.publisher):
                time.sleep(moments.uniform(0.2, 1.0))
                kill(coordinator_of(publisher))
                before = line.journal.rows
                until(lambda: checker.rows > before, 20.0, lambda: f"rows go on; {line.said()}")  # noqa: B023
        line.end(checker)


def test_the_spool_of_the_target_is_lost(settings_of_test: dict[str, str], config: Config) -> None:
    """With its coordinator, while the flow runs: it goes on where its subscription stands, not where it was started."""
    with chain(config) as line:
        flow = line.flow(config=loaded(elsewhere(settings_of_test)), required_subscribers=("after",))
        line.publish(10)
        until(
            lambda: line.source._publisher.status()["subscriptions"][0]["position"] == 10, 20.0, "all is acknowledged"
        )
        publisher = flow._ends.publisher
        assert publisher is not None
        kill(coordinator_of(publisher))
        shutil.rmtree(publisher.config.spool_dir / publisher.topic)
        line.publish(3)
        line.source.close(final=True)
        flow.await_end(PATIENCE)
        with jobpipe.subscribe("target", name="after", starting="earliest", config=config) as rows:
            found = [(row["partition"], row["number"]) for batch in rows for row in batch.to_pylist()]
        published = [line.rows.ranges(batch_id).items() for batch_id in (10, 11, 12)]
        assert sorted(found) == sorted(
            (partition, number)
            for ranges in published
            for partition, (first, last) in ranges
            for number in range(first, last)
        )


def test_the_sources_coordinator_is_killed_and_nothing_is_published(config: Config) -> None:
    """The cursors lie with the source; effects happen at least once."""
    moments, seen = chance(), set[tuple[int, int]]()

    def function(batch: object, context: object) -> None:
        seen.add((context.offset, context.partition))  # type: ignore[attr-defined]

    with chain(config) as line:
        flow = line.flow(function, publish=None)
        with publishing(line):
            for _ in range(2):
                time.sleep(moments.uniform(0.2, 1.0))
                kill(coordinator_of(line.source._publisher))
                before = len(seen)
                until(lambda: len(seen) > before + 4, 20.0, lambda: f"{line.said()}")  # noqa: B023
        line.source.close(final=True)
        flow.await_end(PATIENCE)
        assert len(seen) == 2 * line.journal.batches


@SIZES
def test_links_are_cut(settings_of_test: dict[str, str], config: Config, payload: int) -> None:
    """Those of the tasks and of the subscription: reset, ended in the middle of an answer, silent for a while."""
    moments, proxies = chance(), list[FaultProxy]()
    with ExitStack() as stack:
        network = open_proxies(proxies)
        for proxy in proxies:
            stack.callback(proxy.close)
        settings = {**settings_of_test, **{f"jobpipe.{key}": value for key, value in network.items()}}
        line = stack.enter_context(chain(loaded(settings), rows=40, payload=payload))
        line.flow(config=loaded(settings))
        checker = line.reader()
        with publishing(line):
            for number in range(6):
                time.sleep(moments.uniform(0.1, 0.5))
                for proxy in proxies:
                    if number % 3 == 0:
                        proxy.reset()
                    elif number % 3 == 1:
                        proxy.cut(moments.choice(("up", "down")), moments.randrange(5000), open_ones=True)
                    else:
                        proxy.drop("down")
                if number % 3 == 2:
                    time.sleep(moments.uniform(0.2, 1.0))
                    for proxy in proxies:
                        proxy.heal()
                        proxy.reset()
                before = line.journal.rows
                until(lambda: checker.rows > before, 30.0, lambda: f"rows go on; {line.said()}")  # noqa: B023
        assert sum(proxy.connections for proxy in proxies) > 4
        line.end(checker)


def test_zookeeper_is_away(settings_of_test: dict[str, str], config: Config) -> None:
    """For longer than a session; rows flow on meanwhile."""
    assert SHARED.zookeeper is not None
    server = ZooKeeper(SHARED.zookeeper, shared=True)
    files = ensure_home(SHARED.zookeeper)
    try:
        connect = {
            **{f"jobpipe.{key}": value for key, value in server.settings.items()},
            "jobpipe.sinkserver.subnet": "127.0.0.0/8",
            "jobpipe.ssl.ca": str(files.ca),
            "jobpipe.ssl.cert": str(files.cert),
            "jobpipe.ssl.key": str(files.key),
        }
        with chain(loaded({**settings_of_test, **connect})) as line:
            line.flow(config=loaded(elsewhere({**settings_of_test, **connect})))
            checker = line.reader()
            with publishing(line):
                until(lambda: checker.rows > 100, PATIENCE, "rows flow")
                server.proxy.refuse()
                server.proxy.reset()
                began = time.monotonic()
                while time.monotonic() - began < 6.0:
                    before = line.journal.rows
                    until(lambda: checker.rows > before, 5.0, lambda: f"rows flow; {line.said()}")  # noqa: B023
                server.proxy.accept()
            line.end(checker)
    finally:
        server.close()


def test_the_data_process_is_silent(config: Config) -> None:
    """While large rows are fetched: the flow can be stopped, and the next one goes on."""
    with chain(config, rows=400, payload=1000) as line:
        line.publish(3)
        (data,) = psutil.Process(coordinator_of(line.source._publisher)).children()
        checker = line.reader()
        data.suspend()
        try:
            flow = line.flow()
            time.sleep(1.0)
            began = time.monotonic()
            flow.stop()
            assert time.monotonic() - began < 3.0
        finally:
            data.resume()
        line.flow()
        line.end(checker)
