"""Keeps what a bounded read has still to read from retention, by a lease that is renewed while the read goes on.

A lease ends by itself when it is not renewed. A batch read of Spark is planned in a process that ends at once, so its
tasks renew it: as long as one of them reads, the whole range stays.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from jobpipe.config import Config
from jobpipe.discovery.node_overrides import on_this_node
from jobpipe.errors import JobpipeError
from jobpipe.net.address import Endpoint
from jobpipe.net.retry import Deadline
from jobpipe.operations.messages.calls import ask_blocking
from jobpipe.operations.reader_operations import LeaseRequest, lease_name
from jobpipe.subscribing.fetching.link_pool import pooled
from jobpipe.subscribing.fetching.part_fetch import refresh_location

log = logging.getLogger(__name__)

MOST_SECONDS = 900.0  # a coordinator lets a lease without a link live no longer
CALL_SECONDS = 10.0
END_SECONDS = 1.0
REMEMBERED = 1000  # leases whose last renewal this process remembers

_renewed: dict[tuple[int, str], float] = {}
"""When this process renewed a lease last, by process and name, monotonic seconds: a worker has many short tasks."""


@dataclass(frozen=True)
class HeldLease:
    """A lease: the batches ``first`` to ``last`` of a topic. Travels to tasks.

    Attributes:
        secret: random; any process that shows it may renew the lease, from any host.
        control: hint of the coordinator's endpoint.
        seconds: that it lives without being renewed.
    """

    topic: str
    secret: str = field(repr=False)
    first: int
    last: int
    control: str
    seconds: float

    @property
    def name(self) -> str:
        """What others may know it by, and what `jobpipe topics leases list` shows."""
        return lease_name(self.secret)

    def request(self) -> LeaseRequest:
        """Return what takes or renews it."""
        return LeaseRequest(secret=self.secret, first=self.first, last=self.last, seconds=self.seconds)


def lease_seconds(config: Config) -> float:
    """Return for how long a lease is asked."""
    return min(config.read_timeout, MOST_SECONDS)


@contextmanager
def held_while(held: HeldLease | None, config: Config) -> Iterator[None]:
    """Renew a lease in a thread of its own while the block lasts. Without one, do nothing."""
    if held is None:
        yield
        return
    over = threading.Event()
    keeper = threading.Thread(target=_keep, args=(held, config, over), name=f"lease-{held.topic}", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join(END_SECONDS)  # longer only in the middle of a call that is not answered


def _keep(held: HeldLease, config: Config, over: threading.Event) -> None:
    pause = held.seconds / 4
    while True:
        key = (os.getpid(), held.name)
        if time.monotonic() - _renewed.get(key, -pause) >= pause:
            if len(_renewed) >= REMEMBERED:
                _renewed.clear()
            _renewed[key] = time.monotonic()  # also if it fails: the next attempt has its time
            held = _renew(held, config)
        if over.wait(pause):
            return


def _renew(held: HeldLease, config: Config) -> HeldLease:
    """Renew once; return where to ask next time."""
    endpoint = Endpoint.parse(held.control)
    try:
        with pooled(endpoint, held.topic, on_this_node(config, endpoint)) as link:
            ask_blocking(link, held.request(), timeout=CALL_SECONDS)
    except JobpipeError as error:
        log.warning("topic %s: lease %s cannot be renewed now: %s", held.topic, held.name, error)
        found = refresh_location(config, held.topic, None, Deadline(CALL_SECONDS))
        return held if found is None else replace(held, control=str(found.control))
    return held
