"""A stranger writes to a topic's epoch in a real ZooKeeper: refused, shown, mended, and the topic goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from jobpipe.cli.main import cli
from jobpipe.config import Config
from jobpipe.discovery.epoch_repair import repair_epoch
from jobpipe.discovery.registry_handler import open_handler
from jobpipe.errors import ConfigError, TopicOwned
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.testing import Checker, NumberedRows
from jobpipe_registry.nodes import SetData
from jobpipe_registry.zookeeper.zookeeper_handler import ZooKeeperRegisterServerHandler
from tests.bus.kit import Bus, publish

ROWS = NumberedRows("orders", partitions=2, rows=50, payload=10)


def write_epoch(config: Config, data: bytes) -> None:
    """Write the topic's epoch as a program that may."""
    handler = open_handler(config)
    assert isinstance(handler, ZooKeeperRegisterServerHandler)
    parts = handler._parts()
    parts.nodes.commit([SetData(parts.paths.epoch("orders"), data, -1)])
    handler.shutdown()


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.parametrize(
    "data",
    [b"9223372036854775807", b"9007199254740991", b"garbage", b"x" * 60_000],
    ids=["2^63-1", "2^53-1", "garbage", "60 kB"],
)
def test_refused_shown_and_mended(own_bus: Bus, settings_of_test: dict[str, str], tmp_path: Path, data: bytes) -> None:
    """S6: the publisher goes on with the same log; no row is lost or doubled, and the next epoch is a low one."""

    def repair(*args: str) -> Result:
        return CliRunner().invoke(cli, ["--config", str(file), "registry", "repair", "orders", *args])

    file = tmp_path / "jobpipe.yaml"
    file.write_text(yaml.safe_dump(settings_of_test))
    first = own_bus.publisher(parallelism=2)
    publish(first, ROWS, own_bus.journal, range(3))
    first.close()
    end_coordinators()
    assert repair().exit_code == 0  # nothing to repair

    write_epoch(own_bus.config(), data)
    for _ in range(2):
        with pytest.raises(ConfigError, match="jobpipe registry repair orders --dry-run") as caught:
            own_bus.publisher(parallelism=2)
        assert len(str(caught.value)) < 1000
    shown = repair("--dry-run", "--json")
    facts = json.loads(shown.stdout)
    assert (shown.exit_code, facts["done"], facts["epoch"], facts["to_registered"]) == (1, False, 1, 1)
    assert facts["registered"] == (2**53 - 1 if data == b"9007199254740991" else None)
    assert len(repair("--dry-run").stdout) < 1000
    with pytest.raises(ConfigError):
        own_bus.publisher(parallelism=2)

    mended = repair()
    assert mended.exit_code == 0, mended.output
    assert repair("--dry-run").exit_code == 0
    second = own_bus.publisher(parallelism=2)
    assert (second.log_id, second.epoch) == (first.log_id, 2)
    publish(second, ROWS, own_bus.journal, range(3, 5), run="r2")
    second.close(final=True)
    checker = Checker(ROWS, own_bus.journal).take_all(own_bus.subscribe("all").batches(timeout=30))
    assert checker.check().rows == 5 * 100


@pytest.mark.slow
@pytest.mark.zookeeper
def test_not_while_a_publisher_has_the_topic(own_bus: Bus) -> None:
    """S6: it seals on; what it does later needs no repair."""
    publisher = own_bus.publisher(parallelism=2)
    publish(publisher, ROWS, own_bus.journal, [0])
    write_epoch(own_bus.config(), b"9007199254740991")
    assert repair_epoch(own_bus.config(), "orders", dry_run=True).owner is not None
    with pytest.raises(TopicOwned, match="belongs to"):
        repair_epoch(own_bus.config(), "orders")
    publish(publisher, ROWS, own_bus.journal, [1])
    publisher.close(final=True)
    checker = Checker(ROWS, own_bus.journal).take_all(own_bus.subscribe("all").batches(timeout=30))
    assert checker.check().rows == 2 * 100


@pytest.mark.slow
@pytest.mark.zookeeper
def test_without_the_catalog(own_bus: Bus, tmp_path: Path) -> None:
    """S6: the epoch of the log must be known, from the catalog or from whoever asks."""
    own_bus.publisher(parallelism=2).close()
    end_coordinators()
    write_epoch(own_bus.config(), b"9007199254740991")
    elsewhere = own_bus.config({"spool.dir": str(tmp_path / "elsewhere")})
    with pytest.raises(ConfigError, match="on the host of the spool"):
        repair_epoch(elsewhere, "orders")
    with pytest.raises(ConfigError, match="has epoch 1, not 7"):
        repair_epoch(own_bus.config(), "orders", epoch=7)
    found = repair_epoch(elsewhere, "orders", epoch=7)
    assert (found.to_registered, found.done, found.catalog) == (7, True, None)
    assert own_bus.publisher(parallelism=2).epoch == 8
