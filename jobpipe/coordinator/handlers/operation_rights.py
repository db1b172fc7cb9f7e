"""Which right each operation of the coordinator needs: decided here alone. Roles: ``PeerAuthentication.require_role``.

The right is asked for at WELCOME and again with each request, so that a changed access list counts for links that are
there already. A subscriber is bound to the name in its HELLO: it acknowledges, plans and reads under no other. A
worker of it, which binds a slot, needs the right to read under the name that it says.
"""

from __future__ import annotations

from jobpipe.discovery.peer_authentication import PeerAuthentication
from jobpipe.net.links.async_link import Link
from jobpipe.net.servers.access_list import ADMIN, PUBLISH, READ
from jobpipe.operations.admin_operations import (
    DropLeaseRequest,
    DropRequest,
    HandoverRequest,
    HoldRequest,
    ReleaseHoldRequest,
    RequireRequest,
    SeekRequest,
)
from jobpipe.operations.flow_operations import (
    BeginFlowRequest,
    ClaimRequest,
    CursorsRequest,
    FollowRequest,
    ResetFlowRequest,
    SealPartsRequest,
)
from jobpipe.operations.messages.message_fields import Fields
from jobpipe.operations.reader_operations import BindRequest, BoundsRequest
from jobpipe.operations.status_operations import LedgerRequest, StatusRequest


def require_operation(trust: PeerAuthentication, link: Link, asked: Fields) -> None:
    """See that a peer may have what it asks for.

    A subscription may be moved or dropped by an administrator of the topic, or by a peer that may read under its name.
    The same peers may have a hold of that name. Which subscriptions are required is up to publishers and
    administrators. The status is for peers that may read or administer the topic; a handover needs only the right to
    publish.

    Raises:
        NotAuthorized: it may not.
    """
    topic = link.hello.topic
    if (
        isinstance(asked, StatusRequest | LedgerRequest) and asked.topic is not None
    ):  # the right is of that topic, and no other's
        if not trust.allows(link, READ, asked.topic):
            trust.require(link, ADMIN, asked.topic)
        return
    trust.require_role(link)
    match asked:
        case HandoverRequest():
            trust.require(link, PUBLISH, topic)
        case SeekRequest(name=name) | DropRequest(name=name) | HoldRequest(name=name) | ReleaseHoldRequest(name=name):
            if not trust.allows(link, READ, topic, name):
                trust.require(link, ADMIN, topic)
        case RequireRequest():
            if not trust.allows(link, PUBLISH, topic):
                trust.require(link, ADMIN, topic)
        case DropLeaseRequest() | ResetFlowRequest():
            trust.require(link, ADMIN, topic)
        case _ if link.hello.role == "admin":
            if not trust.allows(link, READ, topic):
                trust.require(link, ADMIN, topic)
        case BindRequest(name=name) | FollowRequest(name=name):
            trust.require(link, READ, topic, name)
        case (
            BeginFlowRequest(flow=name)
            | CursorsRequest(flow=name)
            | ClaimRequest(flow=name)
            | SealPartsRequest(flow=name)
        ) if link.hello.role != "publisher":
            trust.require(link, READ, topic, name)
        case BoundsRequest(name=name) if name and not trust.allows(link, ADMIN, topic):
            trust.require(link, READ, topic, name)


def may_have_holds_of_others(trust: PeerAuthentication, link: Link) -> bool:
    """Tell whether a peer may move and release holds that another identity took: administrators of the topic may."""
    return trust.allows(link, ADMIN, link.hello.topic)
