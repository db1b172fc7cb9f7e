"""Hosts made of Linux namespaces: each has its own processes, name, disk, and address on a network of their own.

A :class:`Network` is a switch, a bridge in a network namespace that holds nothing else, and hosts that hang on it by a
cable (veth) each. A host is process 1 (``host_init.py``) of its own namespaces of processes, mounts, names and network:
when it ends, the kernel ends everything on that host and takes its cable away. Nothing is made in the machine's own
network, and all hosts end with the process that made them.

Two folders have the same path on every host: ``disk``, behind which each host has another one, and ``shared``, one for
all. Everything else of the machine's files is there too: programs are installed on all hosts alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.harness.program import module_of

ROOT = Path(__file__).parents[2]
UNSHARE = ("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
BOOT_SECONDS = 20.0
END_SECONDS = 20.0
SHORT_SECONDS = 60.0  # of a program that is waited for
POLL_SECONDS = 0.2  # the machine has better things to do


def why_impossible() -> str:
    """Return what keeps this machine from having such hosts; empty if nothing does."""
    for tool in ("unshare", "nsenter", "ip", "mount"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (packages util-linux and iproute2)"
    if os.geteuid() != 0:
        return "only root may make network and mount namespaces here"
    switch = [*UNSHARE, "ip", "link", "add", "switch", "type", "bridge"]
    tried = subprocess.run(switch, capture_output=True, text=True, timeout=BOOT_SECONDS, check=False)
    return "" if tried.returncode == 0 else f"namespaces with a bridge are not allowed here: {tried.stderr.strip()}"


def until(condition: Callable[[], Any], what: str, timeout: float, *, every: float = POLL_SECONDS) -> Any:
    """Wait until the condition holds, looking each ``every`` seconds; return its value.

    Raises:
        AssertionError: it does not within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(every)
    return value


class OnHost:
    """A program that runs on a host; its output goes to ``log``. Its process ids are those of the machine."""

    def __init__(self, host: Host, name: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.host = host
        self.name = name
        self.log = host.network.log(f"{name}@{host.name}")
        with self.log.open("ab") as log:
            self._entered = subprocess.Popen(
                host.inside(*command, environ=environ), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def __repr__(self) -> str:
        return f"{self.name} on {self.host.name}"

    @property
    def alive(self) -> bool:
        """True until it has ended."""
        return self._entered.poll() is None

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._entered.poll()

    def family(self) -> list[psutil.Process]:
        """Return its processes that live, its first one first; those that left its session are not of them."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for first in psutil.Process(self._entered.pid).children():
                return [first, *(child for child in first.children(recursive=True) if not _is_apart(child))]
        return []

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its first process."""
        for process in self.family()[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        """``kill -9`` of all its processes; they are gone on return."""
        family = self.family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _, left = psutil.wait_procs(family, END_SECONDS)
        assert not left, f"{self}: {left} go on running"
        self._entered.wait(END_SECONDS)

    def terminate(self, timeout: float = END_SECONDS) -> int:
        """Send SIGTERM to its first process; return the exit code.

        Raises:
            AssertionError: it did not end in time.
        """
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float) -> int:
        """Wait for its end; return the exit code.

        Raises:
            AssertionError: it did not come in time.
        """
        try:
            return self._entered.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} did not end within {timeout:g} s:\n{self.log_end()}") from None

    def said(self, text: str) -> bool:
        """Tell whether its output has this text by now."""
        return text in self.log.read_text(errors="replace")

    def until_said(self, text: str, timeout: float) -> None:
        """Wait until its output has this text.

        Raises:
            AssertionError: it ended before, or the time is over.
        """

        def found() -> bool:
            assert self.said(text) or self.alive, f"{self} ended with code {self.code}:\n{self.log_end()}"
            return self.said(text)

        until(found, f"{text!r} of {self}, whose output ends so:\n{self.log_end()}", timeout)

    def log_end(self, lines: int = 25) -> str:
        """Return the end of its output, without the frames of Java's stack traces."""
        said = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in said if not line.startswith("\tat ")][-lines:])


def _is_apart(process: psutil.Process) -> bool:
    try:
        return module_of(process).startswith("jobpipe.coordinator")
    except psutil.NoSuchProcess:
        return False


