"""ZooKeeper to be hurt: a server and, before it, a proxy."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from jobpipe_registry.credentials import Tls
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from tests.harness.program import END_SECONDS
from tests.harness.proxies.proxy import FaultProxy


def settings_of(server: EmbeddedZooKeeper, connect: str) -> dict[str, str]:
    """Return how a job reaches an embedded ZooKeeper that is not its home's, as keys of the configuration."""
    tls = server.tls
    return {
        "registerserver.connect": connect,
        "registerserver.ssl.enabled": "true",
        "registerserver.ssl.ca": str(tls.ca),
        "registerserver.ssl.cert": str(tls.cert),
        "registerserver.ssl.key": str(tls.key),
    }


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
        return settings_of(self._server, self.endpoint)

    @property
    def tls(self) -> Tls:
        """What a client of the test's own authenticates with."""
        return self._server.tls

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
