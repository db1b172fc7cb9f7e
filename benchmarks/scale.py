"""What one coordinator costs, by unit: CPU seconds per GB and per operation, memory per link, ZooKeeper requests.

All processes are the real ones, on loopback with TLS; subscribers are plain clients, in a process of their own, that
follow the topic and acknowledge without reading rows. CPU seconds are those of each process, so other work on the
machine disturbs them little. Usage: python benchmarks/scale.py [--gigabytes 1] [--subscriptions 1,64,256,1000]
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from jobpipe.config import Config, config_from_dict, load
from jobpipe.discovery.configured_tls import client_tls
from jobpipe.discovery.topic_lookup import locate
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import Link, connect
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import LATEST
from jobpipe.subscribing.fetching.part_fetch import FetchRange, fetch
from jobpipe.wire.wire_messages import Hello
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from jobpipe_registry.embedded.four_letter_words import ask
from jobpipe_registry.zookeeper.zookeeper_tls import make_context

ROWS = pa.table({"id": pa.array(range(65_536), pa.int64()), "text": pa.array(["x" * 100] * 65_536)})
SMALL = pa.table({"id": pa.array(range(10), pa.int64())})
spawn = multiprocessing.get_context("spawn")


class Watched:
    """CPU seconds and memory of processes."""

    def __init__(self, **processes: int) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in processes.items()}

    def cpu(self) -> dict[str, float]:
        """Return user and system seconds since each process's start."""
        times = {name: process.cpu_times() for name, process in self._processes.items()}
        return {name: found.user + found.system for name, found in times.items()}

    def memory(self, name: str) -> float:
        """Return the resident KB of a process that are its own."""
        return float(self._processes[name].memory_full_info().uss) / 1024

    def spent(self, work: Callable[[], object]) -> tuple[float, dict[str, float]]:
        """Return wall seconds, and the CPU seconds of each process, that ``work`` takes."""
        before, start = self.cpu(), time.perf_counter()
        work()
        return time.perf_counter() - start, {name: seconds - before[name] for name, seconds in self.cpu().items()}


