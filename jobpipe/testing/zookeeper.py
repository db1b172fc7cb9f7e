"""ZooKeeper to be hurt: a server and, before it, a proxy."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from jobpipe.testing.program import END_SECONDS
from jobpipe.testing.proxy import FaultProxy
from registry.embedded import EmbeddedZooKeeper
from registry.embedded_files import USER

__all__ = ["ZooKeeper"]


class ZooKeeper:
    """A ZooKeeper that may be stopped and started; ``proxy`` stands before it, so its address stays.

    Args:
        home: Of its data.
        shared: It is others' too: joined, not started alone, it may not be hurt, and :meth:`close` leaves it.
    """

    def __init__(self, home: Path, *, shared: bool = False) -> None:
        self._server = EmbeddedZooKeeper(home, linger=120.0)
        self._shared = shared
        self.proxy = FaultProxy(self._server.ensure())

    @property
    def endpoint(self) -> str:
        """What to connect to."""
        return self.proxy.endpoint

    @property
    def settings(self) -> dict[str, str]:
        """How a job reaches it, through the proxy, as keys of the configuration."""
        return {
            "registerserver.connect": self.endpoint,
            "registerserver.sasl.mechanism": "DIGEST-MD5",
            "registerserver.sasl.username": USER,
            "registerserver.sasl.password": f"file:{self._server.secret_file}",
        }

    @property
    def sasl_options(self) -> dict[str, str]:
        """What a kazoo client authenticates with."""
        return {"mechanism": "DIGEST-MD5", "username": USER, "password": self._server.secret_file.read_text()}

    def start(self) -> None:
        """Start it again, with all its data."""
        self.proxy.upstream = self._server.ensure()

    def stop(self) -> None:
        """End it."""
        self._refuse_shared()
        self._server.stop()

    def kill(self) -> None:
        """``kill -9``, and no supervisor that starts it again."""
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait(END_SECONDS)

    def suspend(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        for process in self._processes():
            process.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        for process in self._processes():
            process.resume()

    def close(self) -> None:
        """End server and proxy."""
        try:
            if not self._shared:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.resume()
                self._server.stop()
        finally:
            self.proxy.close()

    @property
    def left(self) -> bool:
        """True while a server of its own runs: not after :meth:`close`."""
        return not self._shared and self._server.status() is not None

    def _refuse_shared(self) -> None:
        if self._shared:
            raise RuntimeError("this ZooKeeper is others' too: hurt the proxy before it, or start one of your own")

    def _processes(self) -> list[psutil.Process]:
        """The supervisor, which must go first, and Java."""
        self._refuse_shared()
        status = self._server.status()
        if status is None:
            return []
        return [psutil.Process(status.pid), psutil.Process(status.java_pid)]
