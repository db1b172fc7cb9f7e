"""The host servers, as a coordinator sees them: where they are, which count as lost, and the tidying of what they keep.

Only a coordinator whose publishers use placement ``host``, or whose logs have segments with host servers, looks for
them: one more registry session, one request every few seconds, and a watch for each of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time

from jobpipe.config import Config
from jobpipe.coordinator.data.data_process_handle import DataProcessHandle
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.discovery.dial import dial
from jobpipe.discovery.host_lookup import HostDirectory
from jobpipe.errors import JobpipeError
from jobpipe.net.address import Endpoint
from jobpipe.net.links.async_link import Link
from jobpipe.operations.data_operations import ServedRequest
from jobpipe.operations.host_operations import RENEW_SECONDS, FilesRequest, ForgetLogsRequest, RemoveRequest
from jobpipe.operations.messages.calls import ask
from jobpipe.operations.status_operations import HostStatus
from jobpipe.wire.wire_messages import Hello

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # between two looks at the registry, less where lost_after is short
SWEEP_SECONDS = RENEW_SECONDS  # between two looks for files that lost attempts left on a host
CALL_SECONDS = 20.0
SERVED_SECONDS = 1.0  # for a figure in a listing; so old it may be


class HostServers:
    """Belongs to the coordinator's event loop."""

    def __init__(self, config: Config, data: DataProcessHandle) -> None:
        self._config = config
        self._data = data
        self._directory: HostDirectory | None = None
        self._endpoints: dict[str, str] = {}  # of those registered now
        self._absent: dict[str, float] = {}  # seconds for which others, that keep segments, were seen to be absent
        self._refreshed_at: float | None = None  # with an answer
        self._lost_after = config.hostserver_lost_after  # seconds; of the most patient topic, since hosts are of all
        self._announced: dict[str, str | None] = {}
        self._swept_at: dict[tuple[str, str], float] = {}  # by topic and host
        self._refreshing = asyncio.Lock()
        self._tidying: set[ServedTopic] = set()
        self._served: dict[str, tuple[float, asyncio.Future[dict[str, int | None]]]] = {}  # by topic, and asked when

    @property
    def registered(self) -> list[str]:
        """Ids of the host servers that are there, as far as known."""
        return sorted(self._endpoints)

    @property
    def lost(self) -> frozenset[str]:
        """Ids of those that were absent for ``hostserver.lost_after``."""
        return frozenset(h for h, seconds in self._absent.items() if seconds >= self._lost_after)

    def is_due(self, topics: list[ServedTopic]) -> bool:
        """Tell whether it is time for :meth:`refresh`."""
        patience = [topic.config.hostserver_lost_after for topic in topics if topic.uses_hosts]
        if self._refreshing.locked() or not patience:
            return False
        every = min(LOOK_SECONDS, max(patience) / 4)
        return self._refreshed_at is None or time.monotonic() - self._refreshed_at >= every

    async def refresh(self, topics: list[ServedTopic]) -> None:
        """Ask the registry which host servers there are, and tell the data process and the topics.

        While the registry is away no server counts as lost: then it cannot be known.

        Args:
            topics: All that are served, and the one that is about to be.
        """
        async with self._refreshing:
            try:
                found = await asyncio.to_thread(self._ask)
            except JobpipeError as error:
                log.warning("the host servers cannot be looked up: %s", error)
                self._refreshed_at = time.monotonic()
                return
            self._lost_after = max(
                (topic.config.hostserver_lost_after for topic in topics if topic.uses_hosts), default=self._lost_after
            )
            now = time.monotonic()
            passed = 0.0 if self._refreshed_at is None else now - self._refreshed_at
            self._refreshed_at, self._endpoints = now, found
            needed = set().union(*(topic.kept for topic in topics if topic.uses_hosts))
            self._absent = {h: self._absent.get(h, 0.0) + passed for h in needed - found.keys()}
            lost = self.lost
            for host in lost - {h for h, endpoint in self._announced.items() if endpoint is None}:
                log.error("host server %s counts as lost: absent for %.0f s", host, self._absent[host])
            announced: dict[str, str | None] = {**found, **dict.fromkeys(lost)}
            if announced != self._announced:
                await asyncio.to_thread(self._data.announce_hosts, announced)
                self._announced = announced
            for topic in topics:
                topic.gone = lost & topic.kept

    def _ask(self) -> dict[str, str]:
        if self._directory is None:
            self._directory = HostDirectory(self._config)
        return self._directory.hosts()

    # -- tidying -------------------------------------------------------------------------------------------------------

    async def refresh_and_tidy(self, topics: list[ServedTopic]) -> None:
        """Do as :meth:`refresh`, then let host servers remove what no batch refers to, however long they take."""
        await self.refresh(topics)
        # Not while others wait to refresh: a host server that hangs is waited for by its topic alone.
        await asyncio.gather(*(self.tidy(topic) for topic in topics))

    async def tidy(self, topic: ServedTopic) -> None:
        """Let host servers remove the topic's files that no batch refers to.

        Of a topic that is only served on, nothing is removed; host servers are shown that its log is in use.
        """
        if topic in self._tidying or topic.closed or not topic.uses_hosts:
            return
        self._tidying.add(topic)
        try:
            urgent = await topic.run(topic.store.cleaner.hosts_to_sweep) if topic.publishing else ()
            now = time.monotonic()
            self._swept_at = {key: at for key, at in self._swept_at.items() if now - at < SWEEP_SECONDS}
            for host, endpoint in list(self._endpoints.items()):
                key = (topic.topic, host)
                if host in urgent or now - self._swept_at.get(key, -SWEEP_SECONDS) >= SWEEP_SECONDS:
                    self._swept_at[key] = now
                    await self._sweep(topic, host, endpoint)
            await topic.refresh_kept()
        except JobpipeError as error:
            log.info("topic %s: tidying of host servers waits: %s", topic.topic, error)
        finally:
            self._tidying.discard(topic)

    async def _sweep(self, topic: ServedTopic, host: str, endpoint: str) -> None:
        try:
            link = await self._connect(topic.topic, endpoint, "publisher")
        except JobpipeError as error:
            log.info("topic %s: host server %s cannot be tidied now: %s", topic.topic, host, error)
            return
        try:
            after, removed, log_id, token = "", 0, topic.log_id, topic.store.write_token
            if not topic.publishing:
                await ask(link, FilesRequest(log_id, token, after), timeout=CALL_SECONDS)
                return
            while True:
                files = (await ask(link, FilesRequest(log_id, token, after), timeout=CALL_SECONDS)).files
                if not files:
                    break
                after = files[-1]
                orphans = await topic.run(topic.store.cleaner.orphans, list(files), topic.being_written)
                if orphans:
                    remove = RemoveRequest(log_id, token, tuple(orphans))
                    removed += (await ask(link, remove, timeout=CALL_SECONDS)).removed
            forget = ForgetLogsRequest(log_id, token, topic.config.subscription_expiry)
            forgotten = await ask(link, forget, timeout=CALL_SECONDS)
            if removed or forgotten.forgotten:
                log.info("topic %s: host server %s removed %d files", topic.topic, host, removed)
        finally:
            await link.close()

    async def _connect(self, topic: str, endpoint: str, role: str) -> Link:
        hello = Hello(topic=topic, role=role, name="coordinator", instance=f"coordinator-{os.getpid()}")
        return await dial(self._config, Endpoint.parse(endpoint), hello)

    # -- state ---------------------------------------------------------------------------------------------------------

    async def served(self, topic: ServedTopic) -> dict[str, int | None]:
        """Return how many bytes of the topic each process has served since its start; None for one that is silent.

        Each question dials each of them, so there is one in a second, for all who ask.
        """
        now = time.monotonic()
        self._served = {name: known for name, known in self._served.items() if now - known[0] < SERVED_SECONDS}
        if topic.topic not in self._served:
            self._served[topic.topic] = now, asyncio.ensure_future(self._ask_served(topic))
        return await asyncio.shield(self._served[topic.topic][1])

    async def _ask_served(self, topic: ServedTopic) -> dict[str, int | None]:
        asked = {"data process": str(self._data.endpoint)}
        if topic.uses_hosts:
            asked |= self._endpoints

        async def bytes_served(endpoint: str) -> int | None:
            try:
                async with asyncio.timeout(SERVED_SECONDS):
                    link = await self._connect(topic.topic, endpoint, "admin")
                    try:
                        return (await ask(link, ServedRequest(), timeout=SERVED_SECONDS)).bytes
                    finally:
                        await link.close()
            except (JobpipeError, TimeoutError, KeyError, TypeError, ValueError):
                return None

        answers = await asyncio.gather(*(bytes_served(endpoint) for endpoint in asked.values()))
        return dict(zip(asked, answers, strict=True))

    def describe(self, kept: dict[str, dict[str, int]]) -> dict[str, HostStatus]:
        """Return what each host server keeps of a topic, and whether it is there."""
        lost = self.lost
        return {
            host: HostStatus(
                **kept.get(host, {"segments": 0, "bytes": 0}),
                endpoint=self._endpoints.get(host),
                state="registered" if host in self._endpoints else "lost" if host in lost else "absent",
                absent=round(self._absent.get(host, 0.0), 1),
            )
            for host in sorted({*kept, *self._endpoints})
        }

    async def close(self) -> None:
        """End the registry session."""
        if self._directory is not None:
            await asyncio.to_thread(self._directory.close)
