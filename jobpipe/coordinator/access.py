"""Which right each role and operation of the control server needs. The one place where it asks.

The right is asked for at WELCOME and again with each request, so that a changed access list counts for links that are
there already. A subscriber is bound to the name in its HELLO: it acknowledges, plans and reads under no other. A
worker of it, which binds a slot, needs the right to read under the name that it says.
"""

from __future__ import annotations

from jobpipe.discovery.trust import Trust
from jobpipe.net.access import ADMIN, PUBLISH, READ
from jobpipe.net.link import Link
from jobpipe.operations.control import (
    BindRequest,
    BoundsRequest,
    DropLeaseRequest,
    DropRequest,
    HandoverRequest,
    SeekRequest,
)
from jobpipe.operations.fields import Fields

__all__ = ["demand_operation", "demand_role"]


def demand_role(trust: Trust, link: Link) -> None:
    """See that a peer may have the role on the topic that its HELLO names.

    An administrator needs any right: which one, his operations say.

    Raises:
        NotAuthorized: it may not.
    """
    topic, name = link.hello.topic, link.hello.name
    match link.hello.role:
        case "publisher":
            trust.demand(link, PUBLISH, topic)
        case "subscriber":
            trust.demand(link, READ, topic, name or "")
        case "admin":
            if not (trust.allows(link, READ, topic) or trust.allows(link, PUBLISH, topic)):
                trust.demand(link, ADMIN, topic)
        case _:
            trust.demand(link, READ, topic)


def demand_operation(trust: Trust, link: Link, asked: Fields) -> None:
    """See that a peer may have what it asks for.

    A subscription is moved or dropped by an administrator of the topic, or by who may read under its name.

    Raises:
        NotAuthorized: it may not.
    """
    topic = link.hello.topic
    demand_role(trust, link)
    match asked:
        case SeekRequest(name=name) | DropRequest(name=name):
            if not trust.allows(link, READ, topic, name):
                trust.demand(link, ADMIN, topic)
        case DropLeaseRequest():
            trust.demand(link, ADMIN, topic)
        case HandoverRequest():
            trust.demand(link, PUBLISH, topic)
        case BindRequest(name=name):
            trust.demand(link, READ, topic, name)
        case BoundsRequest(name=name) if name and not trust.allows(link, ADMIN, topic):
            trust.demand(link, READ, topic, name)
