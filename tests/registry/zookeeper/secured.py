"""A real ZooKeeper that knows its clients: SASL by a JAAS file, TLS by PEM files, all on loopback, in one folder.

It is what an operator would set up, so only the jars of :mod:`jobpipe_registry.embedded.embedded_zookeeper` are used.
Java is bound to this process by :mod:`jobpipe_registry.embedded.die_with_parent`, and ends with it.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from jobpipe_registry.embedded.embedded_zookeeper import find_jars, find_java
from jobpipe_registry.embedded.four_letter_words import is_serving

START_SECONDS = 45.0
_SASL = "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
_CFG = """\
tickTime=500
minSessionTimeout=2000
maxSessionTimeout=60000
dataDir=./data
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
4lw.commands.whitelist=srvr,cons
"""
_TLS = """\
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPort={secure_port}
secureClientPortAddress=127.0.0.1
authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider
ssl.clientAuth={client_auth}
ssl.keyStore.type=PEM
ssl.keyStore.location=./server.pem
ssl.trustStore.type=PEM
ssl.trustStore.location=./trust.pem
"""
_LOG = """\
status=error
appender.file.type=File
appender.file.name=file
appender.file.fileName=./zookeeper.log
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
"""


@dataclass(frozen=True)
class Pem:
    """A certificate and its key as files."""

    cert: Path
    key: Path


class Authority:
    """A CA of the test's own."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._cert = builder.sign(self._key, hashes.SHA256())
        self.path = folder / f"{name}.crt"
        self.path.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, dns: str | None = None, ip: str | None = None) -> Pem:
        """Return a certificate for servers and clients, with one alternative name."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(dns)] if dns else []
        names += [x509.IPAddress(ipaddress.ip_address(ip))] if ip else []
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._name, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        cert = builder.add_extension(usage, critical=False).sign(self._key, hashes.SHA256())
        made = Pem(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        made.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        made.key.touch(mode=0o600)
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return made


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


class SecuredZooKeeper:
    """One server. Set its fields, :meth:`start` it; a context manager ends it.

    Args:
        folder: For all its files.
        users: Names and passwords of SASL DIGEST-MD5; None for no SASL, unless ``login`` says otherwise.
        enforce: Refuse sessions without SASL.
        tls: The CA it trusts and its own certificate; it then listens on a second, secure port.
        client_auth: ``need`` or ``none``: whether TLS clients must show a certificate.
        login: The text of the JAAS file's section Server, instead of one made from ``users``.
        java: Further options of Java.
    """

    def __init__(
        self,
        folder: Path,
        *,
        users: Mapping[str, str] | None = None,
        enforce: bool = False,
        tls: tuple[Authority, Pem] | None = None,
        client_auth: str = "none",
        login: str | None = None,
        java: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.users = users
        self.enforce = enforce
        self.tls = tls
        self.client_auth = client_auth
        self.login = login
        self.java = java
        self.port = free_port()
        self.secure_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir(parents=True)

    def __enter__(self) -> SecuredZooKeeper:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def secure_endpoint(self) -> str:
        """By name: the certificate is the name's."""
        return f"localhost:{self.secure_port}"

    @property
    def log(self) -> str:
        path = self.folder / "zookeeper.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start it, on the same ports as before; return once it serves."""
        self._write_files()
        command = [
            find_java(),
            *("-Xms16m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.preAllocSize=4096"),
            "-Dlog4j2.configurationFile=./log4j2.properties",
            *(["-Djava.security.auth.login.config=./jaas.conf"] if self._login() else []),
            *self.java,
            *("-cp", f"{find_jars()}/*", "org.apache.zookeeper.server.ZooKeeperServerMain", "./zoo.cfg"),
        ]
        root = Path(__file__).parents[3]
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "jobpipe_registry.embedded.die_with_parent", str(os.getpid()), *command],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(root)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + START_SECONDS
        while not is_serving(self.port):
            assert self._process.poll() is None, f"ZooKeeper does not start: {self.log[-3000:]}"
            assert time.monotonic() < deadline, f"ZooKeeper does not serve: {self.log[-3000:]}"
            time.sleep(0.05)

    def stop(self) -> None:
        """End it; its data stay."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(10.0)

    def _login(self) -> str | None:
        if self.login is not None or self.users is None:
            return self.login
        users = "\n".join(f'  user_{name}="{password}"' for name, password in self.users.items())
        return f"org.apache.zookeeper.server.auth.DigestLoginModule required\n{users};"

    def _write_files(self) -> None:
        text = _CFG.format(port=self.port)
        login = self._login()
        if login is not None:
            text += _SASL
            jaas = self.folder / "jaas.conf"
            jaas.touch(mode=0o600)
            jaas.write_text(f"Server {{\n{login}\n}};\n")
        if self.enforce:
            text += "enforce.auth.enabled=true\nenforce.auth.schemes=sasl\n"
        if self.tls is not None:
            authority, pem = self.tls
            text += _TLS.format(secure_port=self.secure_port, client_auth=self.client_auth)
            (self.folder / "server.pem").write_bytes(pem.key.read_bytes() + pem.cert.read_bytes())
            (self.folder / "trust.pem").write_bytes(authority.path.read_bytes())
        (self.folder / "zoo.cfg").write_text(text)
        (self.folder / "log4j2.properties").write_text(_LOG)


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
