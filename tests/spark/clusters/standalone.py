"""A standalone cluster of one worker on loopback, started by the commands of docs/deploy.md."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.jvm import quick_plain
from tests.spark.kit import PATIENCE, ROOT, Job, until

SCRIPTS = Path(sys.executable).parent  # where pip put spark-submit and spark-class


@dataclass(frozen=True)
class Cluster:
    """Where its master listens: for applications, and for the REST interface."""

    port: int
    rest: int

    @property
    def address(self) -> str:
        """The master, as Spark has it."""
        return f"spark://127.0.0.1:{self.port}"

    def on(self, text: str) -> str:
        """Return the text of a page with this master's addresses."""
        text = text.replace("spark://HOST:7077", self.address)
        return text.replace("http://127.0.0.1:6066", f"http://127.0.0.1:{self.rest}")


class Submitted(Job):
    """A command of a shell in a process group of its own."""

    def kill(self) -> None:
        """End the group, if it has not ended."""
        end(self.process, signal.SIGKILL)


def environment(**more: str) -> dict[str, str]:
    """Return what all processes have: Python and jobpipe, and no setting of ours."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JOBPIPE_")}
    needed = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    quick = {"SPARK_SUBMIT_OPTS": quick_plain()}
    return {**clean, "PATH": f"{SCRIPTS}{os.pathsep}{clean['PATH']}", **needed, **quick, **more}


def conf(settings: Mapping[str, str]) -> str:
    """Return settings as arguments of spark-submit, as a shell reads them."""
    return " ".join(f"--conf {shlex.quote(f'{key}={value}')}" for key, value in settings.items())


def bash(command: str, output: Path, folder: Path, environ: Mapping[str, str]) -> Submitted:
    """Start a command of a page in ``folder``; what it says goes to ``output``, errors to its ``.err``."""
    with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(
            ["/bin/bash", "-ec", command],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    return Submitted(process, output.stem, output)


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a process group, if its first process has not ended; wait for that."""
    if process.poll() is None:
        os.killpg(process.pid, number)
    process.wait(PATIENCE)


@contextmanager
def running_cluster(folder: Path, commands: str, **environ: str) -> Iterator[Cluster]:
    """Run master and worker by the commands of the page; ``environ`` is added to their environment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rest = {"enabled": "true", "host": "127.0.0.1", "port": "0"}
    more = {
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_MASTER_WEBUI_PORT": "0",
        "SPARK_WORKER_WEBUI_PORT": "0",
        "SPARK_DAEMON_JAVA_OPTS": quick_plain(),
        "SPARK_MASTER_OPTS": " ".join(f"-Dspark.master.rest.{key}={value}" for key, value in rest.items()),
    }
    export, *lines = commands.replace("HOST", "127.0.0.1").replace("7077", str(port)).splitlines()
    daemons: list[Submitted] = []
    try:
        for name, command in zip(("master", "worker"), lines, strict=True):
            given = environment(**more, **environ)
            daemons.append(bash(f"{export}\n{command}", folder / f"{name}.out", folder, given))
            if name == "master":
                _said(daemons[0], r"(Starting Spark master at spark://127\.0\.0\.1:\d+)")
                _said(daemons[0], r"(elected leader)")
                rest_port = int(_said(daemons[0], r"Started REST server for submitting applications on .* port (\d+)"))
        _said(daemons[-1], r"(Successfully registered with master)")
        yield Cluster(port, rest_port)
    finally:
        for daemon in reversed(daemons):
            end(daemon.process, signal.SIGTERM)


def _said(daemon: Submitted, pattern: str) -> str:
    """Wait for a line in a daemon's log; return its first group."""

    def look() -> re.Match[str] | None:
        assert daemon.process.poll() is None, daemon.errors
        return re.search(pattern, daemon.errors)

    match = until(look, f"{pattern} of the {daemon.name}")
    return str(match.group(1))
