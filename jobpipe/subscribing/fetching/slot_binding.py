"""Asks a topic's coordinator, from a worker, what a slot is bound to: over as many links as it takes."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from jobpipe.config import Config
from jobpipe.discovery.node_overrides import on_this_node
from jobpipe.discovery.topic_lookup import Location
from jobpipe.net.address import Endpoint
from jobpipe.net.retry import Attempts
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.operations.reader_operations import BindReply, BindRequest
from jobpipe.store.reading.boundary import ReadLimits
from jobpipe.subscribing.fetching.link_pool import pooled
from jobpipe.subscribing.fetching.part_fetch import refresh_location

log = logging.getLogger(__name__)

WAIT_SECONDS = 1.0  # that the coordinator waits for news
ANSWER_SECONDS = 30.0  # beyond that


@dataclass(frozen=True)
class SlotRange:
    """A range of ``topic`` that is known once its slot is bound.

    Attributes:
        name, grant: The subscription, and the right to use it.
        slot: Its id.
        limits: Of the range.
        schemas: Ids of the schemas that the driver has judged fit.
        control: Hint: the "host:port" of the coordinator when it was planned.
    """

    topic: str
    name: str
    grant: int
    slot: str
    limits: ReadLimits
    schemas: tuple[int, ...]
    control: str


def bind(wanted: SlotRange, config: Config) -> BindReply:
    """Return the range of a slot; bound now, if it was not.

    Raises:
        DataLoss: the slot is not known, or its range does not fit the log any more.
        Fenced: another query has the subscription's name.
        LinkError, TopicNotFound: no answer came within ``read.timeout``.
        NotAuthorized: we may not read under that name.
    """
    asked = BindRequest(
        name=wanted.name,
        grant=wanted.grant,
        slot=wanted.slot,
        schemas=wanted.schemas,
        end=wanted.limits.end,
        max_rows=wanted.limits.max_rows,
        max_bytes=wanted.limits.max_bytes,
        wait=WAIT_SECONDS,
    )
    endpoint = Endpoint.parse(wanted.control)
    location: Location | None = None
    attempts = Attempts(config.read_timeout, session=config.registry_session_timeout)
    while True:
        try:
            with pooled(endpoint, wanted.topic, on_this_node(config, endpoint)) as link:
                return ask_blocking(link, asked, timeout=WAIT_SECONDS + ANSWER_SECONDS)
        except Attempts.ERRORS as error:
            pause = attempts.failed(error, location)
            level = logging.WARNING if attempts.failures == 1 else logging.DEBUG
            log.log(level, "topic %s, slot %s: %s; trying again", wanted.topic, wanted.slot, error)
            time.sleep(pause)
            location = refresh_location(config, wanted.topic, location, attempts.deadline) or location
            endpoint = endpoint if location is None else location.control
