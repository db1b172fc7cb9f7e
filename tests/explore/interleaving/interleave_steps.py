"""Threads that stop before each SQL statement, each sync inside SQLite and each file operation, one running at a time.

:func:`run` lets actors work in threads of their own and asks a policy, before each step, whose turn it is; so a list of
choices replays exactly. Nothing waits for a lock: who finds the catalog locked has its turn again when another has gone
on, and gets SQLite's error when no other can, as after a busy time-out that passed.

:func:`stepping` puts itself between the store and the calls of the system: ``sqlite3.connect`` as the store's database
module sees it, some functions of ``os``, and the syncs and truncations of SQLite's own files. There
an fsync can be made to fail, for one actor, with all that SQLite makes of it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jobpipe.store.catalog.catalog_file
from tests.explore import sqlite_files
from tests.explore.virtual_time import Stuck, closed_lock

TURN_SECONDS = 60.0  # of real time, for one step; more is a mistake of the explorer
MOST_STEPS = 20_000
IOERR_FSYNC = sqlite3.SQLITE_IOERR_FSYNC
FUNCTIONS = ("open", "fsync", "pread", "pwrite", "write", "unlink", "replace", "listdir", "stat")
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY}

_here = threading.local()
on_connect: list[Callable[[sqlite3.Connection], None]] = []
"""Told of each connection that is opened."""
on_misuse: list[Callable[[], None]] = []
"""Told when a thread uses a connection, or closes it, in the middle of another one's statement."""


class Actor:
    """What one thread does.

    Args:
        name: For traces.
        work: What it does; an exception is kept as :attr:`error`.
        fail_sync: Which of SQLite's syncs fails, counted from 1; 0 for none; with 10 added, all from that one on, until
            :func:`mend_disk`.
    """

    def __init__(self, name: str, work: Callable[[], None], *, fail_sync: int = 0) -> None:
        self.name = name
        self.fail_sync = fail_sync
        self.steps = 0
        self.syncs = 0
        self.locked = False
        self.given_up = False
        self.finished = False
        self.error: BaseException | None = None
        self._work = work
        self._gate = closed_lock()
        self._back: Any = None
        self._note: Callable[[Actor, str], None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"actor-{name}", daemon=True)

    def start(self, back: Any, note: Callable[[Actor, str], None]) -> None:
        self._back, self._note = back, note
        self._thread.start()

    def turn(self) -> None:
        """Let it go on to its next step; called by the scheduler."""
        assert self._back is not None
        self._gate.release()
        if not self._back.acquire(timeout=TURN_SECONDS):
            raise Stuck(f"{self.name} does not come back from its step {self.steps}")

    def join(self) -> None:
        self._thread.join(TURN_SECONDS)

    def step(self, what: str) -> None:
        """Stop before ``what``; called in its thread."""
        assert self._back is not None
        assert self._note is not None
        self.steps += 1
        self._note(self, what)
        self._back.release()
        self._gate.acquire()

    def _run(self) -> None:
        assert self._back is not None
        self._gate.acquire()
        _here.actor = self
        try:
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            _here.actor = None
            self.finished = True
            self._back.release()


Policy = Callable[[list[Actor]], Actor]
"""Picks who goes on; called with those that can, before each step."""


def run(actors: list[Actor], policy: Policy) -> list[str]:
    """Run actors to their ends, one at a time; return the trace, one line a step.

    Raises:
        Stuck: they take too many steps.
    """
    trace: list[str] = []
    back = closed_lock()
    for actor in actors:
        actor.start(back, lambda actor, what: trace.append(f"{actor.name}: {what}"))
    while living := [actor for actor in actors if not actor.finished]:
        if len(trace) > MOST_STEPS:
            raise Stuck(f"{len(trace)} steps, and no end: {trace[-6:]}")
        able = [actor for actor in living if not actor.locked]
        if not able:
            able = living[:1]  # nobody can go on: the first gets the error that a busy time-out gives
            able[0].given_up = True
        chosen = policy(able)
        chosen.locked = False
        chosen.turn()
        if not chosen.locked:
            for other in living:
                other.locked = other.locked and other is chosen
    for actor in actors:
        actor.join()
    return trace


