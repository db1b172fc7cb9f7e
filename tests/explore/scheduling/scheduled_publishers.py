"""The publishers of the seeded runs: applications that run ``jobpipe.publisher`` itself, each topic in a thread.

Real is all of the blocking core: its channel, admissions, guard threads, repeats. Replaced are the loop thread (its
coroutines run on the run's loop while the thread waits), processes of coordinators, the host server's folder, and
uploads, which fail: a publisher reaches its spool, or ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import subprocess
import types
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from jobpipe.errors import (
    Fenced,
    JobpipeError,
    LinkBroken,
    LinkClosed,
    LinkError,
    RegistryUnavailable,
    SpoolError,
    SpoolFull,
    TopicNotFound,
    TopicOwned,
    WaitTimeout,
)
from jobpipe.net.address import Endpoint
from jobpipe.operations.messages.message_fields import R, RequestFor
from jobpipe.operations.publisher_operations import CloseRequest, SealRequest
from jobpipe.publishing import batch_target, coordinator_channel, coordinator_launcher, topic_publisher
from jobpipe.publishing.batch_target import WriteTarget
from tests.explore.interleaving.interleave_steps import Changed
from tests.explore.scheduling.scheduled_parts import HOST, CoordinatorProcess, host_folder
from tests.explore.scheduling.scheduled_process import PROCESS, Process
from tests.explore.scheduling.scheduled_threads import Event, Lock, pause, rest

if TYPE_CHECKING:
    from tests.explore.scheduling.scheduled_world import Topic, World

QUERY = "q"
IDLE_SECONDS = 4.0  # between two looks of a publisher that has nothing to publish
SURVIVED = (LinkError, RegistryUnavailable, TopicNotFound, TopicOwned, Fenced, SpoolFull, SpoolError, WaitTimeout)
"""What an application may end by while faults happen; its next one goes on."""


class Driver:
    """One Spark application: a process, its coordinator, and the topics that it publishes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.process = Process(name, world.loop)
        world.processes[self.process.pid] = self.process
        self.coordinator: CoordinatorProcess | None = None
        self._seen: coordinator_launcher.CoordinatorProcess | None = None
        self._attaching = Lock()

    def publish(self, topic: Topic, upto: int, *, final: bool) -> None:
        """Publish up to a batch id, exclusive; then close."""
        topic.driver = self
        self.process.start_thread(lambda: self._publish(topic, upto, final=final))

    def attach(self) -> coordinator_launcher.CoordinatorProcess:
        """Return the coordinator; start one if there is none. Stands for ``coordinator_launcher.attach``."""
        with self._attaching:
            if self._seen is None or self.coordinator is None or not self.coordinator.alive:
                rest(self.world.rng.uniform(0.05, 0.3))
                made = self.coordinator = self.world.start_coordinator(self.process)
                made.begun.wait()
                if made.host is None:
                    raise LinkClosed("the coordinator has ended before it was ready")
                program: Any = _Program(made)
                self._seen = coordinator_launcher.CoordinatorProcess(
                    program, made.endpoint, made.endpoint, made.instance, made.secret
                )
            return self._seen

    def _publish(self, topic: Topic, upto: int, *, final: bool) -> None:
        world, rng = self.world, self.world.rng
        try:
            publisher, run = _Publisher(self, topic), 0
            while topic.committed + 1 < upto:
                rest(rng.uniform(0.0, 1.5))
                try:
                    with publisher.while_active(self._until_stopped()):
                        self._batch(publisher, topic, topic.committed + 1, run)
                except WaitTimeout:  # the query was stopped, and is started again in the same application
                    self._close(publisher)
                    publisher, run = _Publisher(self, topic), run + 1
            if final:
                topic.finals += 1
            if final or upto < world.batches or rng.random() < 0.5:
                self._close(publisher, final=final)
                topic.closed(self, final=final)
                return
            while not world.over and topic.driver is self:  # its guard serves it, and a rare trigger asks
                rest(IDLE_SECONDS)
                publisher.status()
        except SURVIVED as error:
            world.note(f"{self.process} {topic.name} ends: {type(error).__name__}: {error}"[:160])
            world.loop.call_soon(world.driver_died, self, context=contextvars.Context())
        except JobpipeError as error:
            world.fail(f"{self.process} {topic.name}: {error!r}"[:300])

    def _batch(self, publisher: _Publisher, topic: Topic, batch_id: int, run: int) -> None:
        journal = self.world.journals[topic.name]
        journal.intend(batch_id, topic.rows.ranges(batch_id))
        publisher.seal(QUERY, batch_id, topic.rows.tables(batch_id), run_id=f"{self.process}-{topic.name}-{run}")
        journal.seal(batch_id)
        topic.committed = batch_id

    def _until_stopped(self) -> Callable[[], bool]:
        """Tell how long a query is active that may be stopped in the middle of a batch."""
        world = self.world
        if world.quiet or world.rng.random() < 0.8:
            return coordinator_channel._always
        end = world.loop.time() + world.rng.expovariate(3.0)
        return lambda: world.loop.time() < end

    @staticmethod
    def _close(publisher: _Publisher, *, final: bool = False) -> None:
        publisher.close(final=final)
        if not publisher.was_told():
            raise LinkClosed("closed without a word to the coordinator; the application ends")


