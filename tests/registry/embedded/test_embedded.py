"""The life of the embedded ZooKeeper: started once, joined by all, gone by itself."""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from kazoo.client import KazooClient

from jobpipe_registry.embedded.embedded_files import EmbeddedFiles, EmbeddedState, is_alive, start_time
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedStatus, EmbeddedZooKeeper, find_jars, find_java
from jobpipe_registry.embedded.four_letter_words import ask, count_sessions, is_serving
from jobpipe_registry.host.local_files import is_locked, locked_file
from jobpipe_registry.host.process_identity import PidScope
from jobpipe_registry.registry_errors import Unavailable
from jobpipe_registry.zookeeper.kazoo_client import TlsHandler
from jobpipe_registry.zookeeper.zookeeper_tls import make_context
from tests.registry.worlds import eventually

pytestmark = pytest.mark.zookeeper


def running(server: EmbeddedZooKeeper) -> EmbeddedStatus:
    status = server.status()
    assert status is not None
    return status


def gone(status: EmbeddedStatus) -> bool:
    def ended(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return ended(status.pid) and ended(status.java_pid)


def client_of(server: EmbeddedZooKeeper) -> KazooClient:
    """Return a client with the home's certificate; the server is started if need be."""
    connect = server.ensure()
    client = KazooClient(hosts=connect, timeout=4.0, handler=TlsHandler(server.tls), use_ssl=True)
    client.start()
    return client


def end(client: KazooClient) -> None:
    client.stop()
    client.close()


@pytest.mark.slow
def test_start_join_and_stop(home: Path) -> None:
    server = EmbeddedZooKeeper(home)
    assert server.status() is None
    assert server.stop() is False
    endpoint = server.ensure()
    status = running(server)
    assert status.endpoint == endpoint
    assert EmbeddedZooKeeper(home).ensure() == endpoint
    assert running(EmbeddedZooKeeper(home)) == status
    assert server.stop() is True
    assert server.status() is None
    eventually(lambda: gone(status))
    assert server.stop() is False


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_a_home_with_an_umlaut(home: Path, locale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the locale C Java takes names of files for ASCII, where Python takes them for UTF-8."""
    monkeypatch.setenv("LC_ALL", locale)
    server = EmbeddedZooKeeper(home / "Bücher für ナオミ")
    try:
        client = client_of(server)
        client.create("/here")
        end(client)
    finally:
        server.stop()


def other_addresses() -> list[str]:
    """Return this host's IPv4 addresses beyond loopback."""
    addresses = [address for interface in psutil.net_if_addrs().values() for address in interface]
    found = [address.address for address in addresses if address.family == socket.AF_INET]
    return [address for address in found if not ipaddress.ip_address(address).is_loopback]


@pytest.mark.slow
def test_it_is_private(home: Path) -> None:
    server = EmbeddedZooKeeper(home)
    server.ensure()
    status = running(server)
    client = client_of(server)  # so that there is a connection, too
    sockets = [each for pid in (status.pid, status.java_pid) for each in psutil.Process(pid).net_connections("inet")]
    end(client)
    assert {ipaddress.ip_address(each.laddr.ip.removeprefix("::ffff:")).is_loopback for each in sockets} == {True}
    assert [each.laddr.port for each in sockets if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)] == [
        status.port
    ], "one server socket and no datagrams: no admin server, no JMX, no election"
    for address in other_addresses():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, status.port), 2.0)
    assert stat.S_IMODE((home / "zookeeper").stat().st_mode) == 0o700
    assert psutil.Process(status.java_pid).cwd() == str(home / "zookeeper")


