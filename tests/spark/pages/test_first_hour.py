"""README.md as a new user follows it: two jobs, a client, a publisher, the command line; each block as it stands there.

Python blocks are programs in process groups of their own, as a terminal starts them. The environment is not activated,
and the first python3 of the PATH has no package.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.pages import block, shell
from tests.spark.kit import JOB_SECONDS, PATIENCE, Place, our_lines, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PAGE = "README.md"


class Program:
    """A block of the page that runs."""

    def __init__(self, name: str, folder: Path, environ: dict[str, str]) -> None:
        self._output = folder / f"{name}.out"
        (folder / f"{name}.py").write_text(block(PAGE, name))
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, f"{name}.py"],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def terminal(self) -> str:
        """All that stands on its terminal."""
        return self._output.read_text()

    def says(self, text: str) -> bool:
        """Wait for a text; return whether it came before the program ended."""
        until(lambda: text in self.terminal or self.process.poll() is not None, text, JOB_SECONDS)
        return text in self.terminal

    def ctrl_c(self) -> None:
        """Press it: the whole group is told."""
        os.killpg(self.process.pid, signal.SIGINT)

    def code(self) -> int:
        """Wait for the end; return the exit code."""
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


Start = Callable[[str], Program]


@pytest.fixture
def start(place: Place, environ: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Return what starts a block; all of them have ended with the test."""
    slow = {"JOBPIPE__DISCOVERY__TIMEOUT": f"{JOB_SECONDS:.0f}s", "PYTHONUNBUFFERED": "1"}
    programs: list[Program] = []

    def start(name: str) -> Program:
        programs.append(Program(name, tmp_path, {**environ, **place.environ(), **slow}))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()


def the_subscriber(start: Start) -> Program:
    """Start it; again if Spark gave up on its own Python process after ten seconds, as the page of errors says."""
    for _ in range(3):
        program = start("subscribe")
        if program.says("|customer-1|") or "failed to connect back" not in program.terminal:
            break
    assert "|customer-1|" in program.terminal, program.terminal
    return program


def test_the_first_hour(start: Start, place: Place, tmp_path: Path) -> None:
    """Rows pass, the command line shows them; Ctrl-C ends both jobs at a boundary, with two lines and 130."""
    publish, client, payments = start("publish"), start("client"), start("publisher")
    assert payments.code() == 0, payments.terminal
    assert payments.terminal.splitlines()[0] == "2"
    assert client.says("['id', 'customer', 'amount']"), client.terminal + publish.terminal
    client.ctrl_c()
    subscribe = the_subscriber(start)
    done = shell(block(PAGE, "look"), tmp_path, PATIENCE, **place.environ())
    assert done.returncode == 0, done.stderr
    for expected in ("orders", "billing", "customer-1"):
        assert expected in done.stdout
    assert client.code() == -signal.SIGINT
    for job in (subscribe, publish):
        job.ctrl_c()
    for job in (subscribe, publish):
        assert job.code() == 130, job.terminal
        told, ended = our_lines(job.terminal)
        assert told.startswith("jobpipe: SIGINT: each query ends after the micro-batch it is in")
        assert "stopped by SIGINT after a whole micro-batch" in ended
