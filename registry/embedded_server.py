"""The supervisor of the embedded ZooKeeper: ``python -m registry.embedded_server DIRECTORY …``

A detached process, one per home (it holds ``server.lock`` for its life). It starts Java on a free loopback port, says
"ready" once a real read was answered, starts Java again if it dies or falls silent, and ends when no session was there
for ``linger`` seconds, or on SIGTERM. Java dies with it: see :mod:`registry.parent_bound`.
"""

from __future__ import annotations

import argparse
import logging
import logging.handlers
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from registry.embedded_files import USER, ServerFiles, ServerState, hold, is_alive, start_time
from registry.four_letter import count_sessions, is_serving
from registry.machine import Place

__all__ = ["Supervisor", "main"]

logger = logging.getLogger("registry.embedded_server")

_START_SECONDS = 30.0
_START_ATTEMPTS = 3
_SILENCE_SECONDS = 15.0
_ASK_SECONDS = 2.0
_MAX_RESTARTS = 5  # in a row, each before 60 s of life

# Relative paths: Java reads property files in its own way, and a home may have any name.
_ZOO_CFG = """\
tickTime=2000
minSessionTimeout=4000
dataDir=./data
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
4lw.commands.whitelist=srvr,mntr
maxClientCnxns=1000
maxCnxns=1000
snapCount=10000
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""
# Everything but the greeting is for clients that know the home's secret.
_GUARD = """\
authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider
enforce.auth.enabled=true
enforce.auth.schemes=sasl
"""
# A message is read before its sender is known: 1,000 connections of 64 KiB fit into the heap, and our largest message
# is a few KiB. Data of an older version may be larger, and are still read.
_GUARDED = (
    "-Djava.security.auth.login.config=./jaas.conf",
    "-Djute.maxbuffer=65536",
    "-Dzookeeper.jute.maxbuffer.extrasize=1048576",
)
_JAAS = """\
Server {{
    org.apache.zookeeper.server.auth.DigestLoginModule required user_{user}="{secret}";
}};
"""
_LOG4J = """\
status=error
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName=./zookeeper.log
appender.file.filePattern=./zookeeper.log.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{ISO8601} %-5p %c{1}: %m%n
appender.file.policies.type=SizeBasedTriggeringPolicy
appender.file.policies.size=5MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=1
rootLogger.level=warn
rootLogger.appenderRef.file.ref=file
"""


class _Failed(Exception):
    pass


class Supervisor:
    """One server's life. ``run`` in the main thread: the kernel binds Java to the thread that starts it."""

    def __init__(
        self, files: ServerFiles, *, linger: float, java: str, jars: Path, token: str, guarded: bool = True
    ) -> None:
        self._files = files
        self._linger = linger
        self._command = [
            java,
            "-Xms16m",
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dzookeeper.preAllocSize=4096",  # KiB per log file, instead of 64 MiB
            "-Dlog4j2.configurationFile=./log4j2.properties",
            *(_GUARDED if guarded else []),
            "-cp",
            f"{jars}/*",
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            "./zoo.cfg",
        ]
        self._java: subprocess.Popen[bytes] | None = None
        self._asked = threading.Event()
        pid = os.getpid()
        self._guarded = guarded
        here = Place.here()
        self._state = ServerState(
            *("starting", token, here.host, pid, start_time(pid), 0, 0.0, 0, time.time()),
            boot=here.boot,
            pid_namespace=here.pid_namespace,
            guarded=guarded,
        )

    def stop(self) -> None:
        """Ask ``run`` to end; safe in a signal handler."""
        self._asked.set()

    def run(self) -> None:
        """Keep the server until its end; the caller holds ``server.lock``."""
        former = self._files.read_state()
        if former is not None and former.is_here and is_alive(former.java_pid, former.java_created):
            os.kill(former.java_pid, signal.SIGKILL)
        self._files.write_state(self._state)
        try:
            self._start(self._last_port())
            self._watch()
        except _Failed as error:
            logger.error("%s", error)
            self._files.write_state(replace(self._state, phase="failed", message=str(error)))
        else:
            self._files.remove_state()
        finally:
            self._end_java()

    def _last_port(self) -> int:
        """Return where this home's server listened last, 0 if there was none: who still runs looks for it there."""
        try:
            text = (self._files.directory / "zoo.cfg").read_text()
        except OSError:
            return 0
        found = re.search(r"^clientPort=(\d{1,5})$", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def _start(self, port: int) -> None:
        """Start Java on ``port`` if it is free, else on another one: clients find a restarted server where it was."""
        deadline = time.monotonic() + _START_SECONDS
        (self._files.directory / "log4j2.properties").write_text(_LOG4J)
        secret = self._files.read_secret() if self._guarded else None
        if secret is not None:
            self._files.write_private(self._files.jaas, _JAAS.format(user=USER, secret=secret))
        elif self._guarded:
            raise _Failed(f"{self._files.secret_file} cannot be read")
        for _ in range(_START_ATTEMPTS):
            port = _free_port(port)
            (self._files.directory / "zoo.cfg").write_text(
                _ZOO_CFG.format(port=port) + (_GUARD if self._guarded else "")
            )
            java = self._java = subprocess.Popen(
                [sys.executable, "-P", "-m", "registry.parent_bound", str(os.getpid()), *self._command],
                cwd=self._files.directory,
                stdin=subprocess.DEVNULL,
            )
            self._state = replace(self._state, java_pid=java.pid, java_created=start_time(java.pid), port=port)
            self._files.write_state(self._state)
            while java.poll() is None and not self._asked.is_set():
                if is_serving(port) and _reads(port, secret):
                    self._state = replace(self._state, phase="ready", since=time.time())
                    self._files.write_state(self._state)
                    logger.info("ZooKeeper serves 127.0.0.1:%d", port)
                    return
                if time.monotonic() > deadline:
                    raise _Failed(f"ZooKeeper does not serve within {_START_SECONDS:g} s")
                self._asked.wait(0.05)
            if self._asked.is_set():
                return
            port = 0  # another program may have taken it since we looked
        raise _Failed(f"Java ends at once with code {java.returncode}: {self._files.log_tail()}")

    def _watch(self) -> None:
        joined = self._files.joined()
        used = answered = started = time.monotonic()
        restarts = 0
        pause = min(_ASK_SECONDS, max(0.1, self._linger / 5))
        while not self._asked.is_set():
            self._wait(pause)
            sessions = count_sessions(self._state.port)
            now = time.monotonic()
            if sessions is not None:
                answered = now
            if sessions or self._files.joined() != joined:
                joined, used = self._files.joined(), now
            if self._asked.is_set():
                return
            if self._java is None or self._java.poll() is not None or now - answered > _SILENCE_SECONDS:
                restarts = restarts + 1 if now - started < 60 else 1
                if restarts > _MAX_RESTARTS:
                    raise _Failed("ZooKeeper ended too often")
                logger.warning("ZooKeeper ended, or is silent; starting it again")
                self._end_java()
                self._state = replace(self._state, phase="starting")
                self._start(self._state.port)
                started = answered = time.monotonic()
            elif sessions == 0 and now - used >= self._linger and self._may_end(joined):
                logger.info("no session for %g s", self._linger)
                return

    def _wait(self, seconds: float) -> None:
        """Wait until the time is over, we are asked to end, or Java has ended."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self._java is not None and self._java.poll() is None:
            if self._asked.wait(min(left, 0.2)):
                return

    def _may_end(self, joined: int) -> bool:
        """Withdraw the state, so that nobody joins any more; False if somebody just did, or is about to."""
        try:
            with hold(self._files.start_lock, 0.0):
                if self._files.joined() != joined or count_sessions(self._state.port) != 0:
                    return False
                self._files.remove_state()
                return True
        except TimeoutError:
            return False

    def _end_java(self) -> None:
        java, self._java = self._java, None
        if java is None:
            return
        java.terminate()
        try:
            java.wait(3.0)
        except subprocess.TimeoutExpired:
            java.kill()
            java.wait(3.0)


def _free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except (OSError, OverflowError):
                continue
            return int(probe.getsockname()[1])
    raise _Failed("no port is free on 127.0.0.1")


def _reads(port: int, secret: str | None) -> bool:
    """Read the root in a session of its own, which is closed again."""
    from kazoo.client import KazooClient  # not before the fork of main()
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import KazooTimeoutError

    sasl = {"mechanism": "DIGEST-MD5", "username": USER, "password": secret} if secret is not None else None
    client = KazooClient(hosts=f"127.0.0.1:{port}", timeout=4.0, sasl_options=sasl)
    try:
        client.start(timeout=5.0)
        client.get("/")
    except (KazooException, KazooTimeoutError):
        return False
    else:
        return True
    finally:
        client.stop()
        client.close()


def main() -> None:
    """Leave the caller, take the lock, run. A second supervisor of the same home ends at once."""
    parser = argparse.ArgumentParser(prog="registry.embedded_server")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--linger", type=float, required=True)
    parser.add_argument("--java", required=True)
    parser.add_argument("--jars", type=Path, required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--guarded", action="store_true")
    arguments = parser.parse_args()
    if os.fork():  # the caller waits for this process only; the child belongs to init. No thread runs yet.
        os._exit(0)
    files = ServerFiles(arguments.directory)
    handler = logging.handlers.WatchedFileHandler(files.log)  # Java rolls the file
    logging.basicConfig(
        level=logging.INFO, handlers=[handler], format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    try:
        with hold(files.server_lock, 3.0):
            supervisor = Supervisor(
                files,
                linger=arguments.linger,
                java=arguments.java,
                jars=arguments.jars,
                token=arguments.token,
                guarded=arguments.guarded,
            )
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda *_: supervisor.stop())
            supervisor.run()
    except TimeoutError:
        logger.info("another supervisor keeps this home")
    except Exception:
        logger.exception("the supervisor failed")
        raise


if __name__ == "__main__":
    main()
