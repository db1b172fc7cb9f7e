"""One coordinator process that serves logs which were written before, as ``jobpipe topics serve`` does."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace

from jobpipe.admin import Admin
from jobpipe.config import Config
from jobpipe.discovery.configured_tls import dial_tls
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.publishing.coordinator_launcher import CoordinatorProcess, attach, end_coordinators
from jobpipe.wire.wire_messages import Hello

OPEN_SECONDS = 60.0
CALL_SECONDS = 30.0
KEEP_SECONDS = 5.0
FOREVER_SECONDS = 10 * 365 * 86_400.0


class Served:
    """The coordinator, and what it says of its topics."""

    def __init__(self, config: Config, coordinator: CoordinatorProcess) -> None:
        self._config = config
        self._coordinator = coordinator
        self._admin = Admin(config)
        self._publishers: list[BlockingLink] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_links, daemon=True)
        self._thread.start()

    def open(self, topic: str, links: ExitStack) -> None:
        """Serve ``topic`` until ``links`` are closed."""
        publisher = links.enter_context(self._link(topic))
        keep = replace(self._config, retention_time=FOREVER_SECONDS, retention_bytes=2**60)
        order = {"name": "the test", "parallelism": 1, "serve": True, "config": keep.to_dict()}
        publisher.call("open", {**order, "job": self._coordinator.secret}, timeout=OPEN_SECONDS)
        self._publishers.append(publisher)

    def committed(self, topic: str, name: str) -> int:
        """Return the offset before which the subscription has acknowledged everything."""
        stands = self._admin.drop(topic, name, dry_run=True).before
        assert stands is not None, f"{topic}: subscription {name} stands nowhere"
        return int(stands)

    def close(self) -> None:
        """Keep the links no longer."""
        self._over.set()
        self._thread.join()
        self._admin.close()

    def _keep_links(self) -> None:
        """Use each link now and then: the coordinator ends those that are idle."""
        while not self._over.wait(KEEP_SECONDS):
            for link in list(self._publishers):
                link.call("status", {"job": self._coordinator.secret}, timeout=CALL_SECONDS)

    @contextlib.contextmanager
    def _link(self, topic: str) -> Iterator[BlockingLink]:
        endpoint = self._coordinator.endpoint
        tls = dial_tls(self._config, endpoint)
        name = topic_server_name(topic) if tls else None
        hello = Hello(topic=topic, role="publisher", instance=uuid.uuid4().hex)
        link = BlockingLink.connect(endpoint, hello, tls=tls, server_hostname=name)
        try:
            yield link
        finally:
            link.close()


@contextlib.contextmanager
def serving(config: Config, topics: Iterable[str]) -> Iterator[Served]:
    """Serve what lies in the spool of ``config`` until the end of the block."""
    with ExitStack() as links:
        links.callback(end_coordinators)
        served = Served(config, attach(config))
        for topic in topics:
            served.open(topic, links)
        links.callback(served.close)  # first of all
        yield served
