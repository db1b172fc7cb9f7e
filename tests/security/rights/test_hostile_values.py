"""Hostile values of every field of every operation, from the requests' own definitions, over real TLS links.

No process stumbles, no other client waits, and the answer says which field of which operation is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jobpipe.errors import JobpipeError, LinkError, RemoteProtocolError
from jobpipe.net.links.async_link import Link, connect
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.net.tls.tls_context import Credentials, client_context
from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.operations.data_operations import DATA
from jobpipe.operations.host_operations import HOSTSERVER
from jobpipe.operations.messages.message_fields import checks
from jobpipe.operations.messages.operation import Operation, Table
from jobpipe.wire import Hello
from jobpipe.wire.frames import Kind, crc_of, encode_header
from tests.operations.hostile import MISSING, VALUES, bad_requests, whole
from tests.security.conftest import Served
from tests.security.kit import TIMING, TOPIC
from tests.security.rights.test_rights import dial

pytestmark = pytest.mark.zookeeper

MOST = 50 * 1024 * 1024  # bytes that any process may grow by
DELAY = 0.5  # seconds that another client may wait longer than it does alone
ROOT = Path(__file__).parents[3]
SIDE_BY_SIDE = 16
LARGE = ("10^5 characters", "a long list", "wide objects")


@contextlib.contextmanager
def polling(served: Served) -> Iterator[list[float]]:
    """Poll beside the block, from a process of its own, for the attack keeps this one busy; fill the list at the end.

    It holds by how many seconds each answer was late.
    """
    late: list[float] = []
    files, control = served.world.audit, served.control
    order = {"control": [control.host, control.port], "files": [str(files.ca), str(files.cert), str(files.key)]}
    command = [sys.executable, "-m", "tests.security.floods.polling"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"connected\n"
            yield late
            out, _ = process.communicate(timeout=30.0)
            late += json.loads(out)
        finally:
            process.kill()


def requests_of(operation: Operation, role: str) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield (field that is wrong, arguments); without a field: what is odd, and may be asked all the same.

    Large values come at one field of each operation: they cost this process most of the time.
    """
    bad = list(bad_requests(operation.request))
    first = next(iter(checks(operation.request)), None)
    bad = [each for each in bad if each[0] == first or each[1] not in LARGE]
    yield from ((field, args) for field, _, args in bad)
    if role == "publisher":  # it would do so
        return
    known, right = {repr(args) for _, _, args in bad}, whole(operation.request)
    for name in checks(operation.request):
        for what, value in VALUES.items():
            if value is not MISSING and what not in LARGE and repr(odd := {**right, name: value}) not in known:
                yield None, odd


async def attack(
    served: Served, where: str, known: Table, files: Credentials, role: str, job: str | None
) -> tuple[int, list[str]]:
    """Ask with all of it as one role; return how many requests there were, and what was wrong with the answers."""
    wrong: list[str] = []
    count = 0
    endpoint, tls = getattr(served, where), client_context(files)
    hello = Hello(TOPIC, role, "billing", instance=f"hostile-{role}")
    link = await connect(endpoint, hello, tls=tls, server_hostname=topic_server_name(TOPIC), timing=TIMING)
    gate = asyncio.Semaphore(SIDE_BY_SIDE)

    async def ask(operation: Operation, field: str | None, args: dict[str, Any]) -> None:
        about = f"{where} {role} {operation.name} {field}: {str(args)[:200]}"
        async with gate:
            try:
                await link.call(operation.name, args if job is None else {**args, "job": job}, timeout=30.0)
            except LinkError as error:
                wrong.append(f"{about}: {error!r}")
            except RemoteProtocolError as error:
                if field is not None and (field not in error.message or operation.name not in error.message):
                    wrong.append(f"{about}: {error!r}")
            except JobpipeError as error:
                if type(error) is JobpipeError:  # our own code stumbled
                    wrong.append(f"{about}: {error!r}")
            else:
                if field is not None:
                    wrong.append(f"{about}: was taken")

    try:
        asked: list[asyncio.Task[None]] = []
        for operation in known.values():
            if role in operation.roles and operation.name not in ("open",):
                asked += [
                    asyncio.create_task(ask(operation, field, args)) for field, args in requests_of(operation, role)
                ]
        count = len(asked)
        await asyncio.gather(*asked)
    finally:
        await _close(link)
    return count, wrong


async def _close(link: Link) -> None:
    with contextlib.suppress(JobpipeError):
        await link.close()


def logs(served: Served) -> dict[Path, int]:
    """Return the log files and their sizes."""
    return {path: path.stat().st_size for path in (Path(served.base["jobpipe.home"]) / "logs").rglob("*.log")}


@pytest.mark.slow
def test_hostile_values(served: Served) -> None:
    """S1, S3, S5, S10: NaN, infinity, huge, negative, long, deep, of the wrong type, missing: at every field."""
    world, coordinator = served.world, psutil.Process(served.publisher.coordinator.process.pid)
    secret = served.publisher.coordinator.secret
    processes = [coordinator, *coordinator.children()]
    with polling(served) as quiet:
        time.sleep(1.0)
    sizes, memory = logs(served), [process.memory_info().rss for process in processes]
    count, wrong = 0, []
    with polling(served) as late:
        for where, known in (("control", CONTROL), ("data", DATA), ("host", HOSTSERVER)):
            for role in ("reader", "subscriber", "admin", "publisher"):
                files = world.orders if role == "publisher" else world.billing
                job = secret if role == "publisher" and where == "control" else None
                more, bad = asyncio.run(attack(served, where, known, files, role, job))
                count, wrong = count + more, wrong + bad
    print(f"{count} requests; late by at most {max(late):.3f} s, in quiet {max(quiet):.3f} s")
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:20])
    assert count > 1000
    assert max(late) < DELAY + max(quiet)
    grown = [process.memory_info().rss - before for process, before in zip(processes, memory, strict=True)]
    assert max(grown) < MOST, grown
    for path in logs(served):
        said = path.read_bytes()[sizes.get(path, 0) :].decode(errors="replace")
        assert "Traceback" not in said, said[-3000:]
        assert len(said) < 1024 * 1024
    assert served.publisher.status()["topic"] == TOPIC
    rows = served.publisher.status()["rows"]
    assert rows > 0


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1" * 5000, "[" * 100_000])
def test_tokens_that_are_no_json(served: Served, token: str) -> None:
    """S1: what Python's JSON takes and no standard knows ends the link with a fault, and nothing else."""
    link = dial(served, served.world.billing, "reader")
    with link:
        text = b'{"args":{"wait":' + token.encode() + b'},"id":1,"op":"poll"}'
        payload = len(text).to_bytes(4, "big") + text
        link._socket.sendall(encode_header(Kind.REQUEST, len(payload), crc_of(Kind.REQUEST, payload)) + payload)
        with pytest.raises(RemoteProtocolError):
            link.call("bounds", {}, timeout=10.0)
    with dial(served, served.world.billing, "reader") as again:
        assert again.call("bounds", {}, timeout=10.0).result["head"]["n"] > 0
