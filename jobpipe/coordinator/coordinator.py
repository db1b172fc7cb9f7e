"""The coordinator's state: its topics, its registry session, and when it ends.

One coordinator serves all topics of one publisher job. It watches its parent, the driver. While the driver lives it
stays; once every topic is closed, or the driver is gone, it goes on serving what is sealed until all subscriptions have
acknowledged everything or nothing has advanced for ``coordinator.linger``, and hands a topic over at once to a
publisher that asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from jobpipe.config import Config
from jobpipe.coordinator.background_tasks import BackgroundTasks
from jobpipe.coordinator.data.count_pipe import Line
from jobpipe.coordinator.data.data_process_handle import DataProcessHandle
from jobpipe.coordinator.registration.claimed_epoch_check import ClaimedEpochCheck
from jobpipe.coordinator.registration.host_servers import HostServers
from jobpipe.coordinator.registration.topic_registration import TopicRegistration
from jobpipe.coordinator.topic.served_topic import ServedTopic
from jobpipe.coordinator.topic_counts import TopicCounts
from jobpipe.coordinator.topic_liveness import ParentWatch, WatchedParent
from jobpipe.errors import Fenced, JobpipeError, LinkEnded, TopicNotFound, TopicOwned
from jobpipe.net.address import Endpoint
from jobpipe.net.servers.identity_quota import IdentityQuotas
from jobpipe.net.servers.write_tokens import log_place
from jobpipe.operations.admin_operations import Driver
from jobpipe.operations.publisher_operations import Admitted, OpenRequest
from jobpipe.store.log.topic_log import TopicLog
from jobpipe_registry.handler import RegisterServerHandler

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2  # acknowledgements reach the disk so often, if all topics fit into a tick
LOOK_EVERY = 5  # ticks between two looks at the parent
RETAIN_SECONDS = 0.9  # between two looks at a topic's retention, if there are few topics
RETAINS_A_TICK = 10  # topics: retention asks a log for much, so 500 topics have theirs every 10 s
LINE_SECONDS = 10.0  # that a line of the data process waits for the loop
CLOSE_SECONDS = 5.0  # that the log's thread has for what it was told before; a newcomer waits 15 s for a hand-over
TICKS_AT_ONCE = 2  # the threads of more logs would take the interpreter from each other, at many times the cost
SLOW_SECONDS = 0.02  # a tick that takes longer holds up no other
ANSWER_SECONDS = 1.0  # of a topic's log, when all are asked in turn


@dataclass
class _Caller:
    """Who asked for a topic to be opened; ``gone`` when the request was cancelled."""

    gone: bool = False


class Coordinator:
    """Owns the topics of this process."""

    def __init__(
        self,
        config: Config,
        handler: RegisterServerHandler,
        *,
        control: Endpoint,
        data: DataProcessHandle,
        parent: WatchedParent | None,
        instance: str,
        quotas: IdentityQuotas | None = None,
    ) -> None:
        self.config = config
        self._quotas = quotas
        self.control_endpoint = control
        self.instance = instance
        self._data = data
        self.host_servers = HostServers(config, data)
        self._restarting_data = False
        self._data_starts = 0
        self.topics: dict[str, ServedTopic] = {}
        self.finished = asyncio.Event()
        self._handler = handler
        self._parent = parent
        self.parent_watch = ParentWatch(parent, config.linger)
        self._open_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by topic, to be opened
        self._openings = 0  # under way
        self._registration = TopicRegistration(handler, config, control=control, data=data, instance=instance)
        self._drops: dict[str, asyncio.Task[None]] = {}  # under way, by topic
        self._ticks: dict[ServedTopic, asyncio.Task[None]] = {}
        self._background = BackgroundTasks()
        self._higher: dict[str, ClaimedEpochCheck] = {}
        self._lost: set[str] = set()  # topics that another publisher has claimed while they were being opened
        self._touched = time.monotonic()
        self._had_topic = False
        loop = asyncio.get_running_loop()

        def on_lost(topic: str) -> None:
            loop.call_soon_threadsafe(self._spawn_lost, topic)

        def on_line(line: Line) -> None:
            with contextlib.suppress(RuntimeError, CancelledError, TimeoutError):  # the loop has ended, or is slow
                asyncio.run_coroutine_threadsafe(self._take_line(line), loop).result(LINE_SECONDS)  # one at a time

        handler.on_lost = on_lost
        self._counts = TopicCounts(self.topics)
        data.on_line = on_line

    async def _take_line(self, line: Line) -> None:
        self._counts.take(line)

    @property
    def data_endpoint(self) -> Endpoint:
        """Where segments are served now."""
        return self._data.endpoint

    def driver(self, topic: ServedTopic) -> Driver | None:
        """Return the process whose topic it is, for people: pid and application; None when there is none."""
        if self._parent is None:
            return None
        return Driver(self._parent.pid, topic.asked.application)

    def touch(self) -> None:
        """Note that the job asked for something."""
        self._touched = time.monotonic()

    def admitted(self, topic: ServedTopic, write_id: str) -> Admitted:
        """Return what a publisher, or a task, must know to write under a write id."""
        return Admitted(
            write_id=write_id,
            data=str(self.data_endpoint),
            hosts=tuple(self.host_servers.registered) if topic.config.spool_placement == "host" else (),
            instance=self.instance,
        )

    async def open_topic(self, topic: str, asked: OpenRequest) -> ServedTopic:
        """Take a topic over for this job's publisher: claim, epoch, log, registration.

        Raises:
            TopicOwned: another live publisher has it, or another sink of this job.
            LinkEnded: this coordinator is ending; the job starts another one.
        """
        if self.finished.is_set():
            raise LinkEnded("this coordinator is ending", instance=self.instance)
        caller = _Caller()
        opening = self._background.start(self._open(topic, asked, caller))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # A claim, an epoch and a log are not left half taken. What was opened for a request that is gone counts
            # as closed by its publisher, so that the job may open it again.
            caller.gone = True
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().publishing = False
            raise

    @property
    def opening(self) -> bool:
        """True while a topic is being opened."""
        return self._openings > 0

    async def _open(self, topic: str, asked: OpenRequest, caller: _Caller) -> ServedTopic:
        lock = self._open_locks.get(topic)
        if lock is None:
            lock = self._open_locks[topic] = asyncio.Lock()
        self._openings += 1
        try:
            async with lock:  # of this topic alone: taking one over may mean waiting for its owner
                return await self._opened(topic, asked, caller)
        finally:
            self._openings -= 1

    async def _opened(self, topic: str, asked: OpenRequest, caller: _Caller) -> ServedTopic:
        if (drop := self._drops.get(topic)) is not None:
            await asyncio.wait({drop})  # else it would release what is claimed now
        present = self.topics.get(topic)
        if present is not None:
            again = present.publishing and asked.opener != "" and present.asked.opener == asked.opener
            if again and asked.same_settings(present.asked):
                return present  # its answer was lost with its link, or it is another process of the same publisher
            if present.publishing and not again and not self.parent_watch.is_dead():
                raise TopicOwned(
                    f"topic {topic!r} already has a publisher in this job: {present.asked.name!r} "
                    f"(pid {self._parent.pid if self._parent else os.getpid()}); use that sink, or "
                    f"close it first: jobpipe.close({topic!r}), or make the new one with replace=True",
                    topic=topic,
                    owner={
                        "name": present.asked.name,
                        "host": socket.gethostname(),
                        "pid": os.getpid(),
                        "driver": self.driver(present),
                    },
                )
            await self._drop(present)
        if self.finished.is_set():
            raise LinkEnded("this coordinator is ending", instance=self.instance)
        self._lost.discard(topic)

        def check_wanted() -> None:
            if caller.gone or self.finished.is_set():
                raise LinkEnded(f"topic {topic!r}: no request waits for it any more", instance=self.instance)

        data_starts = self._data_starts
        served = await self._take_over(topic, asked, check_wanted)
        served.publishing = served.publishing and not caller.gone
        self.topics[topic] = served
        self._had_topic = True
        self._background.start(self.host_servers.tidy(served))
        if data_starts != self._data_starts:  # it may have been registered with the endpoint of a dead process
            self._background.start(self._register_again(served))
        if topic in self._lost:  # said while it was not in the table yet
            self._spawn_lost(topic)
        return served

    async def _take_over(self, topic: str, asked: OpenRequest, check_wanted: Callable[[], None]) -> ServedTopic:
        config = asked.config
        await self._registration.claim(topic, asked.name, check_wanted)
        store: TopicLog | None = None
        served: ServedTopic | None = None
        try:
            store = await asyncio.to_thread(
                TopicLog.open,
                config.spool_dir / topic,
                topic,
                fsync=config.fsync,
                shared=config.spool_placement == "shared",
            )
            await asyncio.to_thread(store.keep_to, config.namespace)
            if config.acks == "all" and not asked.serve:
                await asyncio.to_thread(self._registration.restore, store)
            if asked.serve:  # as its publisher had it
                asked = dataclasses.replace(asked, parallelism=await asyncio.to_thread(store.batches.parallelism))
            epoch = await self._registration.draw_epoch(topic, store.epoch)
            await asyncio.to_thread(store.take_over, epoch, asked.name, serve=asked.serve)
            if not asked.serve:  # who only serves changes nothing of what the publisher asked for
                await asyncio.to_thread(store.required.declare, asked.required)
                await asyncio.to_thread(store.holds.clip, config.hold_max_time)
            swept = 0 if asked.serve else await asyncio.to_thread(store.cleaner.sweep, asked.in_progress)
            await asyncio.to_thread(store.mark, self.instance)
            place = log_place(topic, store.log_id, store.write_token)
            await asyncio.to_thread(self._data.announce_topic, topic, config.spool_dir / topic, place)
            keep_point = self._registration.keep_recovery_point
            keep = None if asked.serve else await asyncio.to_thread(keep_point, store, config.acks)
            served = await ServedTopic.open(topic, store, asked, keep, self._quotas)
            if served.uses_hosts:
                await self.host_servers.refresh([*self.topics.values(), served])
            await self._registration.announce(served)
        except BaseException:
            try:
                if served is not None:
                    await served.close(CLOSE_SECONDS)
                elif store is not None:
                    await asyncio.to_thread(store.close)
            except JobpipeError as error:
                log.warning("topic %s: closing the log: %s", topic, error)
            finally:
                await self._registration.withdraw(topic, asked.parallelism)
            raise
        log.info("topic %s: epoch %d, head %d, swept %d orphans", topic, epoch, served.head.n, swept)
        return served

    async def take_back(self, topic: ServedTopic, query_id: str, batch_id: int) -> None:
        """Undo the seal of the newest batch under a higher epoch, so that the two can be told apart."""
        await self._background.run(self._take_back(topic, query_id, batch_id))

    async def _take_back(self, topic: ServedTopic, query_id: str, batch_id: int) -> None:
        async with topic.renewing:
            if not await topic.must_be_sealed_again(query_id, batch_id):
                return  # a call before this one has done it
            async with topic.registering:  # not around calls to the log: its disk may hang, and the topic be given up
                topic.require_served()  # a number that is drawn later fences who serves it then
                epoch = await self._registration.draw_epoch(topic.topic, topic.epoch)
            await topic.raise_epoch(epoch)
            async with topic.registering:
                await self._registration.announce(topic)
            await topic.take_back(query_id, batch_id)

    async def close_publisher(self, topic: ServedTopic, *, final: bool) -> None:
        """The publisher is done; with ``final`` seal an end mark. What is sealed is still served."""
        await self._background.run(self._close_publisher(topic, final=final))

    async def _close_publisher(self, topic: ServedTopic, *, final: bool) -> None:
        if final and topic.publishing:
            await topic.seal_end()
        topic.publishing = False
        topic.progress_at = time.monotonic()

    async def hand_over(self, topic: ServedTopic, to: str) -> bool:
        """Release a topic whose publisher is gone; False while the publisher lives."""
        if topic.publishing and not self.parent_watch.is_dead():
            return False
        log.info("topic %s: handed over to %s", topic.topic, to)
        await self._drop(topic)
        return True

    async def refuse_epoch(self, topic: ServedTopic, named: int) -> TopicNotFound:
        """Return the reply to a peer that has named a higher epoch; if that exists, stop serving the topic."""
        higher = self._higher.get(topic.topic)
        if higher is None or higher.topic is not topic:
            registered = partial(self._registration.highest_epoch, topic.topic)
            higher = self._higher[topic.topic] = ClaimedEpochCheck(topic, registered, self._background)
        exists = await higher.exists()
        if exists:
            log.warning("topic %s: fenced, a higher epoch than %d exists", topic.topic, topic.epoch)
            await self._drop(topic)
        return higher.refusal(named, exists=exists)

    async def _drop(self, topic: ServedTopic, *, withdraw: bool = True) -> None:
        """Stop serving a topic. Concurrent calls are one, and run to the end even if their callers are cancelled."""
        name = topic.topic
        drop = self._drops.get(name)
        if drop is None:
            if self.topics.get(name) is not topic:
                return  # done
            del self.topics[name]
            self._higher.pop(name, None)
            drop = self._drops[name] = self._background.start(self._dropped(topic, withdraw=withdraw))
            drop.add_done_callback(lambda _: self._drops.pop(name, None))
        await asyncio.shield(drop)

    async def _dropped(self, topic: ServedTopic, *, withdraw: bool) -> None:
        # First the log: nothing is sealed from the first statement of `close` on, and what was being sealed is in the
        # catalog before another publisher can claim the topic and look at it. A disk that hangs may keep the log's
        # thread longer than we wait: then the epoch fences. The seal that it is about to make is a transaction
        # "where epoch is mine", so it either commits before the successor's take-over, which then sees it, or fails.
        await topic.close(CLOSE_SECONDS)
        if withdraw:
            async with topic.registering:  # waits for one call at most: the next one finds the topic closed
                await self._registration.withdraw(topic.topic, topic.asked.parallelism)

    def _spawn_lost(self, name: str) -> None:
        topic = self.topics.get(name)
        if topic is None:
            self._lost.add(name)
            return
        log.warning("topic %s: another publisher claimed it while our registry session was away", name)
        self._background.start(self._drop(topic))

    async def _restart_data_process(self) -> None:
        """The data process died: start it again and tell the registry; readers find it there. Else end ourselves."""
        log.error("the data process has died; starting it again")
        try:
            await asyncio.to_thread(self._data.start)
        except JobpipeError:
            log.exception("the data process does not start; this coordinator ends")
            self.finished.set()
            return
        finally:
            self._restarting_data = False
        self._data_starts += 1
        for topic in list(self.topics.values()):
            await self._register_again(topic)

    async def _register_again(self, topic: ServedTopic) -> None:
        try:
            async with topic.registering:
                await self._registration.register(topic)
        except TopicNotFound:
            log.debug("topic %s: given up meanwhile", topic.topic)
        except JobpipeError as error:
            log.warning("topic %s: could not register its new data endpoint: %s", topic.topic, error)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Tick until the coordinator has nothing to do any more, or ``finished`` is set by a signal."""
        count = 0
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self.finished.is_set():
            due = max(due + TICK_SECONDS, loop.time())
            try:
                async with asyncio.timeout_at(due):
                    await self.finished.wait()
            except TimeoutError:
                pass
            count += 1
            if not self._data.alive and not self._restarting_data:
                self._restarting_data = True
                self._background.start(self._restart_data_process())
            if count % LOOK_EVERY == 0 and await self._is_over() and not self.opening:
                self.finished.set()
                return
            # After the question, which passes over those that tick.
            await self._tick_all(list(self.topics.values()))
            if self.host_servers.is_due(list(self.topics.values())):
                self._background.start(self.host_servers.refresh_and_tidy(list(self.topics.values())))

    async def _tick_all(self, topics: Sequence[ServedTopic]) -> None:
        """Let time pass for topics, for few at a time; those that have to wait too long come first in the next tick."""
        now = time.monotonic()
        due = now + TICK_SECONDS
        running: set[asyncio.Task[None]] = set()
        topics = [topic for topic in topics if topic not in self._ticks]  # of the others the disk is slow, or hangs
        retained = sorted((topic for topic in topics if now - topic.retained_at > RETAIN_SECONDS), key=_retained_at)
        retaining = set(retained[:RETAINS_A_TICK])
        # Those first, so that each tick has its ten, however many it reaches.
        for topic in sorted(topics, key=lambda topic: (topic not in retaining, topic.ticked_at)):
            if time.monotonic() > due:
                return
            if topic not in retaining and topic.tick_idle():
                continue
            running.add(self._start_tick(topic, retain=topic in retaining))
            if len(running) >= TICKS_AT_ONCE:
                done, running = await asyncio.wait(running, timeout=SLOW_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not done:  # their disks are slow, or hang
                    running = set()

    def _start_tick(self, topic: ServedTopic, *, retain: bool) -> asyncio.Task[None]:
        """Let a topic's time pass in a task of its own: one that hangs or fails does not concern the others."""
        tick = self._ticks[topic] = self._background.start(self._tick(topic, retain=retain))
        tick.add_done_callback(lambda _: self._ticks.pop(topic, None))
        return tick

    async def _tick(self, topic: ServedTopic, *, retain: bool) -> None:
        try:
            await topic.tick(retain=retain)
        except Fenced as error:  # the catalog knows a higher epoch
            log.warning("topic %s: %s", topic.topic, error)
            await self._drop(topic)
        except JobpipeError:
            if not topic.closed:
                log.exception("topic %s: tick", topic.topic)

    async def _is_over(self) -> bool:
        orphan = self.parent_watch.is_dead()
        if not self._had_topic:
            return orphan or time.monotonic() - self._touched > self.config.linger
        for topic in list(self.topics.values()):
            if (topic.publishing or topic.asked.serve) and not orphan:
                return False
            if not topic.publishing and await self._is_read(topic):
                continue  # closed cleanly and read by everybody
            if self.parent_watch.left(topic) > 0:
                return False
        # A job between two sinks (a notebook) keeps its coordinator while it lives and something was asked lately.
        return orphan or time.monotonic() - self._touched > 1.0

    async def _is_read(self, topic: ServedTopic) -> bool:
        """Tell whether everybody has read all; no while that cannot be known now."""
        if topic in self._ticks:
            return False  # its disk is slow; questions would pile up
        if self._data.alive and topic.store.ledger.is_waiting:
            return False  # what was read last is judged in some seconds
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return not await topic.lagging()
        except TopicNotFound:
            return True  # given up meanwhile
        except (JobpipeError, TimeoutError) as error:
            log.info("topic %s: cannot tell now which subscriptions lag: %s", topic.topic, error)
            return False

    async def close(self) -> None:
        """Close every topic, and the registry session, which takes our registrations with it. Bounded."""
        self.finished.set()  # nothing is opened any more
        if self._drops:
            await asyncio.wait(self._drops.values(), timeout=CLOSE_SECONDS)
        await self._counts.close()
        await self._background.end()
        await asyncio.gather(*(self._drop(topic, withdraw=False) for topic in list(self.topics.values())))
        await self.host_servers.close()
        await asyncio.to_thread(self._handler.shutdown)


def _retained_at(topic: ServedTopic) -> float:
    return topic.retained_at
