"""Fixtures of the CLI tests: a configuration file, the program in this process and in one of its own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import yaml
from click.testing import CliRunner, Result

from jobpipe.cli.main import cli
from jobpipe.config import Config

DEADLINE = 60.0
ROOT = Path(__file__).parents[2]

Run = Callable[..., Result]


class Program:
    """``jobpipe`` as a process; its lines are awaited with a deadline, and it is ended with its test."""

    def __init__(self, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jobpipe.cli.main", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )
        self._killer = threading.Timer(DEADLINE, self.process.kill)  # ends every wait below
        self._killer.start()

    @property
    def out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def line(self) -> str:
        """Return the next line of standard output; empty at its end."""
        return self.out.readline()

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return exit code, the rest of standard output, and standard error."""
        out, err = self.process.communicate()
        self._killer.cancel()
        return self.process.returncode, out, err

    def close(self) -> None:
        """End it, whatever it does."""
        self._killer.cancel()
        if self.process.poll() is None:
            self.process.kill()
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate()
        if self.process.stderr is not None:
            self.process.stderr.close()


def environment() -> dict[str, str]:
    """Return the environment without settings of the machine the tests run on."""
    return {name: value for name, value in os.environ.items() if not name.startswith("JOBPIPE_")}


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the machine's settings out, and take back what the program sets for its process."""
    for name in [name for name in os.environ if name.startswith("JOBPIPE_")]:
        monkeypatch.delenv(name)
    level = logging.getLogger("kazoo").level
    yield
    logging.getLogger("kazoo").setLevel(level)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Return a writer of configuration files from dotted keys."""

    def write(settings: dict[str, Any]) -> str:
        file = tmp_path / "jobpipe.yaml"
        file.write_text(yaml.safe_dump(settings))
        return str(file)

    return write


@pytest.fixture
def run() -> Run:
    """Run the program in this process: ``run("topics", "--json", file=...)``."""

    def run(*args: str, file: str | None = None, stdin: str | None = None) -> Result:
        return CliRunner().invoke(cli, [*(["--config", file] if file else []), *args], input=stdin)

    return run


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    """Start the program as a process of its own."""
    started: list[Program] = []

    def start(*args: str, file: str | None = None) -> Program:
        started.append(Program(*(["--config", file] if file else []), *args))
        return started[-1]

    yield start
    for program in started:
        program.close()


@pytest.fixture
def file(settings_of_test: dict[str, str], write: Callable[..., str], config: Config) -> str:
    """The test's own namespace and spool as a file; coordinators of this process end with the test."""
    return write(settings_of_test)
