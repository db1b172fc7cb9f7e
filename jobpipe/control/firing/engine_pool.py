"""The schedule engines of one server: each is started with its first schedule, and told of all that are its own.

An engine may be a stranger's plug-in that asks another host. So each has a thread of its own, which brings it to what
is wanted of it: whatever fails is tried again, and an engine that hangs hinders no other one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jobpipe.errors import JobpipeError
from jobpipe.pipelines.engine import Fire, Schedule, ScheduleEngine
from jobpipe.pipelines.installed import PlugInKind, Plugins
from jobpipe.pipelines.spec import EngineSpec

log = logging.getLogger(__name__)

MOST_ENGINES = 50
RETRY_SECONDS = 30.0
CLOSE_SECONDS = 10.0
_MOST_CHARACTERS = 500  # of what a plug-in says


@dataclass
class _Wanted:
    """What an engine is to know of a schedule.

    Attributes:
        schedule: None: it is to be forgotten.
        told: the one that the engine took last.
        open: the engine is to be told, once the monotonic clock shows ``retry``.
    """

    schedule: Schedule | None = None
    told: Schedule | None = None
    open: bool = False
    retry: float = 0.0


class _RunningEngine:
    """One engine with its thread; what is wanted of it may change at any time.

    Args:
        name: for messages.
        make: makes the engine; called until it does not raise.
        note: told of each schedule why the engine does not take it, or "".
    """

    def __init__(self, name: str, make: Callable[[], ScheduleEngine], note: Callable[[str, str], None]) -> None:
        self._name = name
        self._make = make
        self._note = note
        self._changed = threading.Condition()
        self._wanted: dict[str, _Wanted] = {}
        self._engine: ScheduleEngine | None = None
        self._retry = 0.0  # when to start it
        self._closing = False
        self.thread = threading.Thread(target=self._run, name=f"engine-{name[:40]}", daemon=True)
        self.thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether it has no schedule, and has forgotten all that it had."""
        with self._changed:
            return not self._wanted

    def put(self, schedule: Schedule) -> None:
        """Let it fire for a schedule."""
        with self._changed:
            known = self._wanted.setdefault(schedule.id, _Wanted())
            if known.told == known.schedule == schedule and not known.open:
                return
            known.schedule, known.open, known.retry = schedule, True, 0.0
            self._changed.notify_all()

    def drop(self, id_: str) -> None:
        """Let it fire no longer for a schedule."""
        with self._changed:
            known = self._wanted.setdefault(id_, _Wanted())
            known.schedule, known.open, known.retry = None, True, 0.0
            self._changed.notify_all()

    def close(self) -> None:
        """Let it stop; returns at once."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (wait := self._wait()) != 0.0:
                    self._changed.wait(wait)
                if self._closing:
                    break
            if self._engine is None:
                self._begin()
            else:
                self._tell(self._engine)
        if self._engine is not None:
            try:
                self._engine.stop()
            except Exception:
                log.exception("schedule engine %s does not stop", self._name)

    def _wait(self) -> float | None:
        """Return for how many seconds there is nothing to do; None: until something changes."""
        retries = [each.retry for each in self._wanted.values() if each.open]
        if not retries:
            return None
        return max(0.0, (self._retry if self._engine is None else min(retries)) - time.monotonic())

    def _begin(self) -> None:
        try:
            engine = self._make()
            engine.start()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's plug-in
            self._retry = time.monotonic() + RETRY_SECONDS
            with self._changed:
                names = list(self._wanted)
            for id_ in names:
                self._failed(id_, "does not start", error)
            return
        self._engine = engine

    def _tell(self, engine: ScheduleEngine) -> None:
        """Tell it of one schedule what it does not know."""
        with self._changed:
            id_ = min((id_ for id_, each in self._wanted.items() if each.open), key=lambda id_: self._wanted[id_].retry)
            known = self._wanted[id_]
            schedule, told, known.open = known.schedule, known.told, False
        try:
            if schedule is None:
                engine.unregister(id_)
            elif told is None:
                engine.register(schedule)
            else:
                engine.update(schedule)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's plug-in
            with self._changed:
                if not known.open:  # nothing else is wanted by now
                    known.open, known.retry = True, time.monotonic() + RETRY_SECONDS
            self._failed(id_, "does not take the schedule", error)
            return
        with self._changed:
            known.told = schedule
            if schedule is None and not known.open:
                del self._wanted[id_]
        self._note(id_, "")

    def _failed(self, id_: str, what: str, error: BaseException) -> None:
        said = error.message if isinstance(error, JobpipeError) else f"{type(error).__name__}: {error}"
        log.warning("schedule %s: engine %s %s: %s", id_, self._name, what, said)
        self._note(id_, f"engine {self._name} {what}: {said}"[:_MOST_CHARACTERS])


class EnginePool:
    """All engines of a server.

    Args:
        fire: what they call.
        plugins: where their classes are found.
    """

    def __init__(self, fire: Fire, plugins: Plugins) -> None:
        self._fire = fire
        self._plugins = plugins
        self._lock = threading.Lock()  # taken before that of an engine
        self._engines: dict[str, _RunningEngine] = {}
        self._of: dict[str, str] = {}  # the key of each schedule's engine
        self._problems: dict[str, str] = {}  # of schedules
        self._closed = False

    def put(self, schedule: Schedule, folder: Path) -> None:
        """Let the engine that a schedule names fire for it, and no other one; what fails is a problem of the schedule.

        Args:
            folder: where relative paths among the engine's options start.
        """
        spec, id_ = schedule.spec.engine, schedule.id
        key = json.dumps(spec.model_dump(mode="json", by_alias=True), sort_keys=True)
        with self._lock:
            if self._closed:
                return
            if self._of.get(id_, key) != key:
                self._engines[self._of.pop(id_)].drop(id_)
            self._end_idle()
            if key not in self._engines:
                if len(self._engines) >= MOST_ENGINES:
                    self._problems[id_] = (
                        f"a server runs at most {MOST_ENGINES} engines with different options; give several schedules "
                        "the same ones"
                    )
                    return
                self._engines[key] = _RunningEngine(
                    spec.type, lambda: self._made(spec, folder), lambda id_, said: self._note(key, id_, said)
                )
            self._of[id_] = key
            self._engines[key].put(schedule)

    def drop(self, id_: str) -> None:
        """Fire no longer for a schedule."""
        with self._lock:
            self._problems.pop(id_, None)
            key = self._of.pop(id_, None)
            if key is not None:
                self._engines[key].drop(id_)

    def problem(self, id_: str) -> str:
        """Return why nothing fires for a schedule; "" if nothing is wrong."""
        with self._lock:
            return self._problems.get(id_, "")

    def close(self) -> None:
        """Stop all; waits up to 10 s, since an engine of others may hang."""
        with self._lock:
            self._closed = True
            engines = list(self._engines.values())
        for each in engines:
            each.close()
        deadline = time.monotonic() + CLOSE_SECONDS
        for each in engines:
            each.thread.join(max(0.0, deadline - time.monotonic()))
        if any(each.thread.is_alive() for each in engines):
            log.warning("an engine of schedules has not stopped within %d s; the server does not wait", CLOSE_SECONDS)

    def _end_idle(self) -> None:
        """End engines without schedules, so that options which change often leave nothing; the caller has the lock."""
        for key in self._engines.keys() - self._of.values():
            if self._engines[key].is_idle:
                self._engines.pop(key).close()

    def _note(self, key: str, id_: str, problem: str) -> None:
        with self._lock:
            if self._of.get(id_) != key:
                return  # it is another engine's by now
            self._problems.pop(id_, None)
            if problem:
                self._problems[id_] = problem

    def _made(self, spec: EngineSpec, folder: Path) -> ScheduleEngine:
        kind = self._plugins.find(PlugInKind.ENGINE, spec.type)
        made: ScheduleEngine = kind(kind.parse(spec.options, folder), self._fire)
        return made
