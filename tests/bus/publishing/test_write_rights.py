"""S8: the right ``publish`` alone touches no files of another job. R4: who uploads says if a file is forced to disk."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobpipe.config import Config
from jobpipe.coordinator.data import data_server as data_module
from jobpipe.coordinator.data.data_server import DataService
from jobpipe.discovery.configured_tls import client_tls
from jobpipe.discovery.topic_lookup import locate
from jobpipe.errors import NotAuthorized, RemoteProtocolError
from jobpipe.hostserver import host_handlers as host_module
from jobpipe.hostserver.host_handlers import HostHandlers
from jobpipe.net.address import Endpoint
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.servers.write_tokens import log_place, write_ticket
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.publishing.batch_admission import BatchKey
from jobpipe.publishing.coordinator_launcher import end_coordinators
from jobpipe.publishing.topic_publisher import Publisher
from jobpipe.store.spool.host_folder import HostFolder
from jobpipe.testing import Checker, Journal, NumberedRows
from jobpipe.wire.wire_messages import Hello, Request
from tests.bus.hosts import HostServer
from tests.bus.kit import PATIENCE, Bus, coordinator_of, data_process_of, kill, read, until

LOG, WRITE = "0123456789abcdef", "fedcba9876543210"
HOST = {"spool.placement": "host", "hostserver.lost_after": "60s", "read.timeout": "30s"}


def dial(config: Config, topic: str, endpoint: Endpoint) -> BlockingLink:
    """Open a link as any holder of the right to publish can."""
    hello = Hello(topic=topic, role="publisher", instance="another job")
    return BlockingLink.connect(endpoint, hello, tls=client_tls(config), server_hostname=topic_server_name(topic))


def put(link: BlockingLink, args: dict[str, Any]) -> None:
    """Upload three bytes."""
    with link:
        link.start_upload("put", {"length": 3, **args}, length=3, timeout=10)
        link.send_data(b"abc")
        link.end_upload(timeout=10)


# -- a coordinator's spool ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_are_taken_from_the_jobs_own_tasks_only(bus: Bus) -> None:
    """S8: neither without a ticket nor with that of another batch, topic or job."""
    publisher = bus.publisher()
    publisher.begin(BatchKey("q", 0, "r1"))
    target = publisher.target()
    name, secret = f"{target.write_id}-0.seg", publisher.coordinator.secret
    folder = publisher.config.spool_dir / publisher.topic / "segments"
    wrong: list[Any] = [
        "",
        7,
        "\udcff",
        secret,
        write_ticket(secret, publisher.topic, WRITE),
        write_ticket(secret, "another", target.write_id),
        write_ticket("another job", publisher.topic, target.write_id),
    ]
    for ticket in wrong:
        with pytest.raises((NotAuthorized, RemoteProtocolError)):
            put(dial(bus.config(), bus.topic, Endpoint.parse(target.data)), {"file": name, "ticket": ticket})
    with pytest.raises(NotAuthorized, match="of the job that publishes"):
        put(dial(bus.config(), bus.topic, Endpoint.parse(target.data)), {"file": name})
    assert not (folder / name).exists()
    put(dial(bus.config(), bus.topic, Endpoint.parse(target.data)), {"file": name, "ticket": target.ticket})
    assert (folder / name).read_bytes() == b"abc"


@pytest.mark.slow
def test_a_ticket_outlives_the_data_process(bus: Bus) -> None:
    """S8: the one that is started again knows the job's secret, too."""
    publisher = bus.publisher()
    publisher.begin(BatchKey("q", 0, "r1"))
    target = publisher.target()
    kill(data_process(publisher))
    until(lambda: fresh_data(bus, publisher) != Endpoint.parse(target.data), PATIENCE, "another data process")
    name = f"{target.write_id}-1.seg"
    put(dial(bus.config(), bus.topic, fresh_data(bus, publisher)), {"file": name, "ticket": target.ticket})


def data_process(publisher: Publisher) -> int:
    return data_process_of(coordinator_of(publisher))


def fresh_data(bus: Bus, publisher: Publisher) -> Endpoint:
    return locate(bus.config(), publisher.topic, PATIENCE).data


