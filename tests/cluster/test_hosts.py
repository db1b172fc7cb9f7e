"""The hosts themselves: what is one host's is not another's, and all of it vanishes."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.hosts import Network, until, why_impossible

pytestmark = pytest.mark.cluster
SECONDS = 20.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Network]:
    """Two hosts."""
    if why := why_impossible():
        pytest.skip(why)
    with Network(["one", "two"], tmp_path) as network:
        yield network


def _links() -> set[str]:
    return set(psutil.net_if_addrs())


def test_hosts_are_apart(pair: Network) -> None:
    """Each has its own name, address, processes and disk; what is shared is shared."""
    one, two = pair["one"], pair["two"]
    assert one.run("hostname") == "one\n"
    assert two.run("hostname") == "two\n"
    assert socket.gethostname() not in ("one", "two")
    for host in (one, two):
        (host.disk / "whose").write_text(host.name)
        assert host.run("cat", str(pair.disk / "whose")) == host.name
        address = "import jobpipe.net.address as a; print(a.pick_interface('10.77.0.0/24', embedded=False))"
        assert host.run("python", "-c", address) == f"{host.address}\n"
    assert not (pair.disk / "whose").exists()  # on the machine itself there is nothing
    one.run("touch", str(pair.shared / "seen"))
    two.run("ls", str(pair.shared / "seen"))
    sleeper = one.start("sleeper", "sleep", "600")
    # "nsenter" enters the host, then becomes the program
    until(lambda: [process.name() for process in one.processes()] == ["sleep"], "the process alone", SECONDS)
    assert two.processes() == []
    sleeper.kill()
    until(lambda: one.processes() == [], "no process", SECONDS)


def test_cables_and_power(pair: Network) -> None:
    """A cut host is silent and comes back; a killed one takes its processes along, keeps its disk, and boots again."""
    one, two = pair["one"], pair["two"]
    server = ("python", "-m", "http.server", "8000", "--bind", two.address)
    ask = (
        "import urllib.request, urllib.error\ntry: urllib.request.urlopen('http://two:8000/', timeout=2)\n"
        "except (urllib.error.URLError, TimeoutError): print('silence')"
    )

    def answers() -> bool:
        return one.run("python", "-c", ask) == ""

    two.start("web", *server, environ={"PYTHONUNBUFFERED": "1"}).until_said("Serving", SECONDS)
    assert answers()
    with two.away():
        assert not answers()
    until(answers, "an answer of the host that was away", SECONDS)
    (two.disk / "kept").touch()
    before = two.processes()
    assert before
    two.kill()
    assert not any(process.is_running() for process in before)
    assert not answers()
    two.boot()
    assert two.processes() == []
    two.start("web-again", *server, environ={"PYTHONUNBUFFERED": "1"}).until_said("Serving", SECONDS)
    until(answers, "an answer of the host that was started again", SECONDS)
    assert (two.disk / "kept").exists()


def test_nothing_is_left(tmp_path: Path) -> None:
    """Neither processes nor links nor folders."""
    if why := why_impossible():
        pytest.skip(why)
    links, mounts = _links(), Path("/proc/self/mounts").read_text()
    with Network(["one"], tmp_path) as network:
        network["one"].start("sleeper", "sleep", "600")
        until(lambda: network["one"].processes(), "a process", SECONDS)
        left = [network["one"].init, network.switch.init, *network["one"].processes()]
        assert _links() == links
    assert not any(process.is_running() for process in left)
    assert not network.folder.exists()
    assert Path("/proc/self/mounts").read_text() == mounts


def test_hosts_end_with_their_maker(tmp_path: Path) -> None:
    """A test run that is killed leaves no host."""
    if why := why_impossible():
        pytest.skip(why)
    program = (
        "import sys, time; from pathlib import Path; from tests.cluster.hosts import Network\n"
        f"network = Network(['one'], Path({str(tmp_path)!r})).__enter__()\n"
        "print(network['one'].init.pid, network.switch.init.pid, network.folder, flush=True); time.sleep(600)"
    )
    root = Path(__file__).parents[2]
    command = ["env", f"PYTHONPATH={root}", sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        *pids, folder = maker.stdout.readline().split()
        inits = [psutil.Process(int(pid)) for pid in pids]
        maker.kill()
    assert psutil.wait_procs(inits, SECONDS)[1] == []
    shutil.rmtree(folder)