def acting() -> Actor | None:
    """The actor whose thread this is."""
    return getattr(_here, "actor", None)


def mend_disk() -> None:
    """Let no more syncs of the calling actor fail."""
    if (actor := getattr(_here, "actor", None)) is not None:
        actor.fail_sync = 0


def _step(what: str) -> None:
    actor: Actor | None = getattr(_here, "actor", None)
    if actor is not None:
        actor.step(what)


class _Connection(sqlite3.Connection):
    """Stops before each statement; its busy time-out is 0. SQLite crashes where two threads use one: that is told."""

    _used = False

    def execute(self, query: str, *values: Any) -> sqlite3.Cursor:  # type: ignore[override]
        return self._patiently(super().execute, query, values)

    def executemany(self, query: str, *values: Any) -> sqlite3.Cursor:  # type: ignore[override]
        return self._patiently(super().executemany, query, values)

    def close(self) -> None:
        _step("close the catalog")
        if self._used:
            _tell_misuse()
        else:
            super().close()

    def _patiently(self, work: Callable[..., sqlite3.Cursor], query: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        if self._used:
            _tell_misuse()
            raise sqlite3.ProgrammingError("another thread uses this connection")
        self._used = True
        try:
            actor: Actor | None = getattr(_here, "actor", None)
            if actor is None:
                return work(query, *values)
            actor.step(_short(query))
            while True:
                try:
                    return work(query, *values)
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode not in _LOCKED or actor.given_up:
                        actor.given_up = False
                        raise
                    actor.locked = True
                    actor.step(f"locked: {_short(query)}")
        finally:
            self._used = False


@functools.cache
def _short(query: str) -> str:
    return " ".join(query.split())[:70]


def _tell_misuse() -> None:
    for tell in on_misuse:
        tell()


class Changed:
    """A module with some names changed."""

    def __init__(self, module: Any, **changed: Any) -> None:
        self.__dict__.update(changed)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _connect(path: Any, **options: Any) -> sqlite3.Connection:
    connection = sqlite3.connect(path, **{**options, "timeout": 0.0}, factory=_Connection)
    for take in on_connect:
        take(connection)
    return connection


def _stepped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(_here, "actor", None) is not None:
            where = args[0] if args else ""
            _step(f"{name} {os.path.basename(where)}" if isinstance(where, (str, os.PathLike)) else name)
        return real(*args, **kwargs)

    return call


# -- SQLite's own files ------------------------------------------------------------------------------------------------


class _Files:
    """Lets the actor whose thread it is stop before each sync and truncation inside SQLite."""

    functions = frozenset({"sync", "truncate"})

    def name(self, path: bytes) -> str | None:
        return os.path.basename(path.decode())

    def call(self, function: str, file: str, real: Callable[..., int], *args: Any) -> int:
        actor: Actor | None = getattr(_here, "actor", None)
        if actor is None or function not in self.functions:
            return real(*args)
        if function == "truncate":
            actor.step(f"truncate {file} to {args[1]}")
            return real(*args)
        actor.step(f"sync {file}")
        actor.syncs += 1
        if actor.syncs == actor.fail_sync or actor.syncs >= actor.fail_sync - 10 > 0:
            return IOERR_FSYNC
        return real(*args)

    def sleep(self, seconds: float) -> bool:
        return False


@contextlib.contextmanager
def stepping() -> Iterator[None]:
    """Let actors stop at each step, inside the block."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(sqlite_files.watched(_Files()))
        proxy = Changed(sqlite3, connect=_connect)
        stack.enter_context(mock.patch.object(jobpipe.store.catalog.catalog_file, "sqlite3", proxy))
        for name in FUNCTIONS:
            stack.enter_context(mock.patch.object(os, name, _stepped(name, getattr(os, name))))
        yield
