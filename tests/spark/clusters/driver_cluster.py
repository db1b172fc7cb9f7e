"""A standalone cluster of Spark on loopback that takes drivers: a master with REST interface and token, two workers.

The master keeps what it knows in files, so it may be killed and started again.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyspark

from tests.harness.jvm import quick_plain

PATIENCE = 120.0
SPARK = Path(pyspark.__file__).parent
HOST = "127.0.0.1"
_PROGRAM = "org.apache.spark.deploy"


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def signed(key: bytes) -> str:
    """Return a JSON web token (HS256)."""
    parts = [{"alg": "HS256", "typ": "JWT"}, {"sub": "tests"}]
    text = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    signature = base64.urlsafe_b64encode(hmac.digest(key, text, hashlib.sha256)).rstrip(b"=")
    return (text + b"." + signature).decode()


class Standalone:
    """The cluster; a context manager.

    Args:
        folder: for logs, work folders, the master's state, and the file with the token.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = secrets.token_bytes(32)
        self._port, self._rest = free_port(), free_port()
        self._stack = ExitStack()
        self._workers: list[psutil.Process] = []
        self._master: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self.token = folder / "token"
        self.token.touch(0o600)
        self.token.write_text(signed(self._key))

    @property
    def master(self) -> str:
        """Its address for applications."""
        return f"spark://{HOST}:{self._port}"

    @property
    def url(self) -> str:
        """Its address for submissions."""
        return f"http://{HOST}:{self._rest}"

    def launcher(self, **more: object) -> dict[str, object]:
        """Return the section ``launcher`` of a pipeline."""
        return {
            "type": "spark-rest",
            "url": self.url,
            "master": self.master,
            "token": f"file:{self.token}",
            "python": sys.executable,
            **more,
        }

    def __enter__(self) -> Standalone:
        with ExitStack() as stack:
            stack.callback(self.kill_master)
            self.start_master()
            for number in (1, 2):
                self._start_worker(stack, number)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        left = [each for worker in self._workers for each in _below(worker)]
        self._stack.close()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def start_master(self) -> None:
        """Start the master if it does not run; one that was killed then hears of workers and drivers again."""
        if self._master is not None:
            return
        filter_ = "org.apache.spark.ui.JWSFilter"
        options = {
            "spark.master.rest.enabled": "true",
            "spark.master.rest.port": self._rest,
            "spark.master.rest.filters": filter_,
            f"spark.{filter_}.param.secretKey": base64.urlsafe_b64encode(self._key).decode().rstrip("="),
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": self._folder / "recovery",
            "spark.deploy.recoveryTimeout": "20s",  # for what is gone
        }
        self._starts += 1
        log = self._folder / f"master-{self._starts}.log"
        arguments = ("--host", HOST, "--port", str(self._port), "--webui-port", "0")
        self._master = self._daemon(log, "master.Master", *arguments, SPARK_MASTER_OPTS=_java(options))
        _said(log, self._master, r"New state: (ALIVE|RECOVERING)")

    def kill_master(self) -> None:
        """``kill -9`` of the master, if it runs."""
        if self._master is not None:
            self._master.kill()
            self._master.wait()
            self._master = None

    def _start_worker(self, stack: ExitStack, number: int) -> None:
        log = self._folder / f"worker-{number}.log"
        sizes = ("--cores", "4", "--memory", "4g", "--webui-port", "0", "--work-dir", str(self.work / str(number)))
        process = self._daemon(log, "worker.Worker", "--host", HOST, *sizes, self.master)
        stack.callback(_end, process)
        self._workers.append(psutil.Process(process.pid))
        _said(log, process, "Successfully registered with master")

    def _daemon(self, log: Path, program: str, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("JOBPIPE_")}
        small = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": quick_plain(), "SPARK_LOCAL_IP": HOST}
        with log.open("wb") as out:
            return subprocess.Popen(
                [str(SPARK / "bin" / "spark-class"), f"{_PROGRAM}.{program}", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**clean, **small, "SPARK_HOME": str(SPARK), "PYSPARK_PYTHON": sys.executable, **environ},
                start_new_session=True,
            )

    @property
    def work(self) -> Path:
        """Where drivers and executors have their output."""
        return self._folder / "work"

    def drivers(self, job: str) -> list[psutil.Process]:
        """Return the drivers' JVMs of a job, ``PIPELINE.JOB``."""
        found = []
        for worker in self._workers:
            for process in _below(worker):
                with contextlib.suppress(psutil.Error):
                    command = process.cmdline()
                    if f"{_PROGRAM}.worker.DriverWrapper" in command and job in command:
                        found.append(process)
        return found

    def told(self) -> str:
        """Return the ends of all logs, for messages."""
        logs = [*self._folder.glob("*.log"), *self.work.rglob("stdout"), *self.work.rglob("stderr")]
        return "\n".join(f"--- {log}\n{log.read_text(errors='replace')[-2000:]}" for log in sorted(logs))


def _java(options: dict[str, object]) -> str:
    return " ".join(f"-D{key}={value}" for key, value in options.items())


def _below(process: psutil.Process) -> Iterator[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        yield from process.children(recursive=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _said(log: Path, process: subprocess.Popen[bytes], pattern: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while re.search(pattern, text := log.read_text(errors="replace")) is None:
        assert process.poll() is None, text[-3000:]
        assert time.monotonic() < deadline, f"not said: {pattern}\n{text[-3000:]}"
        time.sleep(0.05)
