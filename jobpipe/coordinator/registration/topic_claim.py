"""Who publishes a topic: claim it in the registry, or find out that a living process has it.

An owner's record is only a hint. Same place (host, boot and PID namespace) and dead process: its claim is removed at
once. Otherwise it is asked: a coordinator that outlived its publisher hands the topic over; one whose publisher lives
refuses, and the newcomer's error names it; silence means waiting for its registry session to end. An owner whose record
cannot be read is silent, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import ssl
from collections.abc import Callable

from jobpipe.discovery.registry_handler import map_registry_errors
from jobpipe.errors import LinkError, NotAuthorized, RemoteProtocolError, TopicNotFound, TopicOwned
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import connect
from jobpipe.net.links.event_loop_thread import called_in
from jobpipe.net.retry import Deadline, backoff
from jobpipe.operations.admin_operations import Driver, HandoverRequest
from jobpipe.operations.messages.calls import ask
from jobpipe.wire.wire_messages import Hello
from jobpipe_registry.handler import RegisterServerHandler
from jobpipe_registry.host.process_identity import lives
from jobpipe_registry.topic_records import OwnerRecord

log = logging.getLogger(__name__)
_jitter = random.Random()  # noqa: S311 - own, so that it does not disturb a program that seeds the global one

RETRY_SECONDS = 0.25
TURN_SECONDS = (0.05, 0.15)  # after a claim has ended: others may wait for it too
RETRY_MOST_SECONDS = 2.0  # the registry tells of a claim that ends, but it need not


async def claim_topic(
    handler: RegisterServerHandler,
    topic: str,
    make_owner: Callable[[], OwnerRecord],
    *,
    tls: Callable[[Endpoint], ssl.SSLContext | None],
    timeout: float,
    check_wanted: Callable[[], None] = lambda: None,
) -> None:
    """Claim ``topic`` for ``make_owner()``, taking it over from a dead or a willing owner.

    Args:
        tls: gives the context to dial an endpoint with; blocking.
        timeout: seconds to wait for a silent owner's registry session to end; it is tried once more after them.
        check_wanted: called before each attempt; raises what is to end the waiting. Nothing is claimed then.

    Raises:
        TopicOwned: a live publisher has it; the message names it.
    """
    deadline, evicted = Deadline(timeout), False
    pauses = backoff(RETRY_SECONDS, RETRY_MOST_SECONDS, rng=_jitter)
    moved = asyncio.Event()
    notify = called_in(asyncio.get_running_loop(), moved.set)
    while True:
        check_wanted()
        moved.clear()
        # Before the claim: asking a silent owner takes seconds, in which its session may well have ended.
        late = deadline.passed
        mine = make_owner()
        try:
            with map_registry_errors():
                await asyncio.to_thread(handler.create_topic_node, topic)
                await asyncio.to_thread(handler.claim, topic, mine)
        except TopicOwned as error:
            with map_registry_errors():
                await asyncio.to_thread(handler.notify_of_owner, topic, notify)
                present = await asyncio.to_thread(handler.owner, topic)
            if present is None:  # released meanwhile, or not to be read: the error knows which
                with map_registry_errors():
                    released = not await asyncio.to_thread(handler.is_claimed, topic)
                if released and not late:
                    await asyncio.sleep(_jitter.uniform(*TURN_SECONDS))
                    continue
                if late:
                    raise error if error.fields.get("owner") else _unreadable(topic) from error
            elif lives(present.pid, present.started, present.ticks, present.place) is False:
                log.info("topic %s: its owner (pid %d) is dead, taking over", topic, present.pid)
                with map_registry_errors():
                    await asyncio.to_thread(handler.evict, topic, present.instance)
                if not evicted:
                    evicted = True
                    continue
                if late:
                    raise _owned(topic, present, "its process is dead, but its claim comes back") from error
            else:
                await _ask(topic, present, mine.name, tls, error)
                if late:
                    raise _owned(topic, present, "it does not answer, but its registry session lives") from error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next(pauses)):
                    await moved.wait()
                    await asyncio.sleep(_jitter.uniform(*TURN_SECONDS))
        else:
            return


async def _ask(
    topic: str,
    owner: OwnerRecord,
    name: str,
    find_tls: Callable[[Endpoint], ssl.SSLContext | None],
    error: TopicOwned,
) -> None:
    """Ask the owner's coordinator to hand over; return when it did, or when it is silent."""
    hello = Hello(topic=topic, role="admin", name=name, instance=f"newcomer-{os.getpid()}")
    endpoint = Endpoint.parse(owner.endpoint)
    try:
        tls = await asyncio.to_thread(find_tls, endpoint)
        link = await connect(endpoint, hello, tls=tls)
    except (LinkError, NotAuthorized, RemoteProtocolError, TopicNotFound) as silence:
        if "right" in silence.fields:  # it has proven the topic
            raise NotAuthorized(
                f"{silence.message}; to take the topic over from {owner.name!r} this job needs the right to publish",
                **silence.fields,
            ) from silence
        # Not found: it claimed a moment ago, or is ending. Not authorized, or another protocol: a stranger.
        log.info("topic %s: its owner at %s does not answer (%s)", topic, owner.endpoint, silence)
        return
    try:
        reply = await ask(link, HandoverRequest(), timeout=15.0)
    except (LinkError, RemoteProtocolError, TopicNotFound) as silence:
        log.info("topic %s: its owner at %s gives no answer (%s)", topic, owner.endpoint, silence)
        return
    finally:
        await link.close()
    if not reply.released:
        raise _owned(topic, owner, "one topic has one live publisher", reply.driver) from error


def _owned(topic: str, owner: OwnerRecord, why: str, driver: Driver | None = None) -> TopicOwned:
    """Return the error; only an owner that answers tells its driver, which is what its user can stop."""
    who = f"{owner.name!r} on {owner.host}"
    if driver is not None:
        application = f"application {driver.application!r}, " if driver.application else ""
        who += f", {application}driver pid {driver.pid}"
    told = None if driver is None else driver.to_json()
    return TopicOwned(
        f"topic {topic!r} already has a publisher: {who}, coordinator pid {owner.pid}, endpoint {owner.endpoint}, "
        f"epoch {owner.epoch}; {why}. Stop it first, or publish to another topic",
        topic=topic,
        owner={
            "name": owner.name,
            "host": owner.host,
            "pid": owner.pid,
            "endpoint": owner.endpoint,
            "driver": told,
        },
    )


def _unreadable(topic: str) -> TopicOwned:
    """Return the error for a claim of a living session whose record cannot be read; the registry's log says why."""
    return TopicOwned(
        f"topic {topic!r} already has a publisher, whose record in the registry cannot be read: a later version of "
        "jobpipe has claimed the topic, or another program has; its registry session lives. Stop it first, upgrade "
        "this job, or publish to another topic",
        topic=topic,
        owner=None,
    )
