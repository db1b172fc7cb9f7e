"""The supervisor of the embedded ZooKeeper: ``python -m jobpipe_registry.embedded.embedded_server DIRECTORY …``

A detached process, one per home (it holds ``server.lock`` for its life). It starts Java on a free loopback port, says
"ready" once a real read was answered, starts Java again if it dies or stops responding, and ends after ``linger``
seconds without a session, or on SIGTERM. Java dies with it: see :mod:`.die_with_parent`.
"""

from __future__ import annotations

import argparse
import logging
import logging.handlers
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil

from jobpipe_registry.embedded.embedded_files import (
    MAX_CONNECTIONS,
    EmbeddedFiles,
    EmbeddedState,
    is_alive,
    start_time,
)
from jobpipe_registry.embedded.four_letter_words import ask, count_sessions, is_serving
from jobpipe_registry.host.local_files import locked_file
from jobpipe_registry.host.process_identity import PidScope
from jobpipe_registry.zookeeper.zookeeper_tls import make_context

logger = logging.getLogger("jobpipe_registry.embedded.embedded_server")

_START_SECONDS = 30.0
_START_ATTEMPTS = 3
_SILENCE_SECONDS = 15.0
_BUSY_SILENCE_SECONDS = 120.0  # of a server that uses the processor meanwhile
_BUSY = 0.05  # of one core
_ASK_SECONDS = 2.0
_MAX_RESTARTS = 5  # in a row, each before 60 s of life

# Relative paths: Java reads property files in its own way, and a home may have any name.
_ZOO_CFG = """\
tickTime=2000
minSessionTimeout=4000
dataDir=./data
admin.enableServer=false
4lw.commands.whitelist=srvr,mntr
maxClientCnxns={most}
maxCnxns={most}
snapCount=10000
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""
_PLAIN_CFG = """\
clientPort={port}
clientPortAddress=127.0.0.1
"""
# Nothing is read of a connection, and it does not count as one of the 1,000, before it has shown the certificate of the
# home; it has ten seconds for that, which is netty's own limit.
_TLS_CFG = """\
secureClientPort={port}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider
ssl.clientAuth=need
ssl.protocol=TLSv1.3
ssl.enabledProtocols=TLSv1.3
ssl.ciphersuites=TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256,TLS_CHACHA20_POLY1305_SHA256
ssl.keyStore.type=PEM
ssl.keyStore.location=./tls.pem
ssl.trustStore.type=PEM
ssl.trustStore.location=./tls.pem
ssl.allowReverseDnsLookup=false
"""
# What ZooKeeper needs of PySpark's 250 jars: with all of them Java takes 0.4 s longer to start. Of ZooKeeper's own
# distribution all is taken.
_JARS = (
    "zookeeper",
    "netty",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
    "metrics-core",
    "snappy-java",
)
# No lines of NettyServerCnxnFactory: it reports each refused connection, so strangers could fill the log.
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
logger.link.name=org.apache.zookeeper.server.NettyServerCnxnFactory
logger.link.level=off
rootLogger.level=warn
rootLogger.appenderRef.file.ref=file
"""
# The same for ZooKeeper's own distribution, which logs by logback.
_LOGBACK = """\
<configuration>
  <statusListener class="ch.qos.logback.core.status.NopStatusListener" />
  <appender name="file" class="ch.qos.logback.core.rolling.RollingFileAppender">
    <file>./zookeeper.log</file>
    <rollingPolicy class="ch.qos.logback.core.rolling.FixedWindowRollingPolicy">
      <fileNamePattern>./zookeeper.log.%i</fileNamePattern>
      <minIndex>1</minIndex>
      <maxIndex>1</maxIndex>
    </rollingPolicy>
    <triggeringPolicy class="ch.qos.logback.core.rolling.SizeBasedTriggeringPolicy">
      <maxFileSize>5MB</maxFileSize>
    </triggeringPolicy>
    <encoder><pattern>%d{ISO8601} %-5p %c{1}: %m%n</pattern></encoder>
  </appender>
  <logger name="org.apache.zookeeper.server.NettyServerCnxnFactory" level="off" />
  <root level="warn"><appender-ref ref="file" /></root>
</configuration>
"""


class _Failed(Exception):
    pass


class _HomeGone(Exception):
    """The folder was removed: no process finds this server any more."""


