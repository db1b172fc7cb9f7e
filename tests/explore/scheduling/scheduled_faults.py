"""What happens to the world of a seeded run: the faults, drawn by its seed."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING

from jobpipe.net.links.async_link import Link
from tests.explore.scheduling.scheduled_net import Wire
from tests.explore.scheduling.scheduled_parts import SESSION_SECONDS

if TYPE_CHECKING:
    import random

    from tests.explore.scheduling.scheduled_actors import Auditor, Subscriber
    from tests.explore.scheduling.scheduled_net import Network
    from tests.explore.scheduling.scheduled_parts import CoordinatorProcess
    from tests.explore.scheduling.scheduled_process import Process
    from tests.explore.scheduling.scheduled_publishers import Driver
    from tests.explore.scheduling.scheduled_time import VirtualLoop

FAULT_SECONDS = 20.0  # of virtual time, at most, in which faults happen


class Trouble:
    """The part of a world that makes trouble; what it needs of the rest stands here."""

    rng: random.Random
    loop: VirtualLoop
    network: Network
    acts: int
    striking: float
    slowest: float
    processes: dict[int, Process]
    coordinators: list[CoordinatorProcess]
    drivers: list[Driver]
    subscribers: list[Subscriber]
    auditors: list[Auditor]

    async def _trouble(self) -> None:
        rng = self.rng
        end = self.loop.time() + rng.choice((0.5, 0.75, 1.0)) * FAULT_SECONDS
        kinds = [self._cut, self._cut, self._kill, self._pause, self._kill_driver, self._expire, self._away, self._sync]
        kinds += [self._slow, self._kill_subscriber, self._stop_subscriber, self._read, self._read]
        chosen = rng.sample(kinds, rng.randrange(1, 4))
        self.striking = rng.choice((0.0, 0.3))
        self.loop.slow = self.slowest = rng.choice((0.0, 0.0, 3.0))
        if rng.random() < 0.5:
            self._watch_links()
        if rng.random() < 0.5:
            self._watch_requests()
        while self.loop.time() < end:
            await asyncio.sleep(rng.expovariate(0.8))
            self.acts += 1
            rng.choice(chosen)()
        self.loop.slow = self.striking = 0.0
        self.network.on_link = self.network.on_bytes = None
        for process in [*self.processes.values()]:
            process.registry_away = process.fail_sync = process.fail_read = False
            process.go_on()
        for subscriber in [*self.subscribers, *self.auditors]:
            subscriber.process.go_on()

    def _living(self) -> list[CoordinatorProcess]:
        return [coordinator for coordinator in self.coordinators if coordinator.alive]

    def _cut(self) -> None:
        wires = list(self.network.wires)
        if wires:
            wire = self.rng.choice(wires)
            self.note(f"cut {wire.process} - {wire.peer.process}")
            self.network.cut(wire)

    def _watch_links(self) -> None:
        """From now on act soon after links of drivers and newcomers were made: what they ask is rare, and short."""
        often, killing = self.rng.choice((0.1, 0.4)), self.rng.random() < 0.5

        def act(wire: Wire) -> None:
            driver = next((driver for driver in self.drivers if driver.process is wire.process), None)
            if killing and driver is not None:
                self.note(f"kill {driver.process}, which has just asked")
                self.driver_died(driver)
            else:
                self.note(f"cut {wire.process}, which has just asked")
                self.network.cut(wire)

        def seen(wire: Wire) -> None:
            if str(wire.process).startswith(("d", "c")) and self.rng.random() < often:
                seconds = self.rng.choice((0.02, 0.3)) * self.rng.random()
                self.loop.call_later(seconds, act, wire, context=contextvars.Context())

        self.network.on_link = seen

    def _watch_requests(self) -> None:
        """From now on cut some links while what they have asked for is being done: it is cancelled in the middle."""
        rng = self.rng

        def seen(wire: Wire) -> None:
            to_coordinator = str(wire.process).startswith("c")
            of_coordinator = str(wire.peer.process).startswith("c")  # which asks for a topic: rare
            if to_coordinator and rng.random() < (0.3 if of_coordinator else 0.01):
                seconds = rng.choice((0.002, 0.02, 0.2)) * rng.random()
                self.loop.call_later(seconds, self.network.cut, wire.peer, context=contextvars.Context())

        self.network.on_bytes = seen

    def strike(self, link: Link) -> None:
        """Called with each request that changes something."""
        if self.rng.random() < self.striking and isinstance(link._transport, Wire):
            seconds = self.rng.choice((0.008, 0.008, 0.1)) * self.rng.random()
            self.loop.call_later(seconds, self.network.cut, link._transport, context=contextvars.Context())

    def _read(self) -> None:
        if living := self._living():
            process = self.rng.choice(living).process
            self.note(f"a statement of {process} fails")
            process.fail_read = True

    def _kill(self) -> None:
        if living := self._living():
            coordinator = self.rng.choice(living)
            self.note(f"kill {coordinator.process}")
            coordinator.kill()
            self.loop.call_later(self.rng.uniform(0.0, SESSION_SECONDS), coordinator.expire)

    def _pause(self) -> None:
        if living := self._living():
            coordinator, seconds = self.rng.choice(living), self.rng.uniform(0.05, 12.0)
            self.note(f"stop {coordinator.process} for {seconds:.1f} s")
            coordinator.process.stop()
            if seconds > SESSION_SECONDS:
                self.loop.call_later(SESSION_SECONDS, coordinator.expire)
            self.loop.call_later(seconds, coordinator.process.go_on)

    def _kill_driver(self) -> None:
        if living := [driver for driver in self.drivers if driver.process.alive]:
            driver = self.rng.choice(living)
            self.note(f"kill {driver.process}")
            self.driver_died(driver)

    def _expire(self) -> None:
        if living := self._living():
            coordinator = self.rng.choice(living)
            self.note(f"expire the session of {coordinator.process}")
            coordinator.expire()

    def _away(self) -> None:
        if living := self._living():
            process, seconds = self.rng.choice(living).process, self.rng.uniform(0.1, 6.0)
            self.note(f"registry away for {process}, {seconds:.1f} s")
            process.registry_away = True
            self.loop.call_later(seconds, setattr, process, "registry_away", False)

    def _sync(self) -> None:
        if living := self._living():
            process = self.rng.choice(living).process
            self.note(f"a sync of {process} fails")
            process.fail_sync = True

    def _slow(self) -> None:
        self.loop.slow = self.rng.choice((0.0, 1.0, 20.0))
        self.slowest = max(self.slowest, self.loop.slow)
        self.note(f"thread work takes up to {self.loop.slow} s more")

    def _kill_subscriber(self) -> None:
        subscriber = self.rng.choice([*self.subscribers, *self.auditors])
        self.note(f"kill {subscriber.process}")
        subscriber.process.kill()
        self.network.killed(subscriber.process)
        self.loop.call_later(self.rng.uniform(0.1, 2.0), subscriber.start)

    def _stop_subscriber(self) -> None:
        process, seconds = self.rng.choice([*self.auditors, *self.subscribers]).process, self.rng.uniform(0.5, 8.0)
        self.note(f"stop {process} for {seconds:.1f} s")
        process.stop()
        self.loop.call_later(seconds, process.go_on, context=contextvars.Context())
