"""A namespace's CA with certificates good and bad, and clients that show whatever they like."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import (
    CertificateBuilder,
    DNSName,
    SubjectAlternativeName,
    load_pem_x509_certificate,
    random_serial_number,
)

from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import connect
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.links.link_timeouts import LinkTimeouts
from jobpipe.net.tls.certificates import NODE_LIFE, SERVER, init_ca, issue
from jobpipe.net.tls.key_files import read_ca
from jobpipe.net.tls.peer_names import subscription_name, topic_server_name
from jobpipe.net.tls.revocation import revoke
from jobpipe.net.tls.tls_context import Credentials
from jobpipe.wire import Hello, Welcome
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from tests.harness.zookeeper import settings_of

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
TIMING = LinkTimeouts(connect=10, handshake=10, hello=10, welcome=10)  # the machine is shared
TOPIC = "orders"

ACCESS = """
orders:
  read:
    billing.subscription.jobpipe: [billing, "billing-*"]
    audit.subscription.jobpipe: audit
    "old.subscription.jobpipe": "*"
    gone.subscription.jobpipe: "*"
    server.subscription.jobpipe: "*"
  publish: [successor.jobpipe]
  admin: [operations.jobpipe]
payments:
  read: {payments.subscription.jobpipe: "*"}
  publish: [payments.topic.jobpipe]
  admin: [payments.subscription.jobpipe]
"""


def registry_of(home: Path) -> dict[str, str]:
    """Return how to reach the embedded ZooKeeper of another home, as settings."""
    server = EmbeddedZooKeeper(home)
    return settings_of(server, server.ensure())


class World:
    """A CA, a stranger's CA, and certificates of each kind; ``ca.crl`` lies beside the CA's certificate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ca"
        init_ca(self.folder)
        init_ca(folder / "stranger")
        self.access = folder / "access.yaml"
        self.access.write_text(ACCESS)
        long_ago = datetime.now(UTC) - NODE_LIFE - timedelta(days=1)
        client = ("client",)
        self.orders = issue(self.folder, "orders", dns=[topic_server_name(TOPIC)])
        self.payments = issue(self.folder, "payments", dns=[topic_server_name("payments")])
        self.billing = self.reader("billing")
        self.audit = self.reader("audit")
        self.successor = issue(self.folder, "successor", usages=client)
        self.operations = issue(self.folder, "operations", usages=client)
        self.elsewhere = issue(self.folder, "elsewhere", dns=["payments.subscription.jobpipe"], usages=client)
        self.expired = issue(self.folder, "old", dns=["old.subscription.jobpipe"], usages=client, now=long_ago)
        self.serving = issue(self.folder, "server", dns=["server.subscription.jobpipe"], usages=[SERVER])
        self.for_anything = without_usage(self.folder, self.reader("anything"), "billing.subscription.jobpipe")
        self.revoked = issue(self.folder, "gone", dns=["gone.subscription.jobpipe"], usages=client)
        self.stranger = issue(folder / "stranger", "billing", dns=["billing.subscription.jobpipe"], usages=client)
        revoke(self.folder, ["gone"])

    def reader(self, name: str, now: datetime | None = None) -> Credentials:
        """Make a subscriber's certificate."""
        return issue(self.folder, name, dns=[subscription_name(name)], usages=["client"], replace=True, now=now)

    def client(self, shown: Credentials | None, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts our CA and checks nothing of what it shows itself."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.folder / "ca.crt")
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        if version is not None:
            context.minimum_version = context.maximum_version = version
        return context


def without_usage(folder: Path, files: Credentials, name: str) -> Credentials:
    """Sign a certificate again, without an extended key usage: as other tools than ours make them."""
    ca, ca_key = read_ca(folder)
    old = load_pem_x509_certificate(files.cert.read_bytes())
    now = datetime.now(UTC)
    made = (
        CertificateBuilder(ca.subject, old.subject, old.public_key(), random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(SubjectAlternativeName([DNSName(name)]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    files.cert.write_bytes(made.public_bytes(Encoding.PEM))
    return files


def settings(files: Credentials, access: Path | None = None) -> dict[str, str]:
    """Return settings, without ``jobpipe.``, for a process with these certificates."""
    named = {"ssl.ca": str(files.ca), "ssl.cert": str(files.cert), "ssl.key": str(files.key)}
    return named if access is None else {**named, "security.access": str(access)}


def full(changes: Mapping[str, str]) -> dict[str, str]:
    """Return settings by their full names."""
    return {key if key.startswith("security.") else f"jobpipe.{key}": value for key, value in changes.items()}


@dataclass(frozen=True)
class Dial:
    """A way to open a link: the asyncio client's, or the blocking one's."""

    blocking: bool

    def __call__(self, endpoint: Endpoint, hello: Hello, tls: ssl.SSLContext) -> Welcome:
        """Open a link, close it, and return what the server said; raise what it refused us with."""
        name = topic_server_name(hello.topic)
        if self.blocking:
            with BlockingLink.connect(endpoint, hello, tls=tls, server_hostname=name, timing=TIMING) as link:
                return link.welcome

        async def once() -> Welcome:
            link = await connect(endpoint, hello, tls=tls, server_hostname=name, timing=TIMING)
            await link.close()
            return link.welcome

        return asyncio.run(once())
