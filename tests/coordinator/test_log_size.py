"""A coordinator keeps the catalogs of its topics short: what the store can do, each tick does."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.store.spool.spool_files import Reserve
from tests.coordinator.kit import World, run
from tests.store.build import seal
from tests.store.catalog.test_log_size import MIB, ROWS, log_bytes, overlapping_readers


async def sealed(topic: ServedTopic, *, ticks: bool) -> int:
    """Seal 12 MiB while two readers read; return how many bytes the catalog's log had at most."""
    largest = batch_id = 0
    with overlapping_readers(topic.store.directory, topic.topic):
        while topic.store.batches.used_bytes() < 12 * MIB:
            batch_id += 1
            await topic.run(seal, topic.store, batch_id, ROWS)
            if ticks and batch_id % 5 == 0:
                await topic.tick(retain=False)
                topic.store._shorten_at = 0.0
            largest = max(largest, await topic.run(log_bytes, topic.store))
    return largest


@pytest.mark.slow
def test_a_tick_shortens_the_log_of_a_catalog_that_is_read_steadily(tmp_path: Path) -> None:
    """R8: 53 MB with one busy reader, and growing with two; outside `spool.max_bytes` and the disk's reserve."""

    async def work() -> None:
        world = World(tmp_path)
        host = world.host()
        topic = await host.open_topic("orders", world.order())
        assert await sealed(topic, ticks=True) < Reserve.BYTES + 2 * MIB
        await host.close()
        world.close()

    run(work())