class JavaSupervisor:
    """One server's life. ``run`` in the main thread: the kernel binds Java to the thread that starts it."""

    def __init__(
        self, files: EmbeddedFiles, *, linger: float, java: str, jars: Path, token: str, tls: bool = True
    ) -> None:
        self._files = files
        self._linger = linger
        self._command = [
            java,
            "-Xms16m",
            "-Xmx256m",  # an unfinished handshake takes 10 KiB: room for 20,000 connections of strangers
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dzookeeper.preAllocSize=4096",  # KiB per log file, instead of 64 MiB
            "-Dlog4j2.configurationFile=./log4j2.properties",
            "-Dlogback.configurationFile=./logback.xml",
            "-Dio.netty.transport.noNative=true",  # no library is unpacked into a folder of all users
            *shlex.split(os.environ.get("SERVER_JVMFLAGS", "")),  # as of ZooKeeper's own zkServer.sh
            "-cp",
            _class_path(jars),
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            "./zoo.cfg",
        ]
        self._java: subprocess.Popen[bytes] | None = None
        self._asked = threading.Event()
        pid = os.getpid()
        here = PidScope.here()
        self._state = EmbeddedState(
            *("starting", token, here.host, pid, start_time(pid), 0, 0.0, 0, time.time()),
            boot=here.boot,
            pid_namespace=here.pid_namespace,
            tls=tls,
        )
        self._context = make_context(files.tls) if tls else None

    def stop(self) -> None:
        """Ask ``run`` to end; safe in a signal handler."""
        self._asked.set()

    def run(self) -> None:
        """Keep the server until its end; the caller holds ``server.lock``."""
        former = self._files.read_state()
        if former is not None and former.is_here and is_alive(former.java_pid, former.java_created):
            os.kill(former.java_pid, signal.SIGKILL)
        self._files.write_state(self._state)
        self._home = self._files.identity()
        try:
            self._start(self._last_port())
            self._watch()
        except _HomeGone:
            pass  # nor is there a log; what is at that path now is another server's
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
        found = re.search(r"^(?:clientPort|secureClientPort)=(\d{1,5})$", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def _start(self, port: int) -> None:
        """Start Java on ``port`` if it is free, else on another one: clients find a restarted server where it was."""
        deadline = time.monotonic() + _START_SECONDS
        (self._files.directory / "log4j2.properties").write_text(_LOG4J)
        (self._files.directory / "logback.xml").write_text(_LOGBACK)
        for _ in range(_START_ATTEMPTS):
            port = _free_port(port)
            link = _TLS_CFG if self._state.tls else _PLAIN_CFG
            (self._files.directory / "zoo.cfg").write_text((_ZOO_CFG + link).format(port=port, most=MAX_CONNECTIONS))
            java = self._java = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "jobpipe_registry.embedded.die_with_parent",
                    str(os.getpid()),
                    *self._command,
                ],
                cwd=self._files.directory,
                env=_java_environment(),
                stdin=subprocess.DEVNULL,
            )
            self._state = replace(self._state, java_pid=java.pid, java_created=start_time(java.pid), port=port)
            self._files.write_state(self._state)
            while java.poll() is None and not self._asked.is_set():
                if is_serving(port, self._context) and self._reads(port):
                    self._state = replace(self._state, phase="ready", since=time.time())
                    self._files.write_state(self._state)
                    logger.info("ZooKeeper serves 127.0.0.1:%d", port)
                    return
                if time.monotonic() > deadline:
                    raise _Failed(f"ZooKeeper is not ready within {_START_SECONDS:g} s")
                self._asked.wait(0.05)
            if self._asked.is_set():
                return
            port = 0  # another program may have taken it since we looked
        raise _Failed(f"Java ended at once with code {java.returncode}: {self._files.log_tail()}")

    def _watch(self) -> None:
        joined = self._files.joined()
        used = started = time.monotonic()
        health = _JavaHealth(self._state.java_pid)
        restarts = 0
        pause = min(_ASK_SECONDS, max(0.1, self._linger / 5))
        while not self._asked.is_set():
            self._wait(pause)
            if self._files.identity() != self._home:
                raise _HomeGone
            answer = ask(self._state.port, "mntr", self._context)
            sessions, now = count_sessions(answer), time.monotonic()
            health.note_probe(answered=answer is not None)
            if sessions or self._files.joined() != joined:
                joined, used = self._files.joined(), now
            if self._asked.is_set():
                return
            if self._java is None or self._java.poll() is not None or health.is_lost:
                restarts = restarts + 1 if now - started < 60 else 1
                if restarts > _MAX_RESTARTS:
                    raise _Failed("ZooKeeper ended too often")
                logger.warning("ZooKeeper ended, or does not respond; starting it again")
                self._end_java()
                self._state = replace(self._state, phase="starting")
                self._start(self._state.port)
                started, health = time.monotonic(), _JavaHealth(self._state.java_pid)
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
        """Withdraw the state, so that no process joins any more; False if one just did, or is about to."""
        try:
            with locked_file(self._files.start_lock, 0.0):
                answer = ask(self._state.port, "mntr", self._context)
                if self._files.joined() != joined or count_sessions(answer) != 0:
                    return False
                self._files.remove_state()
                return True
        except TimeoutError:
            return False

    def _reads(self, port: int) -> bool:
        """Read the root in a session of its own, which is closed again."""
        from kazoo.client import KazooClient  # not before the fork of main()
        from kazoo.exceptions import KazooException
        from kazoo.handlers.threading import KazooTimeoutError

        from jobpipe_registry.zookeeper.kazoo_client import TlsHandler

        handler = TlsHandler(self._files.tls) if self._state.tls else None
        client = KazooClient(hosts=f"127.0.0.1:{port}", timeout=4.0, handler=handler, use_ssl=self._state.tls)
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


