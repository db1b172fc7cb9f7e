"""One supervised ZooKeeper session: the only place that knows kazoo's states and errors.

What kazoo leaves to its user, and this module does:

* CONNECTED comes before SASL, so the session is *ready* only after an authenticated read.
* A server may lag, and a new session at it would read the past: the leader is asked first (sync).
* A client that fails inside its loop stops for good: it is replaced. So is one whose session the server closes for want
  of SASL: kazoo would open the next one at once.
* Listeners run in kazoo's connection thread: ours only sets an event; all work is done by the supervisor's thread.
* DEBUG logs hold session passwords: nothing below INFO leaves kazoo's loggers.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from kazoo.client import KazooState
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState

from jobpipe_registry.nodes import Notify
from jobpipe_registry.registry_errors import Unavailable
from jobpipe_registry.registry_options import RegistryOptions
from jobpipe_registry.zookeeper.kazoo_client import RegistryClient, explain
from jobpipe_registry.zookeeper.kazoo_log import KazooLog, hide_secrets

logger = logging.getLogger(__name__)
T = TypeVar("T")

_PASSING = (ConnectionLoss, SessionExpiredError, OperationTimeoutError, SessionMovedError, AuthFailedError)
_jitter = random.Random()  # noqa: S311 - own, so that our threads do not disturb a program that seeds the global one
_FORMER_SESSIONS = 64  # more expiries than that within the life of one ghost do not happen


for _name in ("client", "handlers.threading", "protocol.connection"):
    logging.getLogger(f"kazoo.{_name}").addFilter(hide_secrets)


class ZooKeeperSession:
    """A session that lives until :meth:`close`, over as many kazoo clients as it takes.

    Threads may share it. One thread of its own supervises; kazoo has two more.
    """

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        self._probe_path = options.namespace
        self._kazoo_log = KazooLog()
        self._lock = threading.Lock()  # the fields below
        self._client: Any = None
        self._losses = 0
        self._sessions: list[int] = []
        self._listeners: set[Notify] = set()
        self._reason = "no answer"
        self._limit: float | None = None
        self._ready = threading.Event()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="registry-session", daemon=True)

    def start(self) -> None:
        """Connect; return when ready.

        Raises:
            Unavailable: not within ``connect_timeout``. Everything is closed then.
        """
        deadline = time.monotonic() + self._options.connect_timeout
        self._thread.start()
        if not self._ready.wait(max(0.0, deadline - time.monotonic())):
            self.close(1.0)
            raise Unavailable(self._options.connect, f"{self._reason} (tried for {self._options.connect_timeout:g} s)")

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    @property
    def session(self) -> int:
        with self._lock:
            return self._sessions[-1] if self._sessions else 0

    def had_session(self, session: int) -> bool:
        with self._lock:
            return session in self._sessions

    def limit(self, deadline: float) -> None:
        self._limit = deadline

    def listen(self, notify: Notify) -> None:
        with self._lock:
            self._listeners.add(notify)

    def unlisten(self, notify: Notify) -> None:
        with self._lock:
            self._listeners.discard(notify)

    def call(self, operation: Callable[[Any, float], T]) -> T:
        """Run ``operation(client, timeout)``, again if the connection fails under it, until the deadline.

        Raises:
            Unavailable: after ``connect_timeout``, at the limit, or at once for want of permission.
        """
        deadline = time.monotonic() + self._options.connect_timeout
        reason = ""
        while True:
            client = self._wait_ready(deadline, reason)
            end = deadline if self._limit is None else min(deadline, self._limit)
            try:
                return operation(client, max(0.01, end - time.monotonic()))
            except _PASSING as error:
                reason = type(error).__name__
            except (NoAuthError, InvalidACLError) as error:
                raise self.refused(error) from error
            except (KazooTimeoutError, KazooException, OSError) as error:
                raise Unavailable(self._options.connect, f"no answer: {type(error).__name__}") from error
            self._closing.wait(0.02)  # the exception comes before the state changes

    def refused(self, error: Exception) -> Unavailable:
        """Return what to raise for want of permission, or of the identity that the ACL names."""
        if isinstance(error, InvalidACLError):
            reason = f"the ACL is not accepted: it does not know us; we are {self._options.identity}"
        else:
            reason = f"no permission (ACL); we are {self._options.identity}"
        return Unavailable(self._options.connect, reason)

    def _wait_ready(self, deadline: float, reason: str) -> Any:
        while True:
            end = deadline if self._limit is None else min(deadline, self._limit)
            left = end - time.monotonic()
            if self._closing.is_set():
                raise Unavailable(self._options.connect, "the session was closed")
            if left <= 0:
                raise Unavailable(self._options.connect, reason or self._reason)
            if self._ready.wait(min(left, 0.2)):
                with self._lock:
                    return self._client

    def close(self, timeout: float) -> None:
        """End the session and its threads; what hangs is left to daemon threads after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        self._closing.set()
        self._wake.set()
        self._ready.clear()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(max(0.1, timeout / 2))
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            self._retire(client).join(max(0.1, deadline - time.monotonic()))

    # supervisor's thread

    def _supervise(self) -> None:
        delay = 0.1
        while not self._closing.is_set():
            client = self._client
            if client is None or _stopped(client):
                if client is not None:
                    logger.warning("the ZooKeeper client stopped by itself (%s); making a new one", client.client_state)
                    self._retire(client)
                    delay = self._back_off(delay)
                self._make_client()
            elif not self._ready.is_set() and client.connected:
                try:
                    delay = 0.1 if self._probe(client) else delay
                except SessionClosedRequireSaslError as error:
                    self._reason = explain(error, self._options)
                    logger.warning("registry %s: %s", self._options.connect, self._reason)
                    with self._lock:
                        self._client = None
                    self._retire(client)
                    delay = self._back_off(delay)
            self._wake.wait(5.0 if self._ready.is_set() else 0.25)
            self._wake.clear()

    def _back_off(self, delay: float) -> float:
        self._closing.wait(_jitter.uniform(delay / 2, delay))
        return min(delay * 2, 10.0)

    def _make_client(self) -> None:
        try:
            client = RegistryClient(self._options, self._on_attempt, self._kazoo_log)
        except (KazooException, ValueError) as error:
            self._reason = f"{type(error).__name__}: {error}"
            return
        client.add_listener(self._on_state)
        with self._lock:
            if self._closing.is_set():
                return
            self._client = client
        client.start_async()

    def _on_attempt(self, error: Exception | None) -> None:
        """Runs in kazoo's thread: no wait."""
        self._reason = "connected, but a read was not answered" if error is None else explain(error, self._options)

    def _on_state(self, state: str) -> None:
        """Runs in kazoo's thread: no work, no wait."""
        if state != KazooState.CONNECTED:
            with self._lock:
                self._losses += 1
                self._ready.clear()
        self._wake.set()

    def _probe(self, client: Any) -> bool:
        """Become ready if an authenticated read passes. Raises SessionClosedRequireSaslError."""
        losses = self._losses
        timeout = min(self._options.connect_timeout, self._options.session_timeout)
        try:
            client.sync_async(self._probe_path).get(timeout=timeout)
            with contextlib.suppress(NoNodeError):
                client.get_async(self._probe_path).get(timeout=timeout)
            client_id = client.client_id
        except NoAuthError:
            self._reason = f"no permission (ACL) to read {self._probe_path}; we are {self._options.identity}"
            return False
        except SessionClosedRequireSaslError:
            raise
        except ConnectionLoss:
            return False  # the next attempt says why
        except (KazooException, KazooTimeoutError, OSError) as error:
            self._reason = explain(error, self._options)
            return False
        with self._lock:
            if client_id is None or losses != self._losses or self._closing.is_set():
                return False
            if client_id[0] not in self._sessions[-1:]:
                self._sessions = [*self._sessions[1 - _FORMER_SESSIONS :], client_id[0]]
            self._ready.set()
            self._kazoo_log.connected()
            listeners = list(self._listeners)
        for notify in listeners:
            notify(None)
        return True

    def _retire(self, client: Any) -> threading.Thread:
        """Stop a client in a thread of its own: kazoo's stop may wait for long, and may fail."""

        def stop() -> None:
            client.remove_listener(self._on_state)
            with contextlib.suppress(Exception):
                client.stop()
            with contextlib.suppress(Exception):
                client.close()

        thread = threading.Thread(target=stop, name="registry-retire", daemon=True)
        thread.start()
        return thread


def _stopped(client: Any) -> bool:
    """Say whether kazoo's connection loop has ended. Its public states cannot tell "not begun" from "ended"."""
    if client.client_state not in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
        return False
    routine = client._connection._connection_routine
    return routine is None or not routine.is_alive()