@contextmanager
def host_server(config: Config, folder: Path) -> Iterator[int]:
    """Run ``jobpipe server host``; yield its process id."""
    file = folder.with_suffix(".yaml")
    file.write_text(json.dumps(dataclasses.replace(config, hostserver_dir=folder).to_dict()))
    command = [sys.executable, "-m", "jobpipe.cli.main", "--config", str(file), "server", "host"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.terminate()


def publish_bytes(publisher: Publisher, batch_id: int, gigabytes: float, *, local: bool) -> int:
    """Seal one batch of so many bytes as a task writes it; return its bytes."""
    assert publisher.begin(BatchKey("q", batch_id, "r")) is None
    target = publisher.target(1)
    if not local:
        target = dataclasses.replace(target, directory="/nonexistent")
    batch = ROWS.to_batches()[0]
    count = int(gigabytes * 1e9 / batch.nbytes)
    segments = target.write(ROWS.schema, ((batch, 0) for _ in range(count)), "0")
    return publisher.commit(BatchKey("q", batch_id, "r"), target, ROWS.schema, None, segments).bytes


def read_bytes(publisher: Publisher, n: int) -> None:
    """Read one batch as a task does."""
    start, end = (
        Position(publisher.log_id, publisher.epoch if n else 0, n),
        Position(publisher.log_id, publisher.epoch, n + 1),
    )
    for _ in fetch(FetchRange(publisher.topic, start, end, 0, str(publisher.coordinator.data)), publisher.config):
        pass


def bytes_costs(config: Config, folder: Path, gigabytes: float) -> Table:
    """CPU seconds per GB: written through the network, on the spot, and with a host server; read from each."""
    table = Table("what", "GB/s", "task", "data process", "host server", "coordinator", title="CPU seconds per GB")
    with host_server(config, folder) as host:
        publisher = Publisher(
            "bytes", config=dataclasses.replace(config, spool_placement="host", hostserver_dir=folder)
        )
        coordinator = psutil.Process(publisher.coordinator.process.pid)
        (data,) = coordinator.children()
        watched = Watched(task=psutil.Process().pid, data=data.pid, host=host, coordinator=coordinator.pid)
        nowhere = dataclasses.replace(publisher.config, hostserver_dir=Path("/nonexistent"))
        somewhere = publisher.config
        size = 0

        def row(what: str, work: Callable[[], object]) -> None:
            wall, cpu = watched.spent(work)
            each = [f"{cpu[name] / size * 1e9:.2f}" for name in ("task", "data", "host", "coordinator")]
            table.add_row(what, f"{size / wall / 1e9:.2f}", *each)

        def write(batch_id: int, local: bool) -> None:
            nonlocal size
            size = publish_bytes(publisher, batch_id, gigabytes, local=local)

        size = int(gigabytes * 1e9)
        for n, (what, settings, local) in enumerate((
            ("uploaded to the coordinator's host", nowhere, False),
            ("straight into the spool, on the coordinator's host", nowhere, True),
            ("with the host server of the task's host", somewhere, False),
        )):  # fmt: skip
            publisher.config = settings
            row(f"write: {what}", lambda n=n, local=local: write(n, local))  # type: ignore[misc]
            row("   read it", lambda n=n: read_bytes(publisher, n))  # type: ignore[misc]
        publisher.close()
    return table


# -- control -----------------------------------------------------------------------------------------------------------


async def _follow(
    config: Config, topic: str, endpoint: Endpoint, names: list[str], pipe: Connection, *, poll: bool
) -> None:
    """Be many subscribers: each plans, which waits, acknowledges and brings the rows; tell how far all are.

    With ``poll`` each polls for news, then plans: two requests a batch.
    """
    tls = client_tls(config)
    reached = dict.fromkeys(names, 0)

    async def one(name: str, link: Link) -> None:
        granted = (await link.call("grant", {"host": "bench", "pid": 1}, timeout=300.0)).result
        grant = granted["grant"]
        first = await link.call("first", {"grant": grant, "start": LATEST.to_json()}, timeout=300.0)
        at = first.result["position"]
        news = {key: granted[key] for key in ("head", "ended", "waiting")}
        reached[name] = at["n"]
        while True:
            if poll:
                news = (await link.call("poll", {**news, "wait": 15.0}, timeout=30.0)).result
            more = {} if poll else {"wait": 15.0, "held": True}
            plan = (await link.call("plan", {"grant": grant, "start": at, **more}, timeout=30.0)).result
            at = plan["end"]
            reached[name] = at["n"]

    links = []
    for name in names:
        hello = Hello(topic=topic, role="subscriber", name=name, instance=name)
        links.append(await connect(endpoint, hello, tls=tls, server_hostname=topic_server_name(topic)))
    tasks = [asyncio.create_task(one(name, link)) for name, link in zip(names, links, strict=True)]
    pipe.send("ready")
    while True:
        wanted = await asyncio.to_thread(pipe.recv)
        if wanted is None:
            break
        while min(reached.values()) < wanted:
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.002)
        pipe.send(time.time())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for link in links:
        link.abort()


def follow(settings: dict[str, str], topic: str, count: int, pipe: Connection, poll: bool = False) -> None:
    """Run so many subscribers in this process."""
    config = config_from_dict(settings)
    names = [f"s{number}" for number in range(count)]
    asyncio.run(_follow(config, topic, locate(config, topic, 30.0).control, names, pipe, poll=poll))


def control_costs(config: Config, counts: list[int], batches: int, *, poll: bool) -> Table:
    """Seals with many subscriptions: CPU of the coordinator per batch and subscription, delay of the last of them."""
    table = Table(
        "subscriptions",
        "KB a link",
        "coordinator, CPU ms a seal",
        "CPU ms a batch and subscription",
        "batches/s",
        "last one has it after ms, p50",
        title="control",
    )
    for count in counts:
        table.add_row(str(count), *_control_row(config, count, batches, poll=poll))
    return table