class _JavaHealth:
    """Whether Java lives. Its port alone does not tell: other users of this host can keep that busy.

    A server that answers, or ends the connection, lives. One that does neither but uses the processor is given longer:
    it may be at a flood of handshakes, and starting it again would cut all links for nothing.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._answered = self._alive = self._probed_at = time.monotonic()
        self._used = _cpu_seconds(pid)

    def note_probe(self, *, answered: bool) -> None:
        """Note the outcome of a probe that was made just now."""
        now, used = time.monotonic(), _cpu_seconds(self._pid)
        if answered:
            self._answered = self._alive = now
        elif used - self._used > _BUSY * (now - self._probed_at):
            self._alive = now
        self._probed_at, self._used = now, used

    @property
    def is_lost(self) -> bool:
        """Whether it is better started again."""
        return (
            self._probed_at - self._alive > _SILENCE_SECONDS or self._probed_at - self._answered > _BUSY_SILENCE_SECONDS
        )


def _cpu_seconds(pid: int) -> float:
    """Return what a process has used since its start, 0.0 if it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system


def _java_environment() -> dict[str, str]:
    """Return an environment in which Java reads the names of files as Python does.

    In the locale C, Python takes them for UTF-8 and Java for ASCII: a home with an umlaut would not be there.
    """
    utf8 = {"LC_ALL": "C.UTF-8"} if sys.getfilesystemencoding() == "utf-8" else {}
    return {**os.environ, **utf8}


def _class_path(jars: Path) -> str:
    found = [sorted(jars.glob(f"{name}-*.jar")) for name in _JARS]
    return os.pathsep.join(str(path) for paths in found for path in paths) if all(found) else f"{jars}/*"


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


def main() -> None:
    """Leave the caller, take the lock, run. A second supervisor of the same home ends at once."""
    parser = argparse.ArgumentParser(prog="jobpipe_registry.embedded.embedded_server")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--linger", type=float, required=True)
    parser.add_argument("--java", required=True)
    parser.add_argument("--jars", type=Path, required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--tls", action="store_true")
    arguments = parser.parse_args()
    if os.fork():  # the caller waits for this process only; the child belongs to init. No thread runs yet.
        os._exit(0)
    files = EmbeddedFiles(arguments.directory)
    handler = logging.handlers.WatchedFileHandler(files.log)  # Java rolls the file
    logging.basicConfig(
        level=logging.INFO, handlers=[handler], format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    try:
        with locked_file(files.server_lock, 3.0):
            supervisor = JavaSupervisor(
                files,
                linger=arguments.linger,
                java=arguments.java,
                jars=arguments.jars,
                token=arguments.token,
                tls=arguments.tls,
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
