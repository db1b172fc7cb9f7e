"""A stop that is asked for: by anyone, at any time, once."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

from jobpipe.jobs.workloads import stop_request
from jobpipe.jobs.workloads.stop_request import StopAsked, StopRequest, watch_parent
from jobpipe.pipelines.loading.snapshot import ParentProcess
from jobpipe_registry.host.process_identity import start_ticks
from tests.pipelines.waiting import DEADLINE, eventually

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    """One that notes signals, as long as the test lasts."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    found = StopRequest(DEADLINE)
    found.note_signals()
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled(number: signal.Signals) -> None:
    """Be sent a signal, and wait."""
    os.kill(os.getpid(), number)
    threading.Event().wait(DEADLINE)


def test_it_is_asked_once() -> None:
    stop, heard = StopRequest(10.0), []
    stop.listen(lambda: heard.append("first"))
    stop.listen(lambda: heard.append("second"))
    assert (stop.asked, stop.why, stop.hurried) == (False, "", False)
    stop.ask("an order")
    stop.ask("a signal")
    assert (stop.asked, stop.why, heard) == (True, "an order", ["first", "second"])
    stop.listen(lambda: heard.append("late"))
    assert heard == ["first", "second", "late"]


def test_each_listener_is_called_once_whoever_asks() -> None:
    for _ in range(50):
        stop, heard = StopRequest(10.0), []
        gate = threading.Barrier(4)

        def ask(stop: StopRequest = stop, gate: threading.Barrier = gate) -> None:
            gate.wait(DEADLINE)
            stop.ask("an order")

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        gate.wait(DEADLINE)
        for number in range(20):
            stop.listen(lambda number=number, heard=heard: heard.append(number))
        for thread in threads:
            thread.join(DEADLINE)
        assert sorted(heard) == list(range(20))


def test_half_of_the_time_is_for_the_micro_batch() -> None:
    assert StopRequest(60.0).boundary_seconds == 30.0
    stop = StopRequest(0.1)
    stop.ask("an order")
    assert eventually(lambda: stop.hurried)
    patient = StopRequest(3600.0)
    patient.ask("an order")
    assert not patient.hurried


@pytest.mark.parametrize("number", NUMBERS)
def test_signals_are_a_stop(stop: StopRequest, number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    assert eventually(lambda: stop.asked)
    assert stop.why == number.name
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.why == number.name


def test_a_signal_in_the_middle_of_anything(stop: StopRequest) -> None:
    """A handler runs between any two steps of the main thread, also of those that ask and listen."""

    class Signals(list):  # type: ignore[type-arg]
        def append(self, listener: object) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            super().append(listener)
            os.kill(os.getpid(), signal.SIGHUP)

    heard: list[int] = []
    stop._listeners = Signals()
    stop.listen(lambda: heard.append(1))
    assert (stop.asked, heard) == (True, [1])


def test_a_stop_by_another_thread_interrupts_the_main_one(stop: StopRequest) -> None:
    asking = threading.Timer(0.1, stop.ask, ["an order"])
    asking.start()
    with pytest.raises(StopAsked), stop.interrupting():
        threading.Event().wait(DEADLINE)
    asking.join(DEADLINE)
    assert stop.why == "an order"


def test_a_signal_interrupts(stop: StopRequest) -> None:
    with pytest.raises(StopAsked), stop.interrupting():
        signalled(signal.SIGINT)
    assert stop.why == "SIGINT"


def test_a_stop_that_was_asked_for_before(stop: StopRequest) -> None:
    stop.ask("an order")
    with pytest.raises(StopAsked), stop.interrupting():
        threading.Event().wait(DEADLINE)


def test_outside_of_the_block_nothing_is_interrupted(stop: StopRequest) -> None:
    with stop.interrupting():
        pass
    stop.ask("an order")
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.why == "an order"


def test_errors_of_the_block_pass(stop: StopRequest) -> None:
    with pytest.raises(ZeroDivisionError), stop.interrupting():
        raise ZeroDivisionError
    stop.ask("an order")


def test_no_handler_of_errors_keeps_it(stop: StopRequest) -> None:
    with pytest.raises(StopAsked), stop.interrupting(), contextlib.suppress(Exception):  # as a library may
        signalled(signal.SIGTERM)


def test_a_call_of_the_jvm_that_a_stop_interrupts(stop: StopRequest) -> None:
    """The next one, as in a ``finally``, neither waits for its answer nor takes it for its own."""
    called, over = threading.Event(), threading.Event()

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as lines:  # it is dropped
            while command := list(itertools.takewhile(b"e\n".__ne__, lines)):
                if command[-1] == b"save\n":
                    called.set()
                    over.wait(DEADLINE)
                connection.sendall(b"!ys" + command[-1])

    def serve() -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                threading.Thread(target=answer, args=(jvm.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as jvm:
        threading.Thread(target=serve, daemon=True).start()
        server = ClientServer(JavaParameters(port=jvm.getsockname()[1]), PythonParameters(port=0))
        client = server._gateway_client  # what pyspark calls
        threading.Thread(target=lambda: called.wait(DEADLINE) and stop.ask("an order"), daemon=True).start()
        answers = []
        with contextlib.suppress(StopAsked), stop.interrupting():
            try:
                answers.append(client.send_command("c\nsave\ne\n"))
            finally:
                answers.append(client.send_command("c\nunpersist\ne\n"))
        assert (answers, over.is_set()) == (["ysunpersist"], False)
        over.set()
        server.shutdown()


@pytest.mark.processes
def test_a_parent_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_request, "PARENT_SECONDS", 0.02)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        pid = process.pid
        parent = ParentProcess(pid=pid, started=psutil.Process(pid).create_time(), ticks=start_ticks(pid))
        stop, heard, ended = StopRequest(0.1), threading.Event(), threading.Event()
        stop.listen(heard.set)
        watch_parent(parent, stop, ended.set)
        assert not heard.wait(0.2)
        process.kill()
        assert heard.wait(DEADLINE)  # although nobody has waited for it
        assert ended.wait(DEADLINE)  # what does not stop in time is ended
    assert stop.why == "the program that started this job has ended"
