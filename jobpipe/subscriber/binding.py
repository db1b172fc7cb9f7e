"""Asks a topic's coordinator, from a worker, what a slot is bound to: over as many links as it takes."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from jobpipe.config import Config
from jobpipe.discovery.locate import Location
from jobpipe.discovery.node import on_this_node
from jobpipe.errors import PeerNotTrusted, RemoteProtocolError
from jobpipe.net.address import Endpoint
from jobpipe.net.retry import PROTOCOL_TRIES, RETRYABLE, Distrust, backoff
from jobpipe.store import Boundary
from jobpipe.subscriber.fetch import BACKOFF_CAP_SECONDS, look_up
from jobpipe.subscriber.pool import give_back, take

__all__ = ["WAIT_SECONDS", "SlotRange", "bind"]

log = logging.getLogger(__name__)

WAIT_SECONDS = 1.0  # that the coordinator waits for news
ANSWER_SECONDS = 30.0  # beyond that


@dataclass(frozen=True)
class SlotRange:
    """A range of ``topic`` that is known once its slot is bound.

    Attributes:
        name, grant: The subscription, and the right to use it.
        slot: Its id.
        end: Where the read ends.
        max_rows, max_bytes: Of the range.
        schemas: Ids of the schemas that the driver has judged fit.
        control: Hint: the "host:port" of the coordinator when it was planned.
    """

    topic: str
    name: str
    grant: int
    slot: str
    end: Boundary | None
    max_rows: int | None
    max_bytes: int | None
    schemas: tuple[int, ...]
    control: str


def bind(wanted: SlotRange, config: Config) -> dict[str, Any]:
    """Return the range of a slot, as the operation ``bind`` answers; bound now, if it was not.

    Raises:
        DataLoss: the slot is not known, or its range does not fit the log any more.
        Fenced: another query has the subscription's name.
        LinkError, TopicNotFound: nobody answered within ``read.timeout``.
        NotAuthorized: we may not read under that name.
    """
    args = {
        "name": wanted.name,
        "grant": wanted.grant,
        "slot": wanted.slot,
        "end": None if wanted.end is None else wanted.end.to_json(),
        "max_rows": wanted.max_rows,
        "max_bytes": wanted.max_bytes,
        "schemas": list(wanted.schemas),
        "wait": WAIT_SECONDS,
    }
    endpoint, location = Endpoint.parse(wanted.control), None
    deadline: float | None = None
    delays, garbled = backoff(cap=BACKOFF_CAP_SECONDS), 0
    distrust = Distrust(config.registry_session_timeout)
    while True:
        try:
            return _ask(wanted.topic, endpoint, args, config)
        except (*RETRYABLE, PeerNotTrusted) as error:
            garbled += isinstance(error, RemoteProtocolError)
            now = time.monotonic()
            level = logging.WARNING if deadline is None else logging.DEBUG
            deadline = deadline or now + config.read_timeout
            if now >= deadline or garbled >= PROTOCOL_TRIES or distrust.is_final(error, location, now):
                raise
            log.log(level, "topic %s, slot %s: %s; trying again", wanted.topic, wanted.slot, error)
            time.sleep(next(delays))
            location = _newer(look_up(config, wanted.topic, location, deadline), location)
            endpoint = endpoint if location is None else location.control


def _newer(found: Location | None, known: Location | None) -> Location | None:
    return known if found is None else found


def _ask(topic: str, endpoint: Endpoint, args: dict[str, Any], config: Config) -> dict[str, Any]:
    tls = on_this_node(config, endpoint)
    link = take(endpoint, topic, tls)
    whole = False
    try:
        result = link.call("bind", args, timeout=WAIT_SECONDS + ANSWER_SECONDS).result
        whole = True
        return result
    finally:
        if whole:
            give_back(link, endpoint, topic, tls)
        else:
            link.abort()