class _Publisher(topic_publisher.Publisher):
    """Takes its time between admission and writing, and at times writes a file where a seal would carry the rows."""

    def __init__(self, driver: Driver, topic: Topic) -> None:
        self._driver = driver
        super().__init__(
            topic.name,
            config=topic.config,
            name=str(driver.process),
            required_subscribers=driver.world.names,
            application="explorer",
        )

    def target(self, partitions: int | None = None) -> WriteTarget:
        rng = self._driver.world.rng
        rest(rng.uniform(0.0, 0.1))
        found = super().target(partitions)
        return replace(found, inline_max=0) if rng.random() < 0.3 else found

    def was_told(self) -> bool:
        """The coordinator has answered the close."""
        told: bool = self._channel.told  # type: ignore[attr-defined]
        return told


class _Channel(coordinator_channel.CoordinatorChannel):
    """Its links are cut now and then just after a request that changes something."""

    told = False
    world: World

    def call(self, request: RequestFor[R]) -> R:
        if isinstance(request, (SealRequest, CloseRequest)) and self._link is not None and self._link.ended is None:
            self.world.strike(self._link)
        reply = super().call(request)
        self.told = self.told or isinstance(request, CloseRequest)
        return reply


class _Program:
    """A coordinator's process, as the job that has started it sees it."""

    def __init__(self, made: CoordinatorProcess) -> None:
        self._made = made

    def poll(self) -> int | None:
        return None if self._made.alive else 1

    def wait(self, timeout: float | None = None) -> int:
        if not self._made.gone.wait(timeout):
            raise subprocess.TimeoutExpired("coordinator", timeout or 0.0)
        return 1


class _LoopThread:
    """Runs coroutines on the run's loop while a thread waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(
        self,
        make: Callable[[], Coroutine[Any, Any, Any]],
        timeout: float | None,
        active: Callable[[], bool] | None = None,
        *,
        doing: str,
    ) -> Any:
        process = PROCESS.get()
        if process is not None and not process.alive:
            pause(0.0)  # which ends this thread
        done, task = Event(), self._loop.create_task(make())
        task.add_done_callback(lambda _: done.set())
        try:
            while active not in (None, coordinator_channel._always) and not done.wait(0.1):
                if not active():  # type: ignore[misc]
                    if done.wait(1.0):
                        break
                    raise WaitTimeout(f"{doing}: no answer came before the caller had to stop")
            # As the real one: who has something to ask first waits for ever, until that is no more.
            if not done.wait(timeout if active is None else None):
                raise WaitTimeout(f"{doing}: not done within {timeout:g} s", seconds=timeout)
            return task.result()
        except asyncio.CancelledError as error:
            raise LinkClosed("the portal was closed") from error
        finally:
            if not task.done():
                task.cancel()


class _LocalHostServer:
    """The host server of this host, which takes files out of a folder beside its own."""

    id = HOST

    def __init__(self, topic: Topic) -> None:
        self._to = host_folder(topic.config, topic.name)
        self.place = self._to.parent / f"{topic.name}-arriving"
        self.place.mkdir(exist_ok=True)
        self._to.mkdir(exist_ok=True)

    def take(self, path: Path, name: str) -> None:
        os.rename(path, self._to / name)

    def close(self) -> None:
        pass


class _NoUploads:
    @staticmethod
    def connect(endpoint: Endpoint, *hello: Any, **options: Any) -> Any:
        raise LinkBroken(f"{endpoint} takes no uploads here")


@contextlib.contextmanager
def publishing(world: World) -> Iterator[None]:
    """Let the publisher's modules use the run's loop, threads and coordinators, inside the block."""
    drivers = world.drivers

    def attached(config: Any) -> coordinator_launcher.CoordinatorProcess:
        return next(driver for driver in drivers if driver.process is PROCESS.get()).attach()

    def local_host_server(log: Any, known: Sequence[str], *where: Any, **how: Any) -> _LocalHostServer | None:
        if HOST not in known:
            return None
        return _LocalHostServer(next(topic for topic in world.topics if topic.name == log.topic))

    loop_thread = _LoopThread(world.loop)
    ids = Changed(uuid, uuid4=lambda: types.SimpleNamespace(hex=world.new_id()))
    with contextlib.ExitStack() as stack:
        for module, name, value in (
            (coordinator_channel, "EventLoopThread", types.SimpleNamespace(get=lambda: loop_thread)),
            (coordinator_channel, "attach", attached),
            (coordinator_channel, "uuid", ids),
            (topic_publisher, "uuid", ids),
            (topic_publisher, "CoordinatorChannel", _Channel),
            (batch_target, "find_local_host_server", local_host_server),
            (batch_target, "BlockingLink", _NoUploads),
            (_Channel, "world", world),
        ):
            stack.enter_context(mock.patch.object(module, name, value, create=module is _Channel))
        yield
