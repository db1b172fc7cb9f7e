"""The schedule engines of one server: each starts with its first schedule, and gets all that name it.

An engine may be a stranger's plug-in that asks another host. So each has a thread of its own, which brings it to what
is wanted of it: whatever fails is tried again, and an engine that hangs hinders no other one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobpipe.errors import JobpipeError
from jobpipe.pipelines.plugins.plugin_discovery import PlugInKind, Plugins
from jobpipe.pipelines.plugins.schedule_engine import Fire, Schedule, ScheduleEngine

log = logging.getLogger(__name__)

MOST_ENGINES = 50
MOST_TRIES = 100  # of telling an engine to forget a schedule
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
        begun: the engine was told to fire for it, whatever it said.
        tries: how often it could not be told.
    """

    schedule: Schedule | None = None
    synced: Schedule | None = None
    open: bool = False
    begun: bool = False
    retry: float = 0.0
    tries: int = 0


class _RunningEngine:
    """One engine with its thread, which ends with its last schedule; what is wanted of it may change at any time.

    Args:
        key: by which the pool knows it.
        name: for messages: the type that a file gives it.
        make: makes the engine; called until it does not raise.
        note: told of each schedule why the engine does not take it, or "".
        after: engines of that type that end: they may hold what this one needs.
    """

    def __init__(
        self,
        key: str,
        name: str,
        make: Callable[[], ScheduleEngine],
        report_problem: Callable[[str, str], None],
        after: Sequence[_RunningEngine],
    ) -> None:
        self.key = key
        self.name = name
        self._make = make
        self._report_problem = report_problem
        self._changed = threading.Condition()
        self._wanted: dict[str, _Wanted] = {}
        self._engine: ScheduleEngine | None = None
        self._retry = 0.0  # when to start it
        self._retired = False  # it has lost its last schedule: it forgets it, and ends
        self._closing = False
        self.thread = threading.Thread(target=self._run, args=(after,), name=f"engine-{name[:40]}", daemon=True)

    @property
    def is_ending(self) -> bool:
        """Whether it takes no more schedules."""
        with self._changed:
            return self._retired or self._closing

    def put(self, schedule: Schedule) -> bool:
        """Let it fire for a schedule; return False if it ends."""
        with self._changed:
            if self._closing:
                return False
            self._retired = False  # it may have been about to end
            known = self._wanted.setdefault(schedule.id, _Wanted())
            if known.synced == known.schedule == schedule and not known.open:
                return True
            known.schedule, known.open, known.retry = schedule, True, 0.0
            self._changed.notify_all()
            return True

    def drop(self, id_: str) -> None:
        """Let it fire no longer for a schedule."""
        with self._changed:
            known = self._wanted.setdefault(id_, _Wanted())
            if not known.begun:
                del self._wanted[id_]
            known.schedule, known.open, known.retry, known.tries = None, True, 0.0, 0
            self._retired = all(each.schedule is None for each in self._wanted.values())
            self._closing = self._closing or not self._wanted
            self._changed.notify_all()

    def close(self) -> None:
        """Let it stop; returns at once."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def give_up(self) -> None:
        """Let it stop unless it has schedules, though it has not forgotten all; returns at once."""
        with self._changed:
            self._closing = self._closing or self._retired
            self._changed.notify_all()

    def _run(self, after: Sequence[_RunningEngine]) -> None:
        for engine in after:
            engine.thread.join(CLOSE_SECONDS)
            engine.give_up()  # what it forgets from here on may be this one's
        del after  # each of them would keep the one before it
        while True:
            with self._changed:
                while not self._closing and (wait := self._wait()) != 0.0:
                    self._changed.wait(wait)
                if self._closing:
                    break
            if self._engine is None:
                self._start()
            else:
                self._sync(self._engine)
        if self._engine is not None:
            self._stop(self._engine)

    def _stop(self, engine: ScheduleEngine) -> None:
        try:
            engine.stop()
        except (Exception, SystemExit):
            log.exception("schedule engine %s does not stop", self.name)

    def _wait(self) -> float | None:
        """Return for how many seconds there is nothing to do; None: until something changes."""
        retries = [each.retry for each in self._wanted.values() if each.open]
        if not retries:
            return None
        return max(0.0, (self._retry if self._engine is None else min(retries)) - time.monotonic())

    def _start(self) -> None:
        engine: ScheduleEngine | None = None
        try:
            engine = self._make()
            engine.start()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's plug-in
            if engine is not None:
                self._stop(engine)  # what it has started already
            self._retry = time.monotonic() + RETRY_SECONDS
            with self._changed:
                names = list(self._wanted)
            for id_ in names:
                self._failed(id_, "does not start", error)
            return
        self._engine = engine

    def _sync(self, engine: ScheduleEngine) -> None:
        """Tell it of one schedule what it does not know."""
        with self._changed:
            opened = [id_ for id_, each in self._wanted.items() if each.open]
            if not opened:
                return  # dropped meanwhile
            id_ = min(opened, key=lambda id_: self._wanted[id_].retry)
            known = self._wanted[id_]
            schedule, known.open = known.schedule, False
            updates = known.synced is not None and not known.tries  # else it may have forgotten it
            known.begun = True
        failed: BaseException | None = None
        try:
            if schedule is None:
                engine.unregister(id_)
            elif updates:
                engine.update(schedule)
            else:
                engine.register(schedule)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's plug-in
            failed = error
        with self._changed:
            known.tries = 0 if failed is None else known.tries + 1
            gives_up = schedule is None and known.tries >= MOST_TRIES
            if failed is None or gives_up:
                known.synced = schedule
                if schedule is None and not known.open:
                    del self._wanted[id_]
                    self._closing = self._closing or not self._wanted
            elif not known.open:  # nothing else is wanted by now
                known.open, known.retry = True, time.monotonic() + RETRY_SECONDS
        if failed is None:
            self._report_problem(id_, "")
        else:
            self._failed(id_, "does not take the schedule", failed)

    def _failed(self, id_: str, what: str, error: BaseException) -> None:
        said = error.message if isinstance(error, JobpipeError) else f"{type(error).__name__}: {error}"
        log.warning("schedule %s: engine %s %s: %s", id_, self.name, what, said)
        self._report_problem(id_, f"engine {self.name} {what}: {said}"[:_MOST_CHARACTERS])


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
        self._ending: list[_RunningEngine] = []
        self._engine_keys: dict[str, str] = {}  # the key of each schedule's engine
        self._problems: dict[str, str] = {}  # of schedules
        self._refused: dict[str, tuple[Schedule, Path]] = {}  # since there are too many engines
        self._closed = False

    def put(self, schedule: Schedule, folder: Path) -> None:
        """Let the engine that a schedule names fire for it, and no other one; what fails is a problem of the schedule.

        Args:
            folder: where relative paths among the engine's options start.
        """
        with self._lock:
            if self._refused.pop(schedule.id, None) is not None:
                del self._problems[schedule.id]
            self._put(schedule, folder)
            self._put_refused()

    def drop(self, id_: str) -> None:
        """Fire no longer for a schedule."""
        with self._lock:
            self._problems.pop(id_, None)
            self._refused.pop(id_, None)
            key = self._engine_keys.pop(id_, None)
            if key is not None and not self._closed:
                self._engines[key].drop(id_)
            self._put_refused()

    def _put(self, schedule: Schedule, folder: Path) -> None:
        id_ = schedule.id
        key = json.dumps(schedule.spec.engine.model_dump(mode="json", by_alias=True), sort_keys=True)
        if self._closed:
            return
        if self._engine_keys.get(id_, key) != key:
            self._engines[self._engine_keys.pop(id_)].drop(id_)
        self._forget_ended()
        ending = next((each for each in self._ending if each.key == key), None)
        running = self._engines.get(key, ending)
        if running is None or not running.put(schedule):
            if running is not None and running is not ending:
                self._ending.append(self._engines.pop(key))
            if max(len(self._engines), len(self._ending)) >= MOST_ENGINES:
                self._refused[id_] = schedule, folder
                self._problems[id_] = (
                    f"a server runs at most {MOST_ENGINES} engines with different options; give several schedules the "
                    "same ones"
                )
                return
            running = self._start_engine(key, schedule, folder)
        elif running is ending:
            self._ending.remove(running)
        self._engines[key] = running
        self._engine_keys[id_] = key

    def _put_refused(self) -> None:
        """Try again what was refused; the caller has the lock."""
        self._forget_ended()
        for schedule, folder in list(self._refused.values()):
            if len(self._engines) < MOST_ENGINES:
                del self._refused[schedule.id], self._problems[schedule.id]
                self._put(schedule, folder)

    def problem(self, id_: str) -> str:
        """Return why nothing fires for a schedule; "" if nothing is wrong."""
        with self._lock:
            return self._problems.get(id_, "")

    def close(self) -> None:
        """Stop all; waits up to 10 s, since an engine of others may hang."""
        with self._lock:
            self._closed = True
            engines = [*self._engines.values(), *self._ending]
        for each in engines:
            each.close()
        deadline = time.monotonic() + CLOSE_SECONDS
        for each in engines:
            each.thread.join(max(0.0, deadline - time.monotonic()))
        if any(each.thread.is_alive() for each in engines):
            log.warning("an engine of schedules has not stopped within %d s; the server does not wait", CLOSE_SECONDS)

    def _start_engine(self, key: str, schedule: Schedule, folder: Path) -> _RunningEngine:
        """Return an engine that begins with its first schedule; the caller has the lock."""
        spec = schedule.spec.engine

        def made() -> ScheduleEngine:
            kind = self._plugins.find(PlugInKind.ENGINE, spec.type)
            engine: ScheduleEngine = kind(kind.parse(spec.options, folder), self._fire)
            return engine

        after = [each for each in self._ending if each.name == spec.type]
        engine = _RunningEngine(key, spec.type, made, lambda id_, said: self._report_problem(key, id_, said), after)
        engine.put(schedule)
        engine.thread.start()
        return engine

    def _forget_ended(self) -> None:
        """Note which engines have no schedule any more; the caller has the lock."""
        for key in [key for key, engine in self._engines.items() if engine.is_ending]:
            self._ending.append(self._engines.pop(key))
        self._ending = [each for each in self._ending if each.thread.is_alive()]

    def _report_problem(self, key: str, id_: str, problem: str) -> None:
        with self._lock:
            if self._engine_keys.get(id_) != key:
                return  # it is another engine's by now
            self._problems.pop(id_, None)
            if problem:
                self._problems[id_] = problem