@pytest.mark.slow
def test_ten_processes_start_one_server(home: Path) -> None:
    program = (
        "import sys; from pathlib import Path; "
        "from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper as E; "
        "s = E(Path(sys.argv[1])); e = s.ensure(); print(e, s.status().pid, s.status().java_pid)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(home)], stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    answers = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 10
    assert len(set(answers)) == 1
    status = running(EmbeddedZooKeeper(home))
    assert answers[0].split() == [status.endpoint, str(status.pid), str(status.java_pid)]
    marker = str(home / "zookeeper")
    supervisors = [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if marker in (process.info["cmdline"] or [])
        and "jobpipe_registry.embedded.embedded_server" in process.info["cmdline"]
    ]
    assert supervisors == [status.pid]


@pytest.mark.slow
def test_it_outlives_its_starter_and_keeps_its_data(home: Path) -> None:
    server = EmbeddedZooKeeper(home)
    client = client_of(server)
    client.create("/kept", b"data")
    end(client)
    assert server.stop()
    client = client_of(server)
    assert client.get("/kept")[0] == b"data"
    end(client)


@pytest.mark.slow
def test_it_comes_back_where_it_was(home: Path) -> None:
    """Case 21: those who still have a session go on with it; only if another program took the port it is elsewhere."""
    server = EmbeddedZooKeeper(home)
    endpoint = server.ensure()
    client = client_of(server)
    session = client.client_id
    assert server.stop()
    assert server.ensure() == endpoint
    assert client.retry(client.exists, "/") is not None
    assert client.client_id == session
    end(client)
    assert server.stop()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(endpoint.rpartition(":")[2])))
        taken.listen()
        assert server.ensure() != endpoint


@pytest.mark.slow
def test_it_ends_by_itself_after_its_last_session(home: Path) -> None:
    server = EmbeddedZooKeeper(home, linger=1.0)
    client = client_of(server)
    status = running(server)
    tls = make_context(server.tls)
    assert count_sessions(ask(status.port, "mntr", tls)) == 1
    time.sleep(1.5)  # longer than it lingers: the session alone keeps it
    assert running(server) == status
    end(client)
    eventually(lambda: server.status() is None)
    eventually(lambda: gone(status))
    assert not is_serving(status.port, tls)
    assert not is_locked(home / "zookeeper" / "server.lock")


@pytest.mark.slow
def test_it_ends_when_its_folder_is_gone(home: Path) -> None:
    server = EmbeddedZooKeeper(home, linger=3600.0)
    server.ensure()
    status = running(server)
    shutil.rmtree(home)
    eventually(lambda: gone(status))


@pytest.mark.slow
def test_joining_keeps_it(home: Path) -> None:
    server = EmbeddedZooKeeper(home, linger=1.0)
    server.ensure()
    status = running(server)
    stop = time.monotonic() + 1.5
    while time.monotonic() < stop:
        server.ensure()
        time.sleep(0.1)
    assert running(server) == status


@pytest.mark.slow
def test_java_dies_with_a_killed_supervisor(home: Path) -> None:
    server = EmbeddedZooKeeper(home)
    endpoint = server.ensure()
    status = running(server)
    os.kill(status.pid, signal.SIGKILL)
    eventually(lambda: gone(status))
    assert server.status() is None
    assert server.ensure() == endpoint  # where the clients of the dead one look for it
    assert running(server).pid != status.pid


@pytest.mark.slow
def test_a_stopped_supervisor_is_killed_by_stop(home: Path) -> None:
    server = EmbeddedZooKeeper(home)
    server.ensure()
    status = running(server)
    os.kill(status.pid, signal.SIGSTOP)
    assert server.stop(timeout=2.0) is True
    eventually(lambda: gone(status))


@pytest.mark.slow
def test_a_stale_state_is_noticed(home: Path) -> None:
    server, files = EmbeddedZooKeeper(home), EmbeddedFiles(home / "zookeeper")
    files.make()
    child = subprocess.Popen([sys.executable, "-c", ""])
    created = start_time(child.pid)
    child.wait(10)
    dead = EmbeddedState("ready", "t", socket.gethostname(), child.pid, created, child.pid, created, 1, created)
    reused = replace(dead, pid=os.getpid(), java_pid=os.getpid())  # alive, but it started at another time
    for state in (dead, reused, replace(reused, phase="starting"), replace(dead, port=0, phase="failed")):
        files.write_state(state)
        assert server.status() is None
        assert server.stop() is False
    (home / "zookeeper" / "state.json").write_text("{")
    assert server.status() is None
    files.write_state(reused)
    server.ensure()
    assert running(server).pid not in (child.pid, os.getpid())


