"""The coordinator's data process, as its parent sees it: started, configured, started again when it dies."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from jobpipe.config import Config
from jobpipe.coordinator.data.count_pipe import Doubt, Line, read_line
from jobpipe.coordinator.server_process import start_program
from jobpipe.net.address import Endpoint

log = logging.getLogger(__name__)

START_SECONDS = 30.0
END_SECONDS = 5.0


class DataProcessHandle:
    """One data process. Its methods block; they may be called from any thread."""

    def __init__(self, config: Config, *, interface: str, advertised: str, instance: str, secret: str) -> None:
        self._config = config
        self._interface = interface
        self._advertised = advertised
        self._instance = instance
        self._secret = secret
        self._process: subprocess.Popen[bytes] | None = None
        self._endpoint: Endpoint | None = None
        self._topics: dict[str, dict[str, str]] = {}  # what was told of each
        self._hosts: dict[str, str | None] = {}
        self._lock = threading.Lock()
        self.on_line: Callable[[Line], object] = lambda line: None  # what it reports, in a thread of its own

    @property
    def endpoint(self) -> Endpoint:
        """Where it serves now; another one after each :meth:`start`."""
        assert self._endpoint is not None  # noqa: S101 - started before anybody asks
        return self._endpoint

    @property
    def alive(self) -> bool:
        """True while the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process, and tell it of all topics that were told before.

        Raises:
            JobpipeError: what the program says: no port is free, a certificate cannot be read.
        """
        with self._lock:
            self._release()
            self._process, ready = start_program(
                "jobpipe.coordinator.data.data_process",
                {
                    "config": self._config.to_dict(),
                    "host": self._interface,
                    "instance": self._instance,
                    "secret": self._secret,
                },
                timeout=START_SECONDS,
                keep_stdin=True,
                keep_stdout=True,
                log_file=self._config.home / "logs" / "data.log",
            )
            self._endpoint = Endpoint(self._advertised, ready["port"])
            assert self._process.stdout is not None  # noqa: S101 - it was kept
            threading.Thread(target=self._listen, args=(self._process.stdout,), name="counts", daemon=True).start()
            for told in self._topics.values():
                self._write(told)
            if self._hosts:
                self._write({"hosts": self._hosts})

    def announce_topic(self, topic: str, directory: Path, place: str) -> None:
        """Say where a topic's spool is, and its place in the folders of host servers."""
        with self._lock:
            self._topics[topic] = {"topic": topic, "directory": str(directory), "place": place}
            self._write(self._topics[topic])

    def announce_hosts(self, hosts: dict[str, str | None]) -> None:
        """Say where host servers are; None for a lost one."""
        with self._lock:
            self._hosts = hosts
            self._write({"hosts": hosts})

    def end(self) -> None:
        """Let the process end; kill it after a while."""
        with self._lock:
            self._release()

    def _listen(self, output: IO[bytes]) -> None:
        """Pass on what a data process reports, until its end; what it reported last is not known then."""
        try:
            with output:
                for line in output:
                    self.on_line(read_line(line))
        except Exception:  # without it the ledgers' time stands still, and nothing is judged
            log.exception("what the data process reports is not read any more")
        finally:
            self.on_line(Doubt())

    def _write(self, told: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:  # it died; it gets them when it is started again
            log.warning("the data process cannot be told of %s: %s", ", ".join(told), error)

    def _release(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            try:
                process.stdin.close()  # its sign to end
            except OSError:
                log.debug("the data process is gone already")
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