def test_what_tasks_get_is_shown_nowhere(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """S8: a target is shown in logs and errors; the job's own secret does not travel at all."""
    caplog.set_level(logging.DEBUG)
    publisher = bus.publisher()
    publisher.begin(BatchKey("q", 0, "r1"))
    target = publisher.target()
    seen = repr(target) + str(target) + caplog.text + json.dumps(publisher.status(), default=str)
    seen += "".join(file.read_text() for file in (publisher.config.home / "logs").glob("*.log"))
    assert len(target.ticket) == len(target.log_token) == 64
    for hidden in (target.ticket, target.log_token, publisher.coordinator.secret):
        assert hidden not in seen
    assert publisher.coordinator.secret.encode() not in pickle.dumps(target)


# -- a host server's folder --------------------------------------------------------------------------------------------


@pytest.fixture
def kept(own_bus: Bus, tmp_path: Path) -> Iterator[tuple[Bus, HostServer, Publisher, NumberedRows, Journal]]:
    """A publisher with a batch at a host server."""
    server = HostServer(own_bus.config(HOST), tmp_path / "a")
    try:
        publisher = own_bus.publisher({**HOST, "hostserver.dir": str(server.folder)})
        rows, journal = NumberedRows(own_bus.topic, partitions=1, rows=2000, payload=100), own_bus.journal
        with journal.sealing(0, rows.ranges(0)):
            publisher.seal("q", 0, rows.tables(0))
        yield own_bus, server, publisher, rows, journal
        own_bus.close()
        end_coordinators()
    finally:
        server.end()


@pytest.mark.slow
def test_another_publishers_files_stay(kept: tuple[Bus, HostServer, Publisher, NumberedRows, Journal]) -> None:
    """S8: without the log's token nothing is written, listed, removed or forgotten; with another it is elsewhere."""
    bus, server, publisher, *_ = kept
    (file,) = server.files()
    where: dict[str, Any] = {"log": publisher.log_id, "file": file.name, "files": [file.name], "after": "", "length": 3}
    for op in ("prepare", "adopt", "files", "remove", "forget_logs"):
        for token in ({}, {"token": ""}, {"token": "../x"}, {"token": 7}, {"token": "0" * 63}):
            link = dial(bus.config(), bus.topic, server.endpoint)
            with link, pytest.raises((NotAuthorized, RemoteProtocolError), match="token"):
                link.call(op, {**where, "idle": 0, **token}, timeout=10)
    with pytest.raises(RemoteProtocolError, match="token"):
        put(dial(bus.config(), bus.topic, server.endpoint), {"log": publisher.log_id, "file": file.name})
    with dial(bus.config(), bus.topic, server.endpoint) as link:
        strange = {**where, "token": secrets.token_hex(32)}
        assert link.call("files", strange, timeout=10).result == {"files": []}
        assert link.call("remove", strange, timeout=10).result == {"removed": 0}
        link.call("prepare", strange, timeout=10)
        assert link.call("forget_logs", {**strange, "idle": 0}, timeout=10).result == {"forgotten": []}
        own = {**where, "token": publisher.target().log_token, "length": file.stat().st_size}
        assert link.call("files", own, timeout=10).result == {"files": [file.name]}
        assert server.files() == [file]
        done = {"prepare": {}, "adopt": {}, "forget_logs": {"forgotten": []}, "remove": {"removed": 1}}
        for op, result in done.items():
            assert link.call(op, {**own, "idle": 0}, timeout=10).result == result
    put(dial(bus.config(), bus.topic, server.endpoint), {**own, "length": 3, "file": file.name})


@pytest.mark.slow
def test_the_token_stays_over_restarts(kept: tuple[Bus, HostServer, Publisher, NumberedRows, Journal]) -> None:
    """S8: of the coordinator, whose catalog has it, and of the host server, which keeps nothing of it."""
    bus, server, publisher, rows, journal = kept
    token = publisher.target().log_token
    server.end(signal.SIGKILL)
    server.start()
    kill(coordinator_of(publisher))
    with journal.sealing(1, rows.ranges(1)):
        publisher.seal("q", 1, rows.tables(1))
    assert publisher.target().log_token == token
    checker = Checker(rows, journal)
    read(bus.subscribe("s"), checker, 4000)
    checker.check()
    assert len({file.parent for file in server.files()}) == 1


def test_a_log_is_forgotten_after_the_servers_own_time(tmp_path: Path, configure: Any) -> None:
    """S8: the time after which another log may go is not the caller's alone."""
    folder = HostFolder(tmp_path / "hosts")
    service, eager = (HostHandlers(folder, cast(Any, Anybody()), keep_seconds=each) for each in (1000.0, 0.0))
    place = folder.prepare("orders", log_place("orders", LOG, "1" * 64))
    (place / f"{WRITE}-0.seg").touch()
    args = {"log": LOG, "token": "2" * 64, "idle": 0}
    try:
        assert asyncio.run(service.handle(a_link(), Request(1, "forget_logs", {**args})))[0] == {"forgotten": []}
        assert place.is_dir()
        found = asyncio.run(eager.handle(a_link(), Request(1, "forget_logs", {**args})))[0]
        assert found == {"forgotten": [place.parent.name]}
    finally:
        folder.close()


def test_a_log_whose_token_is_shown_is_in_use(tmp_path: Path) -> None:
    """One that is only read for long is not for another publisher to remove, whatever token he makes up."""
    folder = HostFolder(tmp_path / "hosts")
    service = HostHandlers(folder, cast(Any, Anybody()), keep_seconds=1000.0)
    place = folder.prepare("orders", log_place("orders", LOG, "1" * 64))
    (place / f"{WRITE}-0.seg").touch()

    def ask(op: str, token: str, **args: Any) -> dict[str, Any]:
        return asyncio.run(service.handle(a_link(), Request(1, op, {"log": LOG, "token": token, **args})))[0]

    def wait() -> None:
        """Let two days pass in which nobody asks."""
        folder._opened = time.time() - 3 * 86400.0
        os.utime(place, (time.time() - 2 * 86400.0,) * 2)

    try:
        wait()
        assert ask("files", "1" * 64, after="") == {"files": [f"{WRITE}-0.seg"]}
        assert ask("forget_logs", "2" * 64, idle=0) == {"forgotten": []}
        wait()
        assert ask("files", "2" * 64, after="") == {"files": []}, "which shows nothing of this log"
        folder._opened = time.time()
        assert ask("forget_logs", "2" * 64, idle=0) == {"forgotten": []}, (
            "nobody could show it while the server was down"
        )
        wait()
        assert ask("forget_logs", "2" * 64, idle=0) == {"forgotten": [place.parent.name]}
    finally:
        folder.close()


# -- R4 ----------------------------------------------------------------------------------------------------------------


class Anybody:
    """Lets everybody do everything."""

    def require(self, *_: Any) -> None:
        pass


def a_link() -> Any:
    hello = Hello(topic="orders", role="publisher", instance="i")
    link = SimpleNamespace(hello=hello, peer_names=(), peer="", proven=False)
    link.note_proof = lambda: setattr(link, "proven", True)
    return link


@pytest.mark.parametrize(("said", "forced"), [({}, True), ({"fsync": True}, True), ({"fsync": False}, False)])
def test_who_uploads_says_if_a_file_is_forced_to_disk(
    tmp_path: Path, configure: Any, monkeypatch: pytest.MonkeyPatch, said: dict[str, bool], forced: bool
) -> None:
    """R4: it was the setting of the sink that had started the process, or of the host server."""
    seen: list[bool] = []

    async def receive(*_: Any, fsync: bool) -> None:
        seen.append(fsync)

    monkeypatch.setattr(data_module, "receive_file", receive)
    monkeypatch.setattr(host_module, "receive_file", receive)
    name = f"{WRITE}-0.seg"
    for fsync in ("true", "false"):
        config = configure({"spool.dir": str(tmp_path / "spool"), "spool.fsync": fsync})
        service = DataService(config, "i", cast(Any, Anybody()), "secret")
        ticket = write_ticket("secret", "orders", WRITE)
        args = {"file": name, "length": 3, "ticket": ticket, **said}
        with pytest.raises(NotAuthorized):
            asyncio.run(service.handle(link := a_link(), Request(1, "put", {**args, "ticket": "0" * 64})))
        assert not link.proven, "it may hold as much as others"
        asyncio.run(service.handle(link, Request(2, "put", args)))
        assert link.proven
    folder = HostFolder(tmp_path / "hosts")
    try:
        host = HostHandlers(folder, cast(Any, Anybody()), keep_seconds=1.0)
        args = {"log": LOG, "token": "1" * 64, "file": name, "length": 3, **said}
        asyncio.run(host.handle(a_link(), Request(1, "put", args)))
    finally:
        folder.close()
    assert seen == [forced] * 3


@pytest.mark.slow
@pytest.mark.parametrize("fsync", [True, False])
def test_a_task_says_what_its_sink_is_set_to(bus: Bus, fsync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: two sinks of one job, and so of one coordinator, may differ."""
    publisher = bus.publisher({"spool.fsync": str(fsync).lower()})
    publisher.begin(BatchKey("q", 0, "r1"))
    target = replace(publisher.target(), instance="on another host", directory="/nowhere", inline_max=0)
    said: list[Any] = []
    real = BlockingLink.start_upload

    def start(link: BlockingLink, op: str, args: dict[str, Any], **more: Any) -> None:
        said.append(args["fsync"])
        real(link, op, args, **more)

    monkeypatch.setattr(BlockingLink, "start_upload", start)
    table = NumberedRows(bus.topic, rows=100).tables(0)[0]
    target.write(table.schema, [(batch, 0) for batch in table.to_batches()], "0-0")
    assert said == [fsync]
