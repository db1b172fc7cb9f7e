"""The coordinator's state: its topics, its registry session, and when it ends.

One coordinator serves all topics of one publisher job. It watches its parent, the driver. While the driver lives it
stays; once every topic is closed, or the driver is gone, it goes on serving what is sealed until all subscriptions have
acknowledged everything or nothing has advanced for ``coordinator.linger``, and hands a topic over at once to a
publisher that asks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from jobpipe.config import Config
from jobpipe.coordinator.data_child import DataChild
from jobpipe.coordinator.host_servers import HostServers
from jobpipe.coordinator.ownership import claim_topic
from jobpipe.coordinator.topic import ServedTopic, TopicSettings
from jobpipe.discovery.handler import map_registry_errors
from jobpipe.discovery.security import dial_tls
from jobpipe.errors import Fenced, JobpipeError, LinkEnded, TopicOwned
from jobpipe.net.address import Endpoint
from jobpipe.operations.control import OpenRequest
from jobpipe.store import NewBatch, RecoveryPoint, TopicLog
from jobpipe.store.marker import mark_directory
from registry.handler import RegisterServerHandler
from registry.machine import Place, lives, start_ticks
from registry.records import OwnerRecord, RegisterRecord

__all__ = ["Host", "Parent"]

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2  # acknowledgements reach the disk at least this often
RETAIN_EVERY = 5  # ticks between two looks at retention and the parent
HANDOVER_EXTRA_SECONDS = 5.0


@dataclass(frozen=True)
class Parent:
    """The process whose end ends the coordinator; see :func:`registry.machine.lives`."""

    pid: int
    started: float
    ticks: int = 0


class Host:
    """Owns the topics of this process."""

    def __init__(
        self,
        config: Config,
        handler: RegisterServerHandler,
        *,
        control: Endpoint,
        data: DataChild,
        parent: Parent | None,
        instance: str,
    ) -> None:
        self.config = config
        self.control_endpoint = control
        self.instance = instance
        self._data = data
        self.hosts = HostServers(config, data)
        self._mending = False
        self.topics: dict[str, ServedTopic] = {}
        self.finished = asyncio.Event()
        self._handler = handler
        self._parent = parent
        self._opening = asyncio.Lock()
        self._place = Place.here()
        self._started = psutil.Process().create_time()
        self._touched = time.monotonic()
        self._had_topic = False
        self._orphan_since: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()

        def on_lost(topic: str) -> None:
            loop.call_soon_threadsafe(self._spawn_lost, topic)

        handler.on_lost = on_lost

    @property
    def data_endpoint(self) -> Endpoint:
        """Where segments are served now."""
        return self._data.endpoint

    def driver(self, topic: ServedTopic) -> dict[str, Any] | None:
        """Return the process whose topic it is, for people: pid and application; None when there is none."""
        if self._parent is None:
            return None
        return {"pid": self._parent.pid, "application": topic.settings.application}

    def touch(self) -> None:
        """Note that the job asked for something."""
        self._touched = time.monotonic()

    # -- topics --------------------------------------------------------------------------------------------------------

    async def open_topic(self, topic: str, asked: OpenRequest) -> ServedTopic:
        """Take a topic over for this job's publisher: claim, epoch, log, registration.

        Raises:
            TopicOwned: another live publisher has it, or another sink of this job.
            LinkEnded: this coordinator is ending; the job starts another one.
        """
        if self.finished.is_set():
            raise LinkEnded("this coordinator is ending", instance=self.instance)
        settings = TopicSettings(
            publisher=asked.name,
            parallelism=asked.parallelism,
            required=asked.required,
            min_subscribers=asked.min_subscribers,
            serve=asked.serve,
            application=asked.application,
            writing=asked.writing,
        )
        config = asked.config
        async with self._opening:
            present = self.topics.get(topic)
            if present is not None:
                if present.publishing and not self._parent_is_dead():
                    raise TopicOwned(
                        f"topic {topic!r} already has a publisher in this job: {present.settings.publisher!r} "
                        f"(pid {self._parent.pid if self._parent else os.getpid()}); use that sink, or "
                        "close() it first",
                        topic=topic,
                        owner={
                            "name": present.settings.publisher,
                            "host": self._place.host,
                            "pid": os.getpid(),
                            "driver": self.driver(present),
                        },
                    )
                await self._drop(present, unregister=True)
            served = await self._take_over(topic, config, settings)
            self.topics[topic] = served
            self._had_topic = True
            return served

    async def _take_over(self, topic: str, config: Config, settings: TopicSettings) -> ServedTopic:
        epoch = 0

        def make_owner() -> OwnerRecord:
            return self._owner(settings.publisher, epoch)

        await claim_topic(
            self._handler,
            topic,
            make_owner,
            tls=partial(dial_tls, self.config),
            timeout=self.config.registry_session_timeout + HANDOVER_EXTRA_SECONDS,
        )
        store: TopicLog | None = None
        try:
            store = await asyncio.to_thread(
                TopicLog.open,
                config.spool_dir / topic,
                topic,
                fsync=config.fsync,
                shared=config.spool_placement == "shared",
            )
            await asyncio.to_thread(store.keep_to, config.namespace)
            if config.acks == "all" and not settings.serve:
                await asyncio.to_thread(self._restore, store)
            if settings.serve:  # as its publisher had it
                settings = dataclasses.replace(settings, parallelism=await asyncio.to_thread(store.parallelism))
            with map_registry_errors():
                epoch = await asyncio.to_thread(self._handler.next_epoch, topic, store.epoch + 1)
                await asyncio.to_thread(store.take_over, epoch, settings.publisher)
                await asyncio.to_thread(self._handler.claim, topic, make_owner())
            if not settings.serve:  # who only serves changes nothing of what the publisher asked for
                await asyncio.to_thread(store.require, settings.required)
            swept = 0 if settings.serve else await asyncio.to_thread(store.sweep, {settings.writing})
            await asyncio.to_thread(mark_directory, store.directory, self.instance)
            await asyncio.to_thread(self._data.tell, topic, config.spool_dir / topic)
            keep = None if settings.serve else await asyncio.to_thread(self._keep_recovery_point, store, config.acks)
            served = ServedTopic(topic, store, config, settings, keep)
            if served.uses_hosts:
                await self.hosts.look([*self.topics.values(), served])
            await self._register(served)
        except BaseException:
            if store is not None:
                await asyncio.to_thread(store.close)
            with map_registry_errors():
                await asyncio.to_thread(self._handler.release, topic)
            raise
        log.info("topic %s: epoch %d, head %d, swept %d orphans", topic, epoch, served.head.n, swept)
        return served

    def _restore(self, store: TopicLog) -> None:
        """Let a new log go on where the topic's former one was, if that was lost: the registry knows; blocking."""
        if not store.is_new:
            return
        with map_registry_errors():
            text = self._handler.recovery_point(store.topic)
        if text is not None:
            point = RecoveryPoint.from_text(text)
            store.restore(point)
            log.warning(
                "topic %s: its spool is gone; log %s goes on at offset %d", store.topic, point.log, point.start_n
            )

    def _keep_recovery_point(self, store: TopicLog, acks: str) -> Callable[[str], None] | None:
        """With ``acks=all`` leave the first recovery point, and return what leaves the others; blocking.

        Without it an old point would only mislead.
        """
        topic = store.topic

        def keep(text: str | None) -> None:
            with map_registry_errors():
                self._handler.set_recovery_point(topic, store.epoch, text)

        with map_registry_errors():
            known = self._handler.recovery_point(topic)
        if acks == "all":
            keep(store.recovery_point().to_text())
            return keep
        if known is not None:
            keep(None)
        return None

    async def renew_epoch(self, topic: ServedTopic) -> None:
        """Raise the epoch of a topic of ours: what is sealed from now on can be told from what was sealed before."""
        with map_registry_errors():
            epoch = await asyncio.to_thread(self._handler.next_epoch, topic.topic, topic.epoch + 1)
            await topic.run(topic.store.take_over, epoch, topic.settings.publisher)
            topic.epoch = epoch
            await asyncio.to_thread(self._handler.claim, topic.topic, self._owner(topic.settings.publisher, epoch))
        await self._register(topic)

    def _owner(self, publisher: str, epoch: int) -> OwnerRecord:
        return OwnerRecord(
            endpoint=str(self.control_endpoint),
            epoch=epoch,
            instance=self.instance,
            name=publisher,
            host=self._place.host,
            pid=os.getpid(),
            started=self._started,
            boot=self._place.boot,
            pid_namespace=self._place.pid_namespace,
            ticks=start_ticks(os.getpid()),
        )

    async def _register(self, topic: ServedTopic) -> None:
        for index in range(1, topic.settings.parallelism + 1):
            record = RegisterRecord(
                host=self.control_endpoint.host,
                port=self.control_endpoint.port,
                parallelism=topic.settings.parallelism,
                index=index,
                coordinator=str(self.control_endpoint),
                data=str(self.data_endpoint),
                epoch=topic.epoch,
                instance=self.instance,
                ssl=self.config.tls,
            )
            with map_registry_errors():
                await asyncio.to_thread(self._handler.register, topic.topic, record)

    async def close_publisher(self, topic: ServedTopic, *, final: bool) -> None:
        """The publisher is done; with ``final`` seal an end mark. What is sealed is still served."""
        if final and topic.publishing and not topic.ended:
            await topic.seal(NewBatch.end_mark(topic.settings.parallelism), [])
        topic.publishing = False
        topic.progress_at = time.monotonic()

    async def hand_over(self, topic: ServedTopic, to: str) -> bool:
        """Release a topic whose publisher is gone; False while the publisher lives."""
        if topic.publishing and not self._parent_is_dead():
            return False
        log.info("topic %s: handed over to %s", topic.topic, to)
        await self._drop(topic, unregister=True)
        return True

    async def fence(self, topic: ServedTopic, epoch: int) -> None:
        """A higher epoch exists: stop sealing and serving this topic."""
        log.warning("topic %s: fenced, epoch %d exists and ours is %d", topic.topic, epoch, topic.epoch)
        await self._drop(topic, unregister=True)

    async def _drop(self, topic: ServedTopic, *, unregister: bool) -> None:
        if self.topics.get(topic.topic) is topic:
            del self.topics[topic.topic]
        await topic.close()
        if not unregister:
            return
        try:
            with map_registry_errors():
                for index in range(1, topic.settings.parallelism + 1):
                    await asyncio.to_thread(self._handler.unregister, topic.topic, index)
                await asyncio.to_thread(self._handler.release, topic.topic)
                await asyncio.to_thread(self._handler.delete_topic_node, topic.topic)
        except JobpipeError as error:
            log.warning("topic %s: could not unregister: %s", topic.topic, error)

    def _spawn_lost(self, name: str) -> None:
        async def lost() -> None:
            topic = self.topics.get(name)
            if topic is not None:
                log.warning("topic %s: another publisher claimed it while our registry session was away", name)
                await self._drop(topic, unregister=True)

        self._spawn(lost())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the coordinator failed", exc_info=error)

    async def _mend_data(self) -> None:
        """The data process died: start it again and tell the registry; readers find it there. Else end ourselves."""
        log.error("the data process has died; starting it again")
        try:
            await asyncio.to_thread(self._data.start)
        except JobpipeError:
            log.exception("the data process does not start; this coordinator ends")
            self.finished.set()
            return
        finally:
            self._mending = False
        for topic in list(self.topics.values()):
            try:
                await self._register(topic)
            except JobpipeError as error:
                log.warning("topic %s: could not register its new data endpoint: %s", topic.topic, error)

    # -- life ----------------------------------------------------------------------------------------------------------

    def _parent_is_dead(self) -> bool:
        if self._parent is None:
            return False
        return lives(self._parent.pid, self._parent.started, self._parent.ticks) is False

    async def live(self) -> None:
        """Tick until the coordinator has nothing to do any more, or ``finished`` is set by a signal."""
        last, count = time.monotonic(), 0
        while not self.finished.is_set():
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self.finished.wait()
            except TimeoutError:
                pass
            now = time.monotonic()
            count += 1
            retain = count % RETAIN_EVERY == 0
            if not self._data.alive and not self._mending:
                self._mending = True
                self._spawn(self._mend_data())
            for topic in list(self.topics.values()):
                try:
                    await topic.tick(now - last, retain=retain)
                except Fenced as error:  # the catalog knows a higher epoch
                    log.warning("topic %s: %s", topic.topic, error)
                    await self._drop(topic, unregister=True)
                except JobpipeError:
                    if not topic.closed:
                        log.exception("topic %s: tick", topic.topic)
            last = now
            if self.hosts.is_due(list(self.topics.values())):
                self._spawn(self.hosts.look(list(self.topics.values())))
            if retain and await self._is_over() and not self._opening.locked():
                self.finished.set()

    async def _is_over(self) -> bool:
        now, orphan = time.monotonic(), self._parent_is_dead()
        if orphan and self._orphan_since is None:
            self._orphan_since = now
            log.info("the publisher's process is gone; serving what is sealed for %g s", self.config.linger)
        if not self._had_topic:
            return orphan or now - self._touched > self.config.linger
        for topic in list(self.topics.values()):
            if (topic.publishing or topic.settings.serve) and not orphan:
                return False
            if not topic.publishing and not await topic.lagging():
                continue  # closed cleanly and read by everybody
            if now - max(topic.progress_at, self._orphan_since or 0.0) < self.config.linger:
                return False
        # A job between two sinks (a notebook) keeps its coordinator while it lives and something was asked lately.
        return orphan or time.monotonic() - self._touched > 1.0

    async def close(self) -> None:
        """Close every topic, and the registry session, which takes our registrations with it. Bounded."""
        for topic in list(self.topics.values()):
            await self._drop(topic, unregister=False)
        for task in list(self._tasks):
            task.cancel()
        await self.hosts.close()
        await asyncio.to_thread(self._handler.shutdown)
