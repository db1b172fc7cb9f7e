"""Which right each role and operation of the coordinator needs. The only place that decides it.

The right is asked for at WELCOME and again with each request, so that a changed access list counts for links that are
there already. A subscriber is bound to the name in its HELLO: it acknowledges, plans and reads under no other. A
worker of it, which binds a slot, needs the right to read under the name that it says.
"""

from __future__ import annotations

from jobpipe.discovery.trust import Trust
from jobpipe.net.access import ADMIN, PUBLISH, READ
from jobpipe.net.link import Link
from jobpipe.operations.administration import (
    DropLeaseRequest,
    DropRequest,
    HandoverRequest,
    HoldRequest,
    ReleaseHoldRequest,
    RequireRequest,
    SeekRequest,
)
from jobpipe.operations.fields import Fields
from jobpipe.operations.flows import (
    BeginFlowRequest,
    ClaimRequest,
    CursorsRequest,
    FollowRequest,
    ResetFlowRequest,
    SealPartsRequest,
)
from jobpipe.operations.reading import BindRequest, BoundsRequest


def require_role(trust: Trust, link: Link) -> None:
    """See that a peer may have the role on the topic that its HELLO names.

    An administrator needs any right: which one, :func:`require_operation` says.

    Raises:
        NotAuthorized: it may not.
    """
    topic, name = link.hello.topic, link.hello.name
    match link.hello.role:
        case "publisher":
            trust.require(link, PUBLISH, topic)
        case "subscriber":
            trust.require(link, READ, topic, name or "")
        case "admin":
            if not (trust.allows(link, READ, topic) or trust.allows(link, PUBLISH, topic)):
                trust.require(link, ADMIN, topic)
        case _:
            trust.require(link, READ, topic)


def require_operation(trust: Trust, link: Link, asked: Fields) -> None:
    """See that a peer may have what it asks for.

    A subscription may be moved or dropped by an administrator of the topic, or by a peer that may read under its name.
    The same peers may have a hold of that name. Which subscriptions are required is up to publishers and
    administrators. The status is for peers that may read or administer the topic; a handover needs only the right to
    publish.

    Raises:
        NotAuthorized: it may not.
    """
    topic = link.hello.topic
    require_role(trust, link)
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


def may_have_holds_of_others(trust: Trust, link: Link) -> bool:
    """Tell whether a peer may move and release holds that another identity took: administrators of the topic may."""
    return trust.allows(link, ADMIN, link.hello.topic)
