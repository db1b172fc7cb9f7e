"""``jobpipe serve``: serves a spool without its job, and gives way to a publisher that returns."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from jobpipe.cli.context import Settings, pass_settings
from jobpipe.errors import Fenced, TopicNotFound

if TYPE_CHECKING:
    from jobpipe.config import Config
    from jobpipe.net.blocking import BlockingLink
    from jobpipe.publisher.attach import Coordinator

__all__ = ["serve"]

OPEN_SECONDS = 90.0  # a dead owner's registry session may have to end first
LOOK_SECONDS = 0.5  # between two looks at whether we were told to stop
FOREVER_SECONDS = 10 * 365 * 86_400.0
UNLIMITED_BYTES = 2**60


@click.command()
@click.argument("topic")
@pass_settings
def serve(settings: Settings, topic: str) -> None:
    """Serve TOPIC while its publisher is away.

    From its spool on this host, without Spark: subscribers read on. Ends when a publisher of the topic returns, which
    takes it over at once, or on Ctrl-C or SIGTERM. Removes no rows and forgets no subscription, whatever the
    retention. Ends with 1 if there is no spool, or a publisher lives.
    """
    config = settings.config
    _check_spool(config, topic)
    from jobpipe.publisher.attach import attach, end_coordinators

    stand_in = replace(
        config,
        retention_time=FOREVER_SECONDS,
        retention_bytes=UNLIMITED_BYTES,
        subscription_expiry=FOREVER_SECONDS,
    )
    with ExitStack() as stack:
        stack.callback(end_coordinators)
        coordinator = attach(config)
        link = stack.enter_context(_open(config, stand_in, topic, coordinator))
        stopped = stack.enter_context(_stopping())
        click.echo(f"serving {topic} at {coordinator.endpoint}; Ctrl-C ends it")
        news: dict[str, Any] = {}
        while not stopped.is_set():
            try:
                news = link.call("poll", {**news, "wait": LOOK_SECONDS, "job": coordinator.secret}, timeout=30.0).result
            except (Fenced, TopicNotFound):
                click.echo(f"a publisher of {topic} has taken it over")
                return
        click.echo("stopped")


def _check_spool(config: Config, topic: str) -> None:
    from jobpipe.store.files import CATALOG, check_topic

    check_topic(topic)
    place = config.spool_dir / topic
    if not (place / CATALOG).is_file():
        raise TopicNotFound(
            f"topic {topic!r} has no spool in {place.parent}: serve it on the host, and with the jobpipe.spool.dir, "
            "of its publisher",
            topic=topic,
            directory=str(place),
        )


@contextlib.contextmanager
def _open(config: Config, stand_in: Config, topic: str, coordinator: Coordinator) -> Iterator[BlockingLink]:
    """Take the topic over for nobody: a publisher that asks gets it."""
    from jobpipe.discovery.security import dial_tls
    from jobpipe.net.blocking import BlockingLink
    from jobpipe.net.certs import topic_server_name
    from jobpipe.wire.messages import Hello

    endpoint = coordinator.endpoint
    tls, name = dial_tls(config, endpoint), f"jobpipe serve@{socket.gethostname()}, pid {os.getpid()}"
    hello = Hello(topic=topic, role="publisher", name=name, instance=uuid.uuid4().hex)
    link = BlockingLink.connect(endpoint, hello, tls=tls, server_hostname=topic_server_name(topic) if tls else None)
    try:
        link.call(
            "open",
            {
                "name": name,
                "parallelism": 1,
                "serve": True,
                "config": stand_in.to_dict(),
                "job": coordinator.secret,
            },
            timeout=OPEN_SECONDS,
        )
        yield link
    finally:
        link.close()


@contextlib.contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set. Signals reach the main thread only."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, present in before.items():
            signal.signal(number, present)
