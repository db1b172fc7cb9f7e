"""The data process's answers where disks hang and batches go away meanwhile."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.config import load
from jobpipe.coordinator.data.data_server import DataService
from jobpipe.errors import DataLoss, SegmentCorrupt
from jobpipe.net.links.async_link import Link
from jobpipe.store.catalog.position import Position
from jobpipe.store.log.retention import Retention
from jobpipe.store.log.topic_log import TopicLog
from jobpipe.store.reading.catalog_reader import CatalogReader
from jobpipe.wire.wire_messages import Request
from tests.store.build import seal

AT_ONCE = Retention(time=0.0, bytes=0, ack_grace=0.0, subscription_expiry=1e9)
PATIENCE = 20.0


class Peer:
    """A link that acts when it is told of the first piece."""

    def __init__(self, topic: str, act: Any = None) -> None:
        self.hello = SimpleNamespace(topic=topic, role="reader")
        self.data = b""
        self._act = act

    async def send_part(self, request_id: int, described: dict[str, Any]) -> None:
        if self._act is not None:
            self._act()

    async def send_data(self, data: memoryview, crc: int) -> None:
        self.data += bytes(data)


def service(spool: Path) -> DataService:
    config = replace(load(environ={}), spool_dir=spool)
    trust = SimpleNamespace(require=lambda *_: None)
    return DataService(config, "instance", cast(Any, trust), "secret")


def opened(spool: Path, topic: str) -> TopicLog:
    log = TopicLog.open(spool / topic, topic, fsync=False)
    log.take_over(1, "publisher")
    return log


async def fetch(data: DataService, peer: Peer, start: Position, end: Position) -> dict[str, Any]:
    args = {"start": start.to_json(), "end": end.to_json(), "partition": 0}
    async with asyncio.timeout(PATIENCE):
        return (await data.handle(cast(Link, peer), Request(1, "fetch", args)))[0]


def test_a_spool_that_hangs_holds_up_its_own_topic_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R15: and a peer that gives up leaves no further thread behind for each attempt."""
    log = opened(tmp_path, "other")
    end = seal(log, 0, inline=False)
    opened(tmp_path, "hung").close()
    release, real = threading.Event(), CatalogReader.open

    def opening(directory: Path, topic: str) -> CatalogReader:
        if topic == "hung":
            release.wait(PATIENCE)
        return real(directory, topic)

    monkeypatch.setattr(CatalogReader, "open", opening)

    async def scenario() -> None:
        data = service(tmp_path)
        waiting = [asyncio.ensure_future(data._catalog("hung")) for _ in range(50)]
        await asyncio.sleep(0)
        peer = Peer("other")
        assert (await fetch(data, peer, log.batches.at(0), end))["rows"] == 1
        assert peer.data
        assert sum(thread.name.startswith("read-hung") for thread in threading.enumerate()) == 1
        for one in waiting[:25]:
            one.cancel()
        await asyncio.sleep(0)
        release.set()
        async with asyncio.timeout(PATIENCE):
            assert len({id(await one) for one in waiting[25:]}) == 1
        await data.close()
        assert not data._opening

    try:
        asyncio.run(scenario())
    finally:
        release.set()
    log.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read-") and alive(thread)]


def alive(thread: threading.Thread) -> bool:
    thread.join(PATIENCE)
    return thread.is_alive()


@pytest.mark.parametrize("removed", [True, False])
def test_a_file_that_goes_between_the_look_and_the_mapping(tmp_path: Path, removed: bool) -> None:
    """R15: what retention took is data loss, with the range; a file that is gone by itself is damage."""
    log = opened(tmp_path, "orders")
    end = seal(log, 0, inline=False)

    def act() -> None:
        if removed:
            log.cleaner.retain(AT_ONCE)
        else:
            for file in log.segments.iterdir():
                file.unlink()

    async def scenario() -> None:
        data = service(tmp_path)
        try:
            await fetch(data, Peer("orders", act), log.batches.at(0), end)
        finally:
            await data.close()

    with pytest.raises(DataLoss if removed else SegmentCorrupt) as caught:
        asyncio.run(scenario())
    assert not removed or caught.value.fields["reason"] == "removed"
    log.close()


def test_a_file_that_goes_before_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R15: between the catalog's answer and the look at the files; no read of the catalog is open then (R8)."""
    from jobpipe.store.reading import catalog_reader as module

    log = opened(tmp_path, "orders")
    end = seal(log, 0, inline=False)
    reader = CatalogReader.open(tmp_path / "orders", "orders")
    real = module.check_length

    def looking(path: Path, needed: int) -> None:
        assert not reader._db._connection.in_transaction
        log.cleaner.retain(AT_ONCE)
        real(path, needed)

    monkeypatch.setattr(module, "check_length", looking)
    with pytest.raises(DataLoss) as caught:
        reader.segments(log.batches.at(0), end, 0)
    assert caught.value.fields["reason"] == "removed"
    reader.close()
    log.close()
