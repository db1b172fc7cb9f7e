"""What a topic's ledger says, asked of its coordinator."""

from __future__ import annotations

from jobpipe.config import Config
from jobpipe.discovery.configured_tls import client_tls
from jobpipe.discovery.topic_lookup import locate
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.operations.messages.ledger_messages import HopLedger, RowDifference
from jobpipe.operations.status_operations import LedgerReply, LedgerRequest
from jobpipe.wire.wire_messages import Hello

PATIENCE = 60.0


def ledger(config: Config, topic: str, name: str | None = None) -> LedgerReply:
    """Return the ledger of a topic, of all subscriptions or of one."""
    hello = Hello(topic=topic, role="reader", instance="ledger")
    place = locate(config, topic, PATIENCE).control
    link = BlockingLink.connect(place, hello, tls=client_tls(config), server_hostname=topic_server_name(topic))
    try:
        return ask_blocking(link, LedgerRequest(name=name), timeout=PATIENCE)
    finally:
        link.close()


def account(config: Config, topic: str, name: str) -> HopLedger:
    """Return the ledger of one subscription."""
    (hop,) = ledger(config, topic, name).hops
    return hop


def ranges(differences: tuple[RowDifference, ...]) -> list[tuple[int, int, int, int, str]]:
    """Return what differs: first and end, published and read rows, and why."""
    return [(each.first, each.end, each.published, each.read, each.reason) for each in differences]
