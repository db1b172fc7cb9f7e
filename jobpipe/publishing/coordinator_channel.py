"""A publisher's way to its coordinator: started or joined, dialled again after a cut, opened again after its death."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from jobpipe.config import Config
from jobpipe.discovery.dial import dial
from jobpipe.errors import (
    JobpipeError,
    LinkClosed,
    LinkEnded,
    LinkError,
    PeerNotTrusted,
    RegistryUnavailable,
    TopicNotFound,
    WaitTimeout,
)
from jobpipe.net.links.async_link import Link
from jobpipe.net.links.event_loop_thread import EventLoopThread
from jobpipe.net.links.fork_guard import ForkGuard
from jobpipe.net.retry import RETRYABLE, Deadline, is_renewal
from jobpipe.operations.messages.calls import ask
from jobpipe.operations.messages.message_fields import R, RequestFor
from jobpipe.operations.publisher_operations import CloseReply, CloseRequest, OpenRequest
from jobpipe.operations.status_operations import StatusRequest
from jobpipe.publishing.coordinator_launcher import CoordinatorProcess, attach
from jobpipe.wire.wire_messages import Hello

log = logging.getLogger(__name__)

CALL_SECONDS = 60.0  # a seal waits for the disk, not for subscribers
OPEN_SECONDS = 90.0  # a take-over may wait for a dead owner's registry session
SLICE_SECONDS = 0.1  # every wait looks at its caller this often
GUARD_SECONDS = 2.0  # between two attempts to serve a topic again whose coordinator died
GUARD_GOES_ON = (LinkError, RegistryUnavailable, TopicNotFound, WaitTimeout)
ENDING_SECONDS = 1.0  # a coordinator that does not answer may be about to end
CLOSE_SECONDS = 8.0  # of goodbyes: a coordinator ends so soon, and a close waits no longer for one that is stopped
CALL_TRIES = 3


def _always() -> bool:
    return True


class CoordinatorChannel:
    """The link of one topic's publisher.

    Args:
        topic: what is published.
        name: the publisher's, for listings.
        config: where the registry and the coordinator are.
        order: gives what opens the topic, asked for each coordinator.
        attaching: finds the coordinator, or starts one; by default that of this process.
        wanted: tells whether the topic is still to be published, before it is opened again for a dead coordinator.
        stopped: what is said of the publisher where a wait ends since ``active()`` turned false.

    Attributes:
        coordinator: the process that serves the topic now.
        log_id, epoch: of the topic, as that coordinator opened it.
        log_token: lets its tasks write to host servers.
        active: asked by every wait; see :meth:`while_active`.
        owner: the process that made it; forks neither use nor close it.

    Raises:
        JobpipeError: what the coordinator answers to ``open``.
    """

    def __init__(
        self,
        topic: str,
        name: str,
        config: Config,
        order: Callable[[], OpenRequest],
        *,
        stopped: str,
        attaching: Callable[[Config], CoordinatorProcess] | None = None,
        wanted: Callable[[], bool] = _always,
    ) -> None:
        self.topic = topic
        self.config = config
        self.log_id = ""
        self.epoch = 0
        self.log_token = ""
        self.coordinator: CoordinatorProcess | None = None
        self.active: Callable[[], bool] = _always
        self.owner = ForkGuard(f"topic {topic!r}: this publisher")
        self._name = name
        self._order = order
        self._attach = attaching or attach
        self._wanted = wanted
        self._stopped = stopped
        self._lock = threading.RLock()
        self._link: Link | None = None
        self._leaving = False
        self._closed = False
        self._open()

    def __str__(self) -> str:
        return f"topic {self.topic!r}"

    def _open(self) -> Link:
        """Attach, connect, and open the topic (again, after the coordinator died)."""
        deadline = Deadline(CALL_SECONDS)
        while True:
            coordinator = self._attach(self.config)
            try:
                return self._join(coordinator)
            except RETRYABLE as error:
                # Killed a moment ago, or it ends because all was closed and read: then the next one is ours to start.
                # Stopped, or a cut on the way: it is dialled again.
                if coordinator.ended(ENDING_SECONDS):
                    log.info("%s: its coordinator has ended (%s); starting another one", self, error)
                elif deadline.passed:
                    raise
                else:
                    log.info("%s: %s; dialling again", self, error)
                self._require_active()

    def _join(self, coordinator: CoordinatorProcess) -> Link:
        hello = Hello(
            topic=self.topic, role="publisher", name=self._name, instance=uuid.uuid4().hex, proof=coordinator.secret
        )
        loop_thread = EventLoopThread.get()
        try:
            dialling = partial(dial, self.config, coordinator.endpoint, hello)
            link = loop_thread.run(dialling, 15.0, self.active, doing=f"{self}: dialling {coordinator.endpoint}")
        except PeerNotTrusted as error:  # it shows the certificate that we gave it
            raise PeerNotTrusted(
                f"{self}: this publisher's own certificate, {self.config.ssl_cert or 'made under home'}, "
                f"is not fit to publish it ({error.fields.get('reason')}); make one by `jobpipe certs issue NAME "
                f"--publish {self.topic}`",
                topic=self.topic,
                file=str(self.config.ssl_cert),
                reason=error.fields.get("reason"),
            ) from error
        try:
            if self.coordinator is None or self.coordinator.instance != coordinator.instance:
                opened = loop_thread.run(
                    partial(ask, link, self._order(), timeout=OPEN_SECONDS, job=coordinator.secret),
                    OPEN_SECONDS + 5.0,
                    self.active,
                    doing=f"{self}: opening it at {coordinator.endpoint}",
                )
                self.log_id, self.epoch, self.log_token = opened.log, opened.epoch, opened.token
        except BaseException:
            self._hang_up(link)
            raise
        fresh = self.coordinator is None or self.coordinator.instance != coordinator.instance
        self._link, self.coordinator = link, coordinator
        if fresh:
            threading.Thread(target=self._guard, args=(coordinator,), name=f"guard-{self.topic}", daemon=True).start()
        return link

    def _guard(self, coordinator: CoordinatorProcess) -> None:
        """Open the topic again when its coordinator died: a quiet source must not hide a backlog."""
        while not coordinator.ended(GUARD_SECONDS):
            if not self._guarded(coordinator):
                return
        while self._guarded(coordinator):
            try:
                with self._lock:
                    if self._leaving or not self._wanted():
                        return
                    self.call(StatusRequest())
            except JobpipeError as error:
                log.warning("%s: its coordinator died, it cannot be served again: %s", self, error)
                if not isinstance(error, GUARD_GOES_ON):
                    return
            time.sleep(GUARD_SECONDS)

    def _guarded(self, coordinator: CoordinatorProcess) -> bool:
        """Tell whether this is the coordinator whose death concerns the publisher."""
        present = self.coordinator
        mine = present is not None and present.instance == coordinator.instance
        return mine and not (self._closed or coordinator.dismissed)

    def leave(self, *, final: bool) -> CloseReply:
        """Tell the coordinator that the publisher gives the topic up; what :meth:`call` raises.

        Its process may end before anybody has read the answer. From now on that is no reason to serve the topic again.
        """
        self.owner.require()
        with self._lock:
            self._leaving = True
            return self.call(CloseRequest(final))

    def call(self, request: RequestFor[R]) -> R:
        """Ask the coordinator, over a second link if the first one breaks: every operation may be repeated.

        Raises:
            WaitTimeout: the query that waits for this was stopped.
            ForkedProcess: this is a fork of the process that made the channel.
        """
        self.owner.require()
        with self._lock:
            if self._closed:
                raise LinkClosed(f"{self}: this publisher is closed", topic=self.topic)
            loop_thread = EventLoopThread.get()
            for attempt in itertools.count(1):
                link = self._link if self._link is not None and self._link.ended is None else self._open()
                try:
                    asking = partial(ask, link, request, timeout=CALL_SECONDS, job=self._secret())
                    return loop_thread.run(asking, CALL_SECONDS + 5.0, self.active, doing=f"{self}: asking {link.peer}")
                except RETRYABLE as error:
                    if attempt == CALL_TRIES:
                        raise
                    level = logging.DEBUG if is_renewal(error) else logging.WARNING
                    log.log(level, "%s: %s; connecting again", self, error)
                    self._hang_up(link)
                    self._link = None
                    self._await_end_of_coordinator(error)
                self._require_active()
        raise AssertionError("unreachable")

    def tell(self, request: RequestFor[R], seconds: float) -> None:
        """Ask over the link that is there, also while :meth:`call` waits in another thread; nothing is dialled.

        Raises:
            JobpipeError: the coordinator was not reached, or refuses; it matters to nothing else.
        """
        self.owner.require()
        link = self._link
        if link is None or link.ended is not None:
            raise LinkClosed(f"{self}: there is no link to its coordinator now", topic=self.topic)
        asking = partial(ask, link, request, timeout=seconds, job=self._secret())
        EventLoopThread.get().run(asking, seconds + 1.0, doing=f"{self}: telling {link.peer}")

    def still(self, instance: str, note: Callable[[], None]) -> bool:
        """Tell whether that coordinator serves the topic now, after ``note()``, which may change what ``order`` gives.

        A thread that opens the topic again meanwhile has either done so before, or gives what ``note`` has changed.
        """
        with self._lock:
            note()
            linked = self._link is not None and self._link.ended is None
            known = self.coordinator
            return linked and known is not None and known.instance == instance and known.alive

    def _secret(self) -> str:
        return "" if self.coordinator is None else self.coordinator.secret

    def _await_end_of_coordinator(self, error: JobpipeError) -> None:
        """A coordinator that said goodbye is about to end; only then is the next one ours to start."""
        if isinstance(error, LinkEnded) and not is_renewal(error) and self.coordinator is not None:
            deadline = Deadline(CLOSE_SECONDS)
            while not self.coordinator.ended(SLICE_SECONDS) and not deadline.passed:
                self._require_active()

    def _require_active(self) -> None:
        if not self.active():
            raise WaitTimeout(f"{self}: {self._stopped}", topic=self.topic)

    @contextmanager
    def while_active(self, active: Callable[[], bool]) -> Iterator[None]:
        """Let every wait of the block end, by WaitTimeout, when ``active()`` turns false; it is asked each 0.1 s."""
        self.active = active
        try:
            yield
        finally:
            self.active = _always

    def close(self) -> None:
        """End the link; no call is possible any more. Idempotent; nothing is done in a fork."""
        if not self.owner.is_here:
            return
        self._closed = True
        if self._link is not None:
            self._hang_up(self._link)

    def _hang_up(self, link: Link) -> None:
        try:
            EventLoopThread.get().run(link.close, 5.0, doing=f"closing the link to {link.peer}")
        except WaitTimeout as error:  # its own deadline cuts it, and it is no longer needed
            log.warning("%s: %s", self, error)
