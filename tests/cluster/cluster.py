"""A Spark standalone cluster of several hosts, with a ZooKeeper host, from the installed PySpark.

``zookeeper`` and ``master`` are hosts of their own; executors run on ``worker-1`` to ``worker-3``; drivers on
``edge-1`` to ``edge-3``, where no executor is. Each host has its own configuration file, certificate of the one CA,
spool and Spark folders, all on its own disk.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark

from jobpipe.net.address import Endpoint
from jobpipe.net.tls import certificates
from tests.cluster.hosts import Host, Network, OnHost, until
from tests.harness.jvm import QUICK, quick_plain

JOBS = Path(__file__).parent / "jobs"
WORKERS = ("worker-1", "worker-2", "worker-3")
EDGES = ("edge-1", "edge-2", "edge-3")
NAMES = ("zookeeper", "master", *WORKERS, *EDGES)
SESSION = "4s"  # of the registry
START_SECONDS = 90.0  # of a JVM, on a machine that may be very busy
CORES = 4  # of a worker; more than there are, since its tasks wait most of the time
SPARK = Path(pyspark.__file__).parent
ZOO_CFG = """\
tickTime=2000
minSessionTimeout=4000
dataDir={disk}/zookeeper
clientPort=2181
clientPortAddress={address}
admin.enableServer=false
4lw.commands.whitelist=srvr
"""


@dataclass(frozen=True)
class Executor:
    """An executor of an application."""

    host: Host
    process: psutil.Process  # its JVM


class Cluster:
    """Everything that runs before the first application; to be used as a context manager.

    Args:
        network: its hosts, of which it needs :data:`NAMES`.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.zookeeper, self.master = network["zookeeper"], network["master"]
        self.workers = [network[name] for name in WORKERS]
        self.edges = [network[name] for name in EDGES]
        self._issue_certificates()
        for host in network.hosts.values():
            self.configure(host)

    def _issue_certificates(self) -> None:
        """Do what ``jobpipe certs init`` and, for each host, ``jobpipe certs issue`` do."""
        folder = self.network.folder / "ca"
        certificates.init_ca(folder)
        for host in self.network.hosts.values():
            files = certificates.issue(folder, host.name, dns=["*.topic.jobpipe", f"{host.name}.jobpipe"])
            own = host.disk / "certs"
            own.mkdir(mode=0o700)
            for file, name in ((files.ca, "ca.crt"), (files.cert, "own.crt"), (files.key, "own.key")):
                with open(own / name, "wb", opener=_private) as copy:
                    copy.write(file.read_bytes())

    def configure(self, host: Host, **changes: Any) -> None:
        """Write a host's ``jobpipe.yaml`` and access list, by which every host may do everything.

        Args:
            host: whose.
            changes: top-level keys of the section ``jobpipe``.
        """
        disk = self.network.disk
        settings = {
            "home": str(disk / "home"),
            "registerserver": {
                "connect": f"{self.zookeeper.address}:2181",
                "topic.storage": "/cluster/topics",
                "session.timeout": SESSION,
            },
            "sinkserver": {"subnet": self.network.subnet},
            "spool": {"dir": str(disk / "spool")},
            "ssl": {name: str(disk / "certs" / file) for name, file in _SSL.items()},
            **changes,
        }
        names = [f"{name}.jobpipe" for name in self.network.hosts]
        rights = {"publish": names, "read": {name: ["*"] for name in names}, "admin": names}
        # JSON is YAML.
        (host.disk / "access.yaml").write_text(json.dumps({"*": rights}))
        whole = {"jobpipe": settings, "security": {"access": str(disk / "access.yaml")}}
        (host.disk / "jobpipe.yaml").write_text(json.dumps(whole))

    def __enter__(self) -> Cluster:
        disk, zookeeper = self.network.disk, self.zookeeper
        (zookeeper.disk / "zoo.cfg").write_text(ZOO_CFG.format(disk=disk, address=zookeeper.address))
        java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if "JAVA_HOME" in os.environ else "java"
        server = "org.apache.zookeeper.server.ZooKeeperServerMain"
        options = (*QUICK.split(), "-Xmx128m", "-Dzookeeper.jmx.log4j.disable=true")
        zookeeper.start("zookeeper", java, *options, "-cp", f"{SPARK}/jars/*", server, str(disk / "zoo.cfg"))
        master = self._daemon(self.master, "Master", "--port", "7077", "--webui-port", "8080")
        master.until_said("New state: ALIVE", START_SECONDS)
        workers = [self._start_worker(host) for host in self.workers]
        for worker in workers:
            worker.until_said("Successfully registered with master", START_SECONDS)
        until(self._zookeeper_serves, "an answer of ZooKeeper", START_SECONDS)
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing: all ends with the hosts."""

    @property
    def url(self) -> str:
        """The master's."""
        return f"spark://{self.master.address}:7077"

    def _start_worker(self, host: Host) -> OnHost:
        folder = str(self.network.disk / "work")
        return self._daemon(host, "Worker", "--cores", str(CORES), "--memory", "4g", "--work-dir", folder, self.url)

    def restart(self, host: Host) -> None:
        """Start a worker host that was killed; returns when the master has it."""
        host.boot()
        self._start_worker(host).until_said("Successfully registered with master", START_SECONDS)

    def _zookeeper_serves(self) -> bool:
        ask = (
            "import socket\n"
            f"with socket.create_connection(({self.zookeeper.address!r}, 2181), 2) as s:\n"
            " s.sendall(b'srvr'); print(s.recv(4096).decode())"
        )
        with contextlib.suppress(AssertionError):
            return "Mode: standalone" in self.zookeeper.run("python", "-c", ask)
        return False

    def environ(self, host: Host) -> dict[str, str]:
        """Return the environment of Spark's programs on a host."""
        disk = self.network.disk
        return {
            "JOBPIPE_CONFIG": str(disk / "jobpipe.yaml"),
            "PYSPARK_PYTHON": os.environ["PYSPARK_PYTHON"],
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": host.address,
            "SPARK_LOCAL_DIRS": str(disk / "spark"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": quick_plain(),
            "SPARK_LOG_LEVEL": "INFO",
        }

    def _daemon(self, host: Host, kind: str, *arguments: str) -> OnHost:
        program = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        command = (str(SPARK / "bin" / "spark-class"), program, "--host", host.address, *arguments)
        return host.start(kind.lower(), *command, environ=self.environ(host))

    def submit(
        self, host: Host, job: str, order: Mapping[str, Any], conf: Mapping[str, str], *, name: str = ""
    ) -> OnHost:
        """Start ``jobs/JOB.py`` as an application in client mode, its driver on ``host``.

        Args:
            order: its one argument, as JSON.
            conf: of Spark.
            name: of the log.
        """
        settings = {
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": quick_plain(),
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": quick_plain(),
            "spark.cores.max": "1",
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": "false",
            "spark.log.level": "WARN",
            **conf,
        }
        pairs = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        command = [str(SPARK / "bin" / "spark-submit"), "--master", self.url, *pairs, str(JOBS / f"{job}.py")]
        return host.start(name or job, *command, json.dumps(order), environ=self.environ(host))

    def executors(self, application: str) -> list[Executor]:
        """Return what executors an application (its Spark id) has now."""
        found = []
        for host in self.workers:
            for process in host.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.name() == "java" and _option(process.cmdline(), "--app-id") == application:
                        found.append(Executor(host, process))
        return found

    def jobpipe(self, host: Host, *arguments: str) -> Any:
        """Run a command of jobpipe that prints JSON on a host; return what it says."""
        said = host.run("python", "-m", "jobpipe.cli.main", *arguments, "--json", environ=self.environ(host))
        return json.loads(said)


_SSL = {"ca": "ca.crt", "cert": "own.crt", "key": "own.key"}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1] if name in arguments[:-1] else ""


def host_of(endpoint: str) -> str:
    """Return the host of ``host:port``."""
    return Endpoint.parse(endpoint).host


def port_of(endpoint: str) -> int:
    """Return the port of ``host:port``."""
    return Endpoint.parse(endpoint).port
