"""``jobpipe cdc`` as a user without Spark runs it: in a process of its own, which cannot import PySpark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import yaml

from jobpipe.config import Config, load

SECONDS = 60.0
WITHOUT_SPARK = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "pandas", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
from jobpipe.cli.main import main
main()
"""


class CdcProgram:
    """``jobpipe cdc``, perhaps several times one after the other; a context manager.

    Args:
        folder: for configuration and output.
        home: with the embedded ZooKeeper.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self._config = folder / "jobpipe.yaml"
        settings = {
            "home": str(home),
            "spool": {"dir": str(folder / "spool")},
            "registerserver": {
                "topic": {"storage": f"/test-{uuid.uuid4().hex[:12]}/topics"},
                "session": {"timeout": "4s"},
            },
            "coordinator": {"linger": "3s"},
        }
        self._config.write_text(yaml.safe_dump({"jobpipe": settings}))
        self._config.chmod(0o600)
        self._errors = folder / "errors.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> CdcProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(SECONDS)

    @property
    def config(self) -> Config:
        """The configuration that it runs with."""
        return load(self._config, environ={})

    @property
    def errors(self) -> str:
        """What all its runs have printed on standard error."""
        return self._errors.read_text(errors="replace")

    def start(self, *words: str) -> None:
        """Start ``jobpipe cdc run`` with some words."""
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command("run", *words), stdin=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )

    def call(self, *words: str, answer: str | None = None) -> tuple[int, str, str]:
        """Run another command of ``jobpipe cdc`` to its end; return exit code, standard output and error."""
        done = subprocess.run(
            self._command(*words), input=answer, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def jobpipe(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another command of ``jobpipe`` to its end."""
        command = self._command(*words)
        command.remove("cdc")
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let the run stand still in the block, as a host that hangs."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> int:
        """Send a signal to the run; return the exit code of its end."""
        assert self._process is not None
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of the run; return its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.errors}") from None

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something; fails if it does not come, or the run ends before."""
        deadline = time.monotonic() + SECONDS
        assert self._process is not None
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come:\n{self.errors}"
            assert self._process.poll() is None, f"it ended before {what}:\n{self.errors}"
            time.sleep(0.05)

    def _command(self, *words: str) -> list[str]:
        assert "CDC_TEST_PASSWORD" in os.environ
        return [sys.executable, "-c", WITHOUT_SPARK, "--config", str(self._config), "cdc", *words]
