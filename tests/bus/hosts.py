"""Host servers for tests: the program, with a folder of its own."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

from jobpipe.config import Config
from jobpipe.net.address import Endpoint
from tests.bus.kit import PATIENCE


class HostServer:
    """The program ``jobpipe server host`` with a folder of its own."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.folder = folder
        self.file = folder.with_suffix(".yaml")
        changed = dataclasses.replace(config, hostserver_dir=folder, hostserver_port=(20_000, 27_000))
        self.file.write_text(json.dumps(changed.to_dict()))
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it can be found."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jobpipe.cli.main", "--config", str(self.file), "server", "host"],
            stdout=subprocess.PIPE,
            text=True,
        )
        killer = threading.Timer(PATIENCE, self._process.kill)
        killer.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        killer.cancel()
        assert line.startswith("host server "), line
        words = line.split()
        self.id, self.endpoint = words[2], Endpoint.parse(words[4])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it and wait for that; return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(PATIENCE)
        finally:
            process.kill()
            assert process.stdout is not None
            process.stdout.close()

    def files(self) -> list[Path]:
        """Return the segment files it keeps."""
        return sorted(self.folder.glob("topics/*/*/segments/*.seg"))
