"""Case P4: a fork neither uses nor closes what its parent opened, and says so when it is asked to."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jobpipe
from jobpipe.errors import ForkedProcess
from jobpipe.publishing.batch_admission import BatchKey
from tests.bus.kit import PATIENCE, ROOT, Bus, coordinator_of
from tests.docs.troubleshooting import on_page

SCHEMA = pa.schema([("n", pa.int64())])
SECONDS = 30  # a fork that waits for a lock of its parent's is ended by its own alarm


def in_fork(do: Callable[[], Any]) -> Any:
    """Return what ``do`` returns in a fork of this process, as JSON carries it."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(SECONDS)
            os.write(theirs, json.dumps(do()).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    try:
        assert select.select([ours], [], [], 2 * SECONDS)[0], "the fork said nothing"
        said = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the fork ended with {status}, and said {said!r}"
    assert said, "the fork said nothing"
    return json.loads(said)


def refusals(*calls: Callable[[], Any]) -> list[str]:
    """Return what each call raises, in the words of the user; what it returns, if it raises nothing."""
    found = []
    for call in calls:
        try:
            found.append(repr(call()))
        except ForkedProcess as error:
            found.append(error.message)
    return found


def belongs(what: str, owner: int) -> str:
    return f"{what} belongs to process {owner}, which opened it, and process "


def test_a_publisher(bus: Bus) -> None:
    """Also one that another thread of the parent is busy with at the fork."""
    with jobpipe.publisher(bus.topic, name="importer", schema=SCHEMA, config=bus.config()) as orders:
        orders.write([{"n": 1}], batch_id=1)
        coordinator = coordinator_of(orders._publisher)

        def child() -> list[str]:
            found = refusals(
                lambda: orders.write([{"n": 2}], batch_id=2),
                orders.status,
                lambda: orders.drain(1.0),
                lambda: orders.close(final=True),
            )
            orders.close()
            return [*found, repr(jobpipe.close(bus.topic))]

        with orders._lock, orders._publisher._channel._lock:
            *refused, closed = in_fork(child)
        assert closed == "False"  # this process has opened none
        assert len(refused) == 4
        on_page(refused[0], "… belongs to process")
        assert all(each.startswith(belongs(f"topic {bus.topic!r}: this publisher", os.getpid())) for each in refused)
        assert orders.write([{"n": 2}], batch_id=2).position.n == 2
        assert coordinator_of(orders._publisher) == coordinator
        orders.close(final=True)
    with bus.subscribe("all") as subscription:
        assert pa.Table.from_batches(subscription)["n"].to_pylist() == [1, 2]


def test_the_publisher_below_a_sink(bus: Bus) -> None:
    publisher = bus.publisher()
    table = pa.table({"n": [1]})

    def child() -> list[str]:
        found = refusals(
            lambda: publisher.begin(BatchKey("q", 0, "r")),
            lambda: publisher.seal("q", 0, [table]),
            lambda: publisher.declare(SCHEMA),
        )
        publisher.close()
        return found

    assert len({each.partition(", which")[0] for each in in_fork(child)}) == 1
    assert publisher.seal("q", 0, [table]).position.n == 1


@pytest.mark.slow
def test_a_fork_opens_its_own(bus: Bus) -> None:
    """Though a thread that it does not have held the locks of what is open in a process."""
    from jobpipe.publishing import coordinator_launcher, open_publishers

    other = f"{bus.topic}-other"

    def child() -> list[int]:
        try:
            with jobpipe.publisher(other, schema=SCHEMA, config=bus.config()) as own:
                return [own.write([{"n": n}]).position.n for n in range(2)]
        finally:
            coordinator_launcher.end_coordinators()

    publisher = bus.publisher()
    with open_publishers._lock, coordinator_launcher._lock:
        assert in_fork(child) == [1, 2]
        assert publisher.seal("q", 0, [pa.table({"n": [1]})]).position.n == 1


def test_a_subscription(bus: Bus) -> None:
    """In the middle of a batch, and between two."""
    with jobpipe.publisher(bus.topic, schema=SCHEMA, config=bus.config()) as orders:
        for n in range(3):
            orders.write([{"n": n}])
        orders.close(final=True)
    with bus.subscribe("all") as subscription:
        batches = iter(subscription)
        rows = [next(batches).to_pylist()]

        def child() -> list[str]:
            found = refusals(lambda: next(batches), lambda: next(iter(subscription)), subscription.position)
            subscription.close()
            return found

        refused = in_fork(child)
        assert all(each.startswith(belongs(f"topic {bus.topic!r}: this subscription", os.getpid())) for each in refused)
        rows += [batch.to_pylist() for batch in batches]
    assert rows == [[{"n": 0}], [{"n": 1}], [{"n": 2}]]


def test_a_flow(bus: Bus) -> None:
    seen: list[int] = []
    read = threading.Event()

    def note(batch: pa.RecordBatch, context: jobpipe.FlowContext) -> None:
        seen.extend(batch["n"].to_pylist())
        if len(seen) == 2:
            read.set()

    with jobpipe.publisher(bus.topic, schema=SCHEMA, config=bus.config()) as orders:
        orders.write([{"n": 1}])
        config = bus.config()
        with jobpipe.flow(subscribe=bus.topic, name="sums", function=note, starting="earliest", config=config) as flow:

            def child() -> list[str]:
                found = refusals(flow.status, lambda: flow.await_end(1.0), flow.join)
                flow.stop()
                return found

            assert all(each.startswith(belongs("flow 'sums'", os.getpid())) for each in in_fork(child))
            orders.write([{"n": 2}])
            assert read.wait(PATIENCE)
    assert seen == [1, 2]


@pytest.mark.slow
@pytest.mark.processes
def test_a_fork_that_ends_as_programs_do(bus: Bus, module_settings: dict[str, str], tmp_path: Path) -> None:
    """Out of the block, and through the functions that Python calls at its exit; as the report has it."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import json, os, sys
            import jobpipe, pyarrow as pa
            topic, settings = sys.argv[1], json.loads(sys.argv[2])
            from jobpipe.config import load
            from jobpipe.publishing.coordinator_launcher import end_coordinators

            config = load(overrides=settings, environ={})
            with jobpipe.publisher(topic, required_subscribers="all", config=config) as orders:
                orders.write(pa.table({"n": [1]}))
                child = os.fork()
                if child == 0:
                    sys.exit(7)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                print(orders.write(pa.table({"n": [2]})).position.n)
                orders.close(final=True)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(program), bus.topic, json.dumps(module_settings)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert "Traceback" not in done.stderr
    with bus.subscribe("all") as subscription:
        assert pa.Table.from_batches(subscription)["n"].to_pylist() == [1, 2]
