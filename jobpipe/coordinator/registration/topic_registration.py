"""This coordinator's topics in the registry: claim, epoch, registrations, recovery points."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial

import psutil

from jobpipe.config import Config
from jobpipe.coordinator.data.data_process_handle import DataProcessHandle
from jobpipe.coordinator.registration.topic_claim import claim_topic
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.discovery.configured_tls import dial_tls
from jobpipe.discovery.epoch_repair import implausible, readable_point
from jobpipe.discovery.registry_handler import map_registry_errors
from jobpipe.errors import JobpipeError
from jobpipe.net.address import Endpoint
from jobpipe.store.log.topic_log import TopicLog
from jobpipe_registry.handler import RegisterServerHandler
from jobpipe_registry.host.process_identity import PidScope, start_ticks
from jobpipe_registry.registry_errors import BadRecord
from jobpipe_registry.topic_records import MAX_EPOCH, MAX_STEP, OwnerRecord, RegisterRecord

log = logging.getLogger(__name__)

HANDOVER_EXTRA_SECONDS = 5.0


class TopicRegistration:
    """One coordinator's entries in the registry. The handler is the caller's, and so is its end."""

    def __init__(
        self,
        handler: RegisterServerHandler,
        config: Config,
        *,
        control: Endpoint,
        data: DataProcessHandle,
        instance: str,
    ) -> None:
        self._handler = handler
        self._config = config
        self._control = control
        self._data = data
        self._instance = instance
        self._place = PidScope.here()
        self._started = psutil.Process().create_time()
        self._ticks = start_ticks(os.getpid())

    async def claim(self, topic: str, publisher: str, check_wanted: Callable[[], None] = lambda: None) -> None:
        """Become the owner of ``topic``; see :func:`claim_topic`.

        Raises:
            ConfigError: the registry's epoch cannot be read. Every change there has to move it, so nothing can be done.
        """
        with map_registry_errors():
            try:
                await asyncio.to_thread(self._handler.epoch, topic)
            except BadRecord as error:
                raise implausible(topic, None, None) from error
        await claim_topic(
            self._handler,
            topic,
            partial(self._owner, publisher, 0),
            tls=partial(dial_tls, self._config),
            timeout=self._config.registry_session_timeout + HANDOVER_EXTRA_SECONDS,
            check_wanted=check_wanted,
        )

    async def draw_epoch(self, topic: str, known: int) -> int:
        """Raise the epoch in the registry, above what it and the log know; return it.

        Args:
            topic: Its name.
            known: The log's epoch.

        Raises:
            ConfigError: one of them holds a number that no take-over can have led to; nothing is taken over.
            RegistryUnavailable: no answer in time.
        """
        with map_registry_errors():
            try:
                registered = await asyncio.to_thread(self._handler.epoch, topic)
                # Before the number is raised, so that what was refused looks the same the next time.
                if registered > known + MAX_STEP or known >= MAX_EPOCH:
                    raise implausible(topic, registered, known)
                epoch = await asyncio.to_thread(self._handler.next_epoch, topic, known + 1)
            except BadRecord as error:
                raise implausible(topic, None, known) from error
            if epoch > known + 1 + MAX_STEP:  # written between the two
                raise implausible(topic, epoch, known)
        return epoch

    def highest_epoch(self, topic: str) -> int:
        """Return the registry's epoch; blocking. Raises RegistryUnavailable, also if it cannot be read."""
        with map_registry_errors():
            return self._handler.epoch(topic)

    async def announce(self, topic: ServedTopic) -> None:
        """Put the epoch into the claim, and register where the topic is served.

        Once the topic is in the coordinator's table, its ``registering`` must be held for this, and for the next two:
        a claim or a registration that is made after :meth:`withdraw` would stay as long as this process.

        Raises:
            TopicNotFound: it is not served any more.
        """
        topic.require_served()
        owner = self._owner(topic.asked.name, topic.epoch)
        with map_registry_errors():
            await asyncio.to_thread(self._handler.claim, topic.topic, owner)
        await self.register(topic)

    async def register(self, topic: ServedTopic) -> None:
        """Register where the topic is served; again, it replaces what was registered.

        Raises:
            TopicNotFound: it is not served any more.
        """
        topic.require_served()
        records = [
            RegisterRecord(
                host=self._control.host,
                port=self._control.port,
                parallelism=topic.asked.parallelism,
                index=index,
                coordinator=str(self._control),
                data=str(self._data.endpoint),
                epoch=topic.epoch,
                instance=self._instance,
                ssl=self._config.tls,
            )
            for index in range(1, topic.asked.parallelism + 1)
        ]
        with map_registry_errors():
            await asyncio.to_thread(self._handler.register_all, topic.topic, records)

    async def withdraw(self, topic: str, parallelism: int) -> None:
        """Give up the claim and the registrations. What the registry does not take now, it takes when it is back."""
        try:
            with map_registry_errors():
                await asyncio.to_thread(self._handler.withdraw, topic, parallelism)
        except JobpipeError as error:
            log.warning("topic %s: could not unregister: %s", topic, error)

    def _owner(self, publisher: str, epoch: int) -> OwnerRecord:
        return OwnerRecord(
            endpoint=str(self._control),
            epoch=epoch,
            instance=self._instance,
            name=publisher,
            host=self._place.host,
            pid=os.getpid(),
            started=self._started,
            boot=self._place.boot,
            pid_namespace=self._place.pid_namespace,
            ticks=self._ticks,
        )

    # -- recovery points, see store/catalog/recovery.py ----------------------------------------------------------------

    def restore(self, store: TopicLog) -> None:
        """Let a new log go on where the topic's former one was, if that was lost: the registry knows; blocking.

        Raises:
            ConfigError: the registry holds no recovery point, or an epoch that no take-over can have led to.
        """
        if not store.is_new:
            return
        with map_registry_errors():
            text = self._handler.recovery_point(store.topic)
        if text is not None:
            point = readable_point(store.topic, text, store.epoch)
            store.restore(point)
            log.warning(
                "topic %s: its spool is gone; log %s continues at offset %d", store.topic, point.log, point.start_n
            )

    def keep_recovery_point(self, store: TopicLog, acks: str) -> Callable[[str], None] | None:
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
            keep(store.recovery.point().to_text())
            return keep
        if known is not None:
            keep(None)
        return None
