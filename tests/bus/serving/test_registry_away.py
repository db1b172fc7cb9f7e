"""ZooKeeper goes away and comes back while data flow: its own server, on a private home."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from jobpipe.config import Config, load
from jobpipe.discovery.topic_lookup import locate
from jobpipe.errors import RegistryUnavailable
from jobpipe.net.tls.certificates import ensure_home
from jobpipe.testing import Checker, NumberedRows
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from tests.bus.kit import PATIENCE, Bus, alive, kill, publish, read, until
from tests.harness.zookeeper import settings_of


@pytest.mark.slow
def test_zookeeper_stopped_and_back(tmp_path: Path) -> None:
    """Case 21: publishing and reading go on without it; afterwards all is registered anew, and a newcomer finds it."""
    zookeeper = EmbeddedZooKeeper(tmp_path / "zk")
    connect = zookeeper.ensure()
    files = ensure_home(tmp_path / "home")
    settings = {
        "jobpipe.home": str(tmp_path / "home"),
        # The address, not "embedded": no job of the test may start it again.
        **{f"jobpipe.{key}": value for key, value in settings_of(zookeeper, connect).items()},
        "jobpipe.registerserver.topic.storage": f"/away-{uuid.uuid4().hex[:8]}/topics",
        "jobpipe.registerserver.session.timeout": "4s",
        "jobpipe.registerserver.connect.timeout": "2s",
        "jobpipe.sinkserver.subnet": "127.0.0.0/8",
        "jobpipe.discovery.timeout": "20s",
        "jobpipe.ssl.ca": str(files.ca),
        "jobpipe.ssl.cert": str(files.cert),
        "jobpipe.ssl.key": str(files.key),
    }

    def configure(changes: dict[str, str]) -> Config:
        return load(overrides={**settings, **changes}, environ={})

    bus = Bus("orders", configure)
    rows = NumberedRows("orders", partitions=2, rows=500, payload=100)
    try:
        publisher = bus.publisher(parallelism=2)
        reader = bus.reader("all", rows)
        publish(publisher, rows, bus.journal, range(3))
        reader.wait_rows(3000)
        before = (publisher.epoch, publisher.log_id, reader.subscription._follower.reconnects)

        running = zookeeper.status()
        assert running is not None
        kill(running.pid)
        kill(running.java_pid)
        until(lambda: not alive(running.pid) and not alive(running.java_pid), PATIENCE, "the registry is dead")
        away = time.monotonic()
        for batch_id in range(3, 15):  # longer than the session lives
            publish(publisher, rows, bus.journal, [batch_id])
            reader.wait_rows(bus.journal.rows, timeout=10)
            time.sleep(max(0.0, away + 0.5 * (batch_id - 2) - time.monotonic()))
        with pytest.raises(RegistryUnavailable, match=connect):
            bus.subscribe("newcomer").position()
        assert time.monotonic() - away > 6

        assert zookeeper.ensure() == connect, "it came back on another port"
        located = until(lambda: _located(bus.config()), PATIENCE, "registered again")
        assert located.epoch == publisher.epoch
        late = Checker(rows, bus.journal)
        read(bus.subscribe("newcomer"), late, bus.journal.rows)
        assert late.check().rows == 15_000
        publish(publisher, rows, bus.journal, [15])
        publisher.close(final=True)
        reader.join()
        assert reader.checker.check(max_pause=20).rows == 16_000
        # Nobody noticed: no reconnect, no new epoch.
        assert (publisher.epoch, publisher.log_id, reader.subscription._follower.reconnects) == before
    finally:
        bus.close()
        zookeeper.stop()


def _located(config: Config) -> object:
    try:
        return locate(config, "orders", 1.0)
    except Exception:
        return None