def test_a_live_process_without_the_lock_is_no_server(home: Path) -> None:
    """Pid and start time fit, but the kernel knows better."""
    files, created = EmbeddedFiles(home / "zookeeper"), start_time(os.getpid())
    files.make()
    files.write_state(EmbeddedState("ready", "t", socket.gethostname(), os.getpid(), created, 0, 0.0, 1, created))
    assert EmbeddedZooKeeper(home).status() is None


def test_a_home_on_two_hosts_is_refused(home: Path) -> None:
    server, files = EmbeddedZooKeeper(home), EmbeddedFiles(home / "zookeeper")
    files.make()
    files.write_state(EmbeddedState("ready", "t", "another-host", 1, 1.0, 2, 1.0, 1, 1.0))
    calls: list[Callable[[], Any]] = [server.ensure, server.stop]
    with locked_file(files.server_lock, 1.0):
        for call in calls:
            with pytest.raises(Unavailable) as caught:
                call()
            assert "another-host" in caught.value.reason


def test_missing_java_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable) as caught:
        EmbeddedZooKeeper(home).ensure()
    assert "jre" in caught.value.reason
    with pytest.raises(Unavailable):
        EmbeddedZooKeeper(home, java=str(tmp_path / "java")).ensure()
    assert not is_locked(home / "zookeeper" / "server.lock")


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(program)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert find_java() != str(program)


def test_java_that_fails_is_reported_with_its_words(home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "java"
    broken.write_text("#!/bin/sh\necho 'no such heap' >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(Unavailable) as caught:
        EmbeddedZooKeeper(home, java=str(broken)).ensure()
    assert "no such heap" in caught.value.reason
    eventually(lambda: not is_locked(home / "zookeeper" / "server.lock"))


def test_options_that_are_no_words_are_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_JVMFLAGS", "-Dname='open")
    with pytest.raises(Unavailable, match="SERVER_JVMFLAGS are no words of a shell: No closing quotation"):
        EmbeddedZooKeeper(home).ensure()
    assert EmbeddedZooKeeper(home).status() is None


def test_missing_pyspark_is_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobpipe_registry.embedded.embedded_zookeeper.importlib.util.find_spec", lambda _: None)
    with pytest.raises(Unavailable):
        EmbeddedZooKeeper(home).ensure()


def test_pyspark_is_found_without_an_import() -> None:
    program = "import sys; from jobpipe_registry.embedded.embedded_zookeeper import find_jars; find_jars()"
    program += "; assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert list(find_jars().glob("zookeeper-3.*.jar"))


def test_a_starter_that_hangs_is_not_waited_for_for_ever(home: Path) -> None:
    files = EmbeddedFiles(home / "zookeeper")
    files.make()
    server = EmbeddedZooKeeper(home)
    calls: list[Callable[[], Any]] = [lambda: server.ensure(timeout=0.2), lambda: server.stop(timeout=0.2)]
    with locked_file(files.start_lock, 1.0):
        for call in calls:
            with pytest.raises(Unavailable):
                call()


def test_a_process_is_known_by_pid_and_start_time() -> None:
    assert is_alive(os.getpid(), start_time(os.getpid()))
    assert not is_alive(os.getpid(), start_time(os.getpid()) - 60)
    child = subprocess.Popen([sys.executable, "-c", ""])
    created = start_time(child.pid)
    eventually(lambda: not is_alive(child.pid, created))  # a zombie until we wait
    child.wait(10)
    assert not is_alive(child.pid, created)
    assert start_time(child.pid) == 0.0


def test_a_home_of_two_containers_is_refused(home: Path) -> None:
    """R3: with one host name and pids of their own; what has that pid here is another process and is not ended."""
    server, files = EmbeddedZooKeeper(home), EmbeddedFiles(home / "zookeeper")
    files.make()
    here, created = PidScope.here(), start_time(os.getpid())
    state = EmbeddedState("ready", "t", here.host, os.getpid(), created, os.getpid(), created, 1, created)
    for other in (state, replace(state, boot=here.boot, pid_namespace=here.pid_namespace + 1)):
        files.write_state(other)
        assert server.stop() is False  # without the lock: nothing is killed for it
        with locked_file(files.server_lock, 1.0), pytest.raises(Unavailable, match="another container") as caught:
            server.stop(timeout=0.5)
        assert str(os.getpid()) in caught.value.reason