class Host:
    """One host.

    Attributes:
        name, address: as the other hosts know it.
        disk: what lies behind the path ``network.disk`` here.
    """

    def __init__(self, network: Network, name: str, address: str) -> None:
        self.network = network
        self.name = name
        self.address = address
        self.disk = network.folder / "disks" / name
        (self.disk / "tmp").mkdir(parents=True)
        self._unshared: subprocess.Popen[str] | None = None
        self._init: psutil.Process | None = None
        self._programs: list[OnHost] = []

    def __repr__(self) -> str:
        return f"{self.name} ({self.address})"

    @property
    def init(self) -> psutil.Process:
        """Process 1 of the host."""
        assert self._init is not None, f"{self} is not up"
        return self._init

    @property
    def up(self) -> bool:
        """True from :meth:`boot` to :meth:`kill`."""
        return self._init is not None

    def boot(self) -> None:
        """Start the host, again after :meth:`kill`: the same disk, no processes, its cable plugged in."""
        log = self.network.logs / f"host-{self.name}.log"
        with log.open("ab") as errors:
            self._unshared = subprocess.Popen(
                [*UNSHARE, sys.executable, "-I", str(Path(__file__).with_name("host_init.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._unshared.stdin is not None
        assert self._unshared.stdout is not None
        network = self.network
        binds = [
            (self.disk, network.disk),
            (network.folder / "disks" / "shared", network.shared),
            (network.folder / "hosts", "/etc/hosts"),
        ]
        order = {"name": self.name, "binds": [[str(source), str(target)] for source, target in binds]}
        self._unshared.stdin.write(json.dumps(order) + "\n")
        self._unshared.stdin.flush()
        assert self._unshared.stdout.readline() == "ready\n", f"{self} does not start: {log.read_text()}"
        [self._init] = psutil.Process(self._unshared.pid).children()
        if self is not network.switch:
            network.plug(self)

    def kill(self) -> None:
        """End the host with all that runs on it, which is gone on return. Idempotent.

        The kernel ends its connections with a word to their other ends, unless the host was cut off before.
        """
        if self._unshared is None or self._init is None:
            return
        processes = [self._init, *self._init.children(recursive=True)] if self._init.is_running() else []
        with contextlib.suppress(psutil.NoSuchProcess):
            self._init.kill()
        assert self._unshared.stdin is not None
        assert self._unshared.stdout is not None
        self._unshared.stdin.close()
        self._unshared.wait(END_SECONDS)
        self._unshared.stdout.close()
        left = psutil.wait_procs(processes, END_SECONDS)[1]
        for program in self._programs:
            program.wait(END_SECONDS)
        self._unshared = self._init = None
        self.network.unplug(self)
        assert not left, f"{self}: {left} go on running"

    def inside(self, *command: str, environ: Mapping[str, str] | None = None) -> list[str]:
        """Return the command that runs ``command`` here, in the folder of the disk, with this environment only."""
        disk = self.network.disk
        given = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HOME": str(disk),
            "TMPDIR": str(disk / "tmp"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            **({"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}),
            **(environ or {}),
        }
        variables = [f"{key}={value}" for key, value in given.items()]
        return ["nsenter", "-t", str(self.init.pid), "-a", "env", "-i", "-C", str(disk), *variables, *command]

    def start(self, name: str, *command: str, environ: Mapping[str, str] | None = None) -> OnHost:
        """Start a program here; returns at once."""
        self._programs.append(OnHost(self, name, command, environ or {}))
        return self._programs[-1]

    def run(self, *command: str, environ: Mapping[str, str] | None = None, timeout: float = SHORT_SECONDS) -> str:
        """Run a program here to its end; return what it wrote to its standard output.

        Raises:
            AssertionError: it failed, or did not end in time.
        """
        try:
            done = subprocess.run(
                self.inside(*command, environ=environ), capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{command} on {self} did not end within {timeout:g} s") from None
        assert done.returncode == 0, f"{command} on {self}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def processes(self) -> list[psutil.Process]:
        """Return all that runs here now, but process 1 and what was started by :meth:`run`."""
        inside = os.readlink(f"/proc/{self.init.pid}/ns/pid")
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.readlink(f"/proc/{process.pid}/ns/pid") == inside and process.pid != self.init.pid:
                    found.append(process)
        return found

    def process(self, pid: int) -> psutil.Process:
        """Return the process that has this id on the host itself."""
        for process in self.processes():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                if re.search(rf"^NSpid:.*\s{pid}$", status, re.MULTILINE):
                    return process
        raise AssertionError(f"{self}: there is no process {pid}")

    def cut(self) -> None:
        """Pull the cable out: nothing comes and nothing goes, and nobody is told."""
        self.network.switch_command("link", "set", f"to-{self.name}", "down")

    def mend(self) -> None:
        """Put the cable back in."""
        self.network.switch_command("link", "set", f"to-{self.name}", "up")

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Cut the host off for the block."""
        self.cut()
        try:
            yield
        finally:
            self.mend()


class Network:
    """A switch and its hosts, all up; to be used as a context manager.

    Args:
        names: of the hosts; at most ten characters each, since a cable's end is named by it.
        logs: a folder for the output of their programs.
        first_three: of the addresses; the network is a /24.

    Attributes:
        disk, shared: the two paths that are the same on all hosts; short, since sockets are made below them.
    """

    def __init__(self, names: Sequence[str], logs: Path, first_three: str = "10.77.0") -> None:
        self.logs = logs
        self.subnet = f"{first_three}.0/24"
        self.folder = Path(tempfile.mkdtemp(prefix="hosts-"))
        self.disk, self.shared = self.folder / "disk", self.folder / "shared"
        for folder in (self.disk, self.shared, self.folder / "disks" / "shared"):
            folder.mkdir(parents=True)
        self.switch = Host(self, "switch", "")
        self.hosts = {name: Host(self, name, f"{first_three}.{10 + number}") for number, name in enumerate(names)}
        lines = [f"{host.address} {host.name}" for host in self.hosts.values()]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def __enter__(self) -> Network:
        try:
            self.switch.boot()
            self.switch_command("link", "add", "bridge", "type", "bridge")
            self.switch_command("link", "set", "bridge", "up")
            for host in self.hosts.values():
                host.boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def log(self, name: str) -> Path:
        """Return a new file for the output of a program."""
        before = len(list(self.logs.glob(f"{name}*.log")))
        return self.logs / (f"{name}-{before + 1}.log" if before else f"{name}.log")

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    @property
    def shared_disk(self) -> Path:
        """What lies behind the path ``shared`` on all hosts, as this process sees it."""
        return self.folder / "disks" / "shared"

    def switch_command(self, *arguments: str) -> None:
        """Run ``ip`` at the switch."""
        _ip(self.switch, arguments)

    def unplug(self, host: Host) -> None:
        """Take a host's cable away: the namespace lives on for as long as a connection wants to say its last word."""
        if host is not self.switch and self.switch.up:
            with contextlib.suppress(AssertionError):  # it went with the namespace
                self.switch_command("link", "delete", f"to-{host.name}")

    def plug(self, host: Host) -> None:
        """Lay a cable from a host to the switch."""
        end = f"to-{host.name}"
        other = ("peer", "name", "eth0", "netns", str(host.init.pid))
        self.switch_command("link", "add", end, "type", "veth", *other)
        self.switch_command("link", "set", end, "master", "bridge", "up")
        mac = ":".join(["02", "00", *(f"{int(part):02x}" for part in host.address.split("."))])  # the same at each boot
        _ip(host, ["link", "set", "eth0", "address", mac])
        _ip(host, ["address", "add", f"{host.address}/24", "dev", "eth0"])
        _ip(host, ["link", "set", "lo", "up"])
        _ip(host, ["link", "set", "eth0", "up"])

    def close(self) -> None:
        """End all hosts, and remove their disks."""
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder)
            for host in (self.switch, *self.hosts.values()):
                stack.callback(host.kill)


def _ip(host: Host, arguments: Sequence[str]) -> None:
    command = ["nsenter", "-t", str(host.init.pid), "-n", "ip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOOT_SECONDS, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)} at {host}: {done.stderr}"