def _control_row(config: Config, count: int, batches: int, *, poll: bool) -> list[str]:
    topic = f"control{count}"
    publisher = Publisher(topic, config=config)
    watched = Watched(coordinator=publisher.coordinator.process.pid)
    mine, theirs = spawn.Pipe()

    def seal(batch_ids: range) -> None:
        for batch_id in batch_ids:
            publisher.seal("q", batch_id, [SMALL], run_id="r")

    def reach(n: int) -> float:
        mine.send(n)
        return float(mine.recv())

    seal(range(1))
    _, alone = watched.spent(lambda: seal(range(1, batches + 1)))
    before = watched.memory("coordinator")
    process = spawn.Process(target=follow, args=(config.to_dict(), topic, count, theirs, poll))
    process.start()
    theirs.close()
    mine.recv()
    n = batches + 1
    seal(range(n, n + 1))
    reach(n + 1)
    memory = (watched.memory("coordinator") - before) / count
    delays = []
    for number in range(n + 1, n + 21):
        seal(range(number, number + 1))
        sealed = time.time()
        delays.append(reach(number + 1) - sealed)
    n += 21

    def in_step() -> None:
        for number in range(n, n + batches):
            seal(range(number, number + 1))
            reach(number + 1)

    wall, busy = watched.spent(in_step)
    mine.send(None)
    process.join(30)
    publisher.close()
    end_coordinators()
    one = alone["coordinator"] / batches
    each = (busy["coordinator"] / batches - one) / count
    median = sorted(delays)[len(delays) // 2]
    return [f"{memory:.0f}", f"{one * 1e3:.2f}", f"{each * 1e3:.3f}", f"{batches / wall:.0f}", f"{median * 1e3:.1f}"]


# -- registry ----------------------------------------------------------------------------------------------------------


def registry_costs(config: Config) -> Table:
    """Packets that ZooKeeper received: per start, per batch, per idle minute; its heartbeats left out."""
    table = Table("what", "requests", title="ZooKeeper")
    server = EmbeddedZooKeeper(config.home)
    port, tls = int(server.ensure().rpartition(":")[2]), make_context(server.tls)

    def received() -> int:
        for line in (ask(port, "srvr", tls) or "").splitlines():
            if line.startswith("Received:"):
                return int(line.split()[1])
        raise RuntimeError("ZooKeeper does not answer srvr")

    def row(what: str, work: Callable[[], object], per: int = 1) -> None:
        before = received()
        work()
        table.add_row(what, f"{(received() - before - 1) / per:.1f}")  # the question is one, too

    made: list[Any] = []
    row("publisher starts, 4 partitions", lambda: made.append(Publisher("zk", config=config, parallelism=4)))
    publisher: Publisher = made[0]
    row("batch, acks=stored", lambda: [publisher.seal("q", b, [SMALL], run_id="r") for b in range(100)], 100)
    import jobpipe

    reader = jobpipe.subscribe("zk", name="s", starting="earliest", config=config)
    row("subscriber starts and reads 100 batches", lambda: list(reader.batches(timeout=0.5)))
    row("one minute of publisher and subscriber", lambda: time.sleep(60))
    row("subscriber ends", reader.close)
    row("publisher ends", publisher.close)
    end_coordinators()
    slow = Publisher("zk2", config=dataclasses.replace(config, acks="all"), min_subscribers=1)
    with jobpipe.subscribe("zk2", name="s", starting="earliest", config=config) as last:
        reading = threading.Thread(target=lambda: list(last.batches(timeout=5.0)))
        reading.start()
        slow.seal("q", 0, [SMALL], run_id="r")
        row("batch, acks=all", lambda: [slow.seal("q", b, [SMALL], run_id="r") for b in range(1, 51)], 50)
        reading.join()
    slow.close()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--subscriptions", default="1,64,256,1000")
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--poll", action="store_true", help="subscribers poll, then plan: two requests a batch")
    parser.add_argument("--only", choices=("bytes", "control", "registry"))
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="jobpipe-scale-") as home:
        many = dict.fromkeys(("max_connections", "max_connections_per_address", "max_connections_per_identity"), "5000")
        limits = {f"sinkserver.{name}": value for name, value in {**many, "connection_rate": "5000"}.items()}
        config = load(overrides={"home": home, **limits}, environ={})
        try:
            if options.only in (None, "bytes"):
                console.print(bytes_costs(config, Path(home) / "segments", options.gigabytes))
                end_coordinators()
            if options.only in (None, "control"):
                counts = [int(text) for text in options.subscriptions.split(",")]
                console.print(control_costs(config, counts, options.batches, poll=options.poll))
            if options.only in (None, "registry"):
                console.print(registry_costs(config))
        finally:
            end_coordinators()
            EmbeddedZooKeeper(Path(home)).stop()


if __name__ == "__main__":
    main()
