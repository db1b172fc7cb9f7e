"""Which right each role and operation of the control server needs. The one place where it asks.

The right is asked for at WELCOME and again with each request, so that a changed access list counts for links that are
there already. A subscriber is bound to the name in its HELLO: it acknowledges, plans and reads under no other. A
worker of it, which binds a slot, needs the right to read under the name that it says.
"""

from __future__ import annotations

from typing import Any

from jobpipe.discovery.trust import Trust
from jobpipe.net.access import ADMIN, PUBLISH, READ
from jobpipe.net.link import Link

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


def demand_operation(trust: Trust, link: Link, op: str, args: dict[str, Any]) -> None:
    """See that a peer may do ``op``.

    A subscription is moved or dropped by an administrator of the topic, or by who may read under its name.

    Raises:
        NotAuthorized: it may not.
    """
    topic, name = link.hello.topic, args.get("name")
    demand_role(trust, link)
    if op in ("seek", "drop"):
        if not trust.allows(link, READ, topic, str(name)):
            trust.demand(link, ADMIN, topic)
    elif op == "handover":
        trust.demand(link, PUBLISH, topic)
    elif op == "bind" or (op == "bounds" and name and not trust.allows(link, ADMIN, topic)):
        trust.demand(link, READ, topic, str(name))
