"""What the server remembers: pipelines, jobs, runs, attempts, events, cleanup tasks. Changes are durable.

The order of an attempt's changes is what makes a crash harmless: :meth:`Store.begin_attempt` before the order in the
registry, that before the launcher is asked, its id as soon as it has said it, and an end before the end record is
removed. A job has at most one open attempt, which the database itself sees to.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from jobpipe.jobs.storage.job_rows import (
    AttemptRow,
    CleanupTask,
    DefinitionRow,
    Event,
    JobRow,
    JobSubscription,
    LeaseHolder,
    PipelineRow,
    RevisionChanges,
    RunRow,
)
from jobpipe.jobs.storage.sqlite_file import ControlDatabase
from jobpipe.pipelines.model.job_states import DesiredState, JobState

MOST_DEFINITIONS = 100  # of a pipeline, kept
MOST_DEFINITION_CHARACTERS = 64 << 20  # of a pipeline, all together
MOST_RUNS = 200  # of a job, kept
MOST_ATTEMPTS = 100  # of a run
MOST_EVENTS = 10_000
_PRUNE_EVENTS = 100  # so many may be above
_ROW = TypeVar("_ROW", JobRow, RunRow, AttemptRow)
_OPEN = "attempts WHERE pipeline = ? AND job = ? AND open"


class Store:
    """Typed access to one database. Methods may be called from any thread.

    Args:
        path: of the file; None: it is in memory, and gone with this object.
        event_added: called after each change that added an event.
    """

    def __init__(
        self, path: Path | None, clock: Callable[[], float], event_added: Callable[[], None] = lambda: None
    ) -> None:
        self._database = ControlDatabase(path)
        self._clock = clock
        self._event_added = event_added
        self._events = threading.local()

    def close(self) -> None:
        """Close it; idempotent."""
        self._database.close()

    @property
    def database(self) -> ControlDatabase:
        """The file, for what else is kept in it; changes are made inside :meth:`write`."""
        return self._database

    @contextlib.contextmanager
    def write(self) -> Iterator[None]:
        """Make all changes inside as one, with no other change in between. May be nested."""
        outer = not getattr(self._events, "open", False)
        self._events.open = True
        try:
            with self._database.write():
                yield
        finally:
            if outer:
                added, self._events.open, self._events.added = getattr(self._events, "added", False), False, False
        if outer and added:
            self._event_added()

    # -- pipelines -----------------------------------------------------------------------------------------------------

    def pipelines(self) -> list[PipelineRow]:
        return [_pipeline(row) for row in self._database.all("SELECT * FROM pipelines ORDER BY name")]

    def pipeline(self, name: str) -> PipelineRow | None:
        """Return one, None if it is not there."""
        row = self._database.one("SELECT * FROM pipelines WHERE name = ?", name)
        return None if row is None else _pipeline(row)

    def put_pipeline(self, pipeline: PipelineRow) -> None:
        """Add it, or change all but ``born``."""
        with self.write():
            self._database.execute(
                "INSERT INTO pipelines VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
                "version = excluded.version, want = excluded.want, submitted = excluded.submitted",
                *asdict(pipeline).values(),
            )

    def remove_pipeline(self, name: str) -> None:
        """Forget it, with its definitions, jobs, runs and attempts."""
        with self.write():
            self._database.execute("DELETE FROM pipelines WHERE name = ?", name)

    def definition(self, pipeline: str, version: int) -> DefinitionRow | None:
        """Return one version of its file, None if it is not kept."""
        row = self._database.one("SELECT * FROM definitions WHERE pipeline = ? AND version = ?", pipeline, version)
        if row is None:
            return None
        return _definition(row)

    def definitions(self, pipeline: str) -> list[DefinitionRow]:
        """Return the versions of its file that are kept, the newest first, without their trees."""
        columns = "pipeline, version, file, folder, '' AS tree, submitted, submitter, changes"
        query = f"SELECT {columns} FROM definitions WHERE pipeline = ? ORDER BY version DESC"  # noqa: S608
        return [_definition(row) for row in self._database.all(query, pipeline)]

    def add_definition(self, definition: DefinitionRow) -> None:
        """Keep one; the oldest go, but for those that an open attempt was started with."""
        with self.write():
            values = asdict(definition)
            values |= {"file": str(definition.file), "folder": str(definition.folder)}
            self._database.insert("definitions", {**values, "changes": json.dumps(values["changes"])})
            self._database.execute(
                "DELETE FROM definitions WHERE pipeline = ? AND version < ? AND version NOT IN "
                "(SELECT version FROM attempts WHERE pipeline = ? AND open) AND version NOT IN (SELECT version FROM "
                "(SELECT version, row_number() OVER newest AS place, "
                "sum(length(tree) + length(changes)) OVER newest AS size "
                "FROM definitions WHERE pipeline = ? WINDOW newest AS (ORDER BY version DESC)) "
                "WHERE place <= ? AND size <= ?)",
                *(definition.pipeline, definition.version, definition.pipeline, definition.pipeline),
                *(MOST_DEFINITIONS, MOST_DEFINITION_CHARACTERS),
            )

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def jobs(self, pipeline: str | None = None) -> list[JobRow]:
        """Return those of a pipeline, or all, in the order of their files."""
        where = "" if pipeline is None else "WHERE pipeline = ? "
        query = f"SELECT * FROM jobs {where}ORDER BY pipeline, position, name"  # noqa: S608
        return [_read(JobRow, row) for row in self._database.all(query, *([] if pipeline is None else [pipeline]))]

    def job(self, pipeline: str, name: str) -> JobRow | None:
        """Return one, None if it is not there."""
        row = self._database.one("SELECT * FROM jobs WHERE pipeline = ? AND name = ?", pipeline, name)
        return None if row is None else _read(JobRow, row)

    def put_job(self, job: JobRow) -> None:
        """Add it, or change it."""
        values = _values(job)
        changed = ", ".join(f"{name} = excluded.{name}" for name in values if name not in ("pipeline", "name"))
        with self.write():
            self._database.execute(
                f"INSERT INTO jobs ({', '.join(values)}) VALUES ({', '.join('?' * len(values))}) "  # noqa: S608
                f"ON CONFLICT (pipeline, name) DO UPDATE SET {changed}",
                *values.values(),
            )

    def remove_job(self, pipeline: str, name: str) -> None:
        """Forget it, with its runs."""
        with self.write():
            self._database.execute("DELETE FROM jobs WHERE pipeline = ? AND name = ?", pipeline, name)

    def count_jobs(self) -> int:
        """Return how many there are."""
        row = self._database.one("SELECT count(*) FROM jobs")
        return 0 if row is None else int(row[0])

    # -- runs ----------------------------------------------------------------------------------------------------------

    def runs(self, pipeline: str | None, job: str | None, limit: int) -> list[RunRow]:
        """Return the newest first, of all pipelines or of one, of all its jobs or of one."""
        given = {name: value for name, value in (("pipeline", pipeline), ("job", job)) if value is not None}
        values = list(given.values())
        where = f"WHERE {' AND '.join(f'{name} = ?' for name in given)} " if given else ""
        query = f"SELECT * FROM runs {where}ORDER BY number DESC LIMIT ?"  # noqa: S608
        return [_read(RunRow, row) for row in self._database.all(query, *values, limit)]

    def run(self, run: str | None) -> RunRow | None:
        """Return one, None if it is not there."""
        row = self._database.one("SELECT * FROM runs WHERE id = ?", run)
        return None if row is None else _read(RunRow, row)

    def run_over(self, pipeline: str, job: str, lower: str, upper: str) -> RunRow | None:
        """Return the newest run of a job with these bounds, None if none is kept."""
        row = self._database.one(
            "SELECT * FROM runs WHERE pipeline = ? AND job = ? AND lower = ? AND upper = ? "
            "ORDER BY number DESC LIMIT 1",
            pipeline,
            job,
            lower,
            upper,
        )
        return None if row is None else _read(RunRow, row)

    def active_jobs(self) -> list[tuple[str, str]]:
        """Return (pipeline, job) of those that have a run which has not ended."""
        rows = self._database.all("SELECT DISTINCT pipeline, job FROM runs WHERE ended IS NULL")
        return [(row["pipeline"], row["job"]) for row in rows]

    def add_run(self, run: RunRow) -> None:
        """Add it; the oldest of the job that have ended go."""
        with self.write():
            self._database.insert("runs", _values(run))
            self._database.execute(
                "DELETE FROM runs WHERE pipeline = ? AND job = ? AND ended IS NOT NULL "
                "AND id NOT IN (SELECT run FROM attempts WHERE open) AND number NOT IN "
                "(SELECT number FROM runs WHERE pipeline = ? AND job = ? ORDER BY number DESC LIMIT ?)",
                *[run.pipeline, run.job] * 2,
                MOST_RUNS,
            )

    def make_newest(self, run: str) -> None:
        """Let a run that is made again be the newest one of all, so that it is kept as long as that."""
        with self.write():
            self._database.execute("UPDATE runs SET number = (SELECT max(number) + 1 FROM runs) WHERE id = ?", run)

    def change_run(self, run: str, **changes: Any) -> None:
        """Change some fields of a run."""
        self._change("runs", changes, "id = ?", run)

    # -- attempts ------------------------------------------------------------------------------------------------------

    def attempts(self, run: str, limit: int = MOST_ATTEMPTS) -> list[AttemptRow]:
        """Return the newest ones of a run, the newest last."""
        rows = self._database.all("SELECT * FROM attempts WHERE run = ? ORDER BY number DESC LIMIT ?", run, limit)
        return [_read(AttemptRow, row) for row in reversed(rows)]

    def attempt(self, run: str, number: int) -> AttemptRow | None:
        """Return one, None if it is not there."""
        row = self._database.one("SELECT * FROM attempts WHERE run = ? AND number = ?", run, number)
        return None if row is None else _read(AttemptRow, row)

    def open_attempt(self, pipeline: str, job: str) -> AttemptRow | None:
        """Return the one of a job whose end, or what follows it, is still to come."""
        row = self._database.one(f"SELECT * FROM {_OPEN}", pipeline, job)  # noqa: S608
        return None if row is None else _read(AttemptRow, row)

    def begin_attempt(self, attempt: AttemptRow) -> None:
        """Store that it is going to be ordered and started; the oldest of the run go."""
        with self.write():
            self._database.insert("attempts", _values(attempt))
            self._database.execute(
                "UPDATE jobs SET numbers = ? WHERE pipeline = ? AND name = ?",
                attempt.number,
                attempt.pipeline,
                attempt.job,
            )
            self._database.execute("UPDATE runs SET attempts = attempts + 1 WHERE id = ?", attempt.run)
            self._database.execute(
                "DELETE FROM attempts WHERE run = ? AND NOT open AND number NOT IN "
                "(SELECT number FROM attempts WHERE run = ? ORDER BY number DESC LIMIT ?)",
                *[attempt.run] * 2,
                MOST_ATTEMPTS,
            )

    def forget_attempt(self, run: str, number: int) -> None:
        """Remove one that was not ordered."""
        with self.write():
            if self._database.execute("DELETE FROM attempts WHERE run = ? AND number = ?", run, number):
                self._database.execute("UPDATE runs SET attempts = attempts - 1 WHERE id = ?", run)

    def change_attempt(self, run: str, number: int, **changes: Any) -> None:
        """Change some fields of an attempt."""
        self._change("attempts", changes, "run = ? AND number = ?", run, number)

    def _change(self, table: str, changes: Mapping[str, Any], where: str, *key: Any) -> None:
        assigned = ", ".join(f"{name} = ?" for name in changes)
        with self.write():
            self._database.execute(
                f"UPDATE {table} SET {assigned} WHERE {where}",  # noqa: S608
                *map(_stored, changes.values()),
                *key,
            )

    # -- events --------------------------------------------------------------------------------------------------------

    def add_event(
        self,
        pipeline: str,
        job: str | None,
        what: str,
        *,
        state: JobState | None = None,
        detail: str = "",
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one; the oldest go."""
        with self.write():
            row = (self._clock(), pipeline, job, what, state, detail[:1000], json.dumps(dict(fields or {})))
            self._database.execute(
                "INSERT INTO events (at, pipeline, job, what, state, detail, fields) VALUES (?, ?, ?, ?, ?, ?, ?)",
                *row,
            )
            newest = self.newest_event()
            if newest % _PRUNE_EVENTS == 0:
                self._database.execute("DELETE FROM events WHERE id <= ?", newest - MOST_EVENTS)
            self._events.added = True

    def newest_event(self) -> int:
        """Return the highest id that there was, 0 before the first."""
        row = self._database.one("SELECT coalesce(max(id), 0) FROM events")
        return 0 if row is None else int(row[0])

    def events(self, after: int, limit: int) -> list[Event]:
        """Return those with a larger id, the oldest first."""
        rows = self._database.all("SELECT * FROM events WHERE id > ? ORDER BY id LIMIT ?", after, limit)
        return [_event(row) for row in rows]

    def latest_events(self, limit: int) -> list[Event]:
        """Return the newest, the newest first."""
        return [_event(row) for row in self._database.all("SELECT * FROM events ORDER BY id DESC LIMIT ?", limit)]

    def events_called(self, *what: str) -> list[Event]:
        """Return those of some kinds that are kept, the oldest first."""
        marks = ", ".join("?" * len(what))
        rows = self._database.all(f"SELECT * FROM events WHERE what IN ({marks}) ORDER BY id", *what)  # noqa: S608
        return [_event(row) for row in rows]

    # -- alerts --------------------------------------------------------------------------------------------------------

    def last_alerted_event(self) -> int | None:
        """Return the last event of which all alerts are sent or wait; None before the first start of alerts."""
        row = self._database.one("SELECT event FROM alerted")
        return None if row is None else int(row["event"])

    def waiting_alerts(self) -> dict[tuple[int, int], float]:
        """Return since when each alert waits, by its event and the number of its webhook."""
        rows = self._database.all("SELECT event, webhook, since FROM alerts")
        return {(row["event"], row["webhook"]): row["since"] for row in rows}

    def add_alerts(self, event: int, alerts: Iterable[tuple[int, float]]) -> None:
        """Store that an event was read, and the alerts of it that wait: (number of the webhook, since when)."""
        with self.write():
            self._database.execute("DELETE FROM alerted")
            self._database.execute("INSERT INTO alerted VALUES (?)", event)
            for webhook, since in alerts:
                self._database.execute("INSERT OR REPLACE INTO alerts VALUES (?, ?, ?)", event, webhook, since)

    def remove_alert(self, event: int, webhook: int) -> None:
        """Forget an alert: it was sent, or given up."""
        with self.write():
            self._database.execute("DELETE FROM alerts WHERE event = ? AND webhook = ?", event, webhook)

    # -- cleanup tasks -------------------------------------------------------------------------------------------------

    def add_cleanup_task(self, pipeline: str, job: str, subscription: JobSubscription | None) -> None:
        """Keep it until it is done."""
        topic, name = (None, None) if subscription is None else (subscription.topic, subscription.name)
        with self.write():
            self._database.execute(
                "INSERT INTO chores (pipeline, job, topic, subscription) VALUES (?, ?, ?, ?)",
                pipeline,
                job,
                topic,
                name,
            )

    def cleanup_tasks(self, after: int, limit: int) -> list[CleanupTask]:
        """Return those with a larger id, the oldest first."""
        rows = self._database.all("SELECT * FROM chores WHERE id > ? ORDER BY id LIMIT ?", after, limit)
        return [
            CleanupTask(
                id=row["id"],
                pipeline=row["pipeline"],
                job=row["job"],
                subscription=None
                if row["topic"] is None
                else JobSubscription(topic=row["topic"], name=row["subscription"]),
            )
            for row in rows
        ]

    def has_cleanup_task(self, task: CleanupTask) -> bool:
        """Whether it is still to be done."""
        return self._database.one("SELECT 1 FROM chores WHERE id = ?", task.id) is not None

    def remove_cleanup_tasks(self, *cleanup_tasks: int) -> None:
        """Forget them: they are done."""
        with self.write():
            for task in cleanup_tasks:
                self._database.execute("DELETE FROM chores WHERE id = ?", task)

    def remove_cleanup_tasks_of(self, job: JobRow) -> None:
        """Forget those of a job that is there again: its order is needed, and so are the subscriptions that it has."""
        key = (job.pipeline, job.name)
        with self.write():
            self._database.execute("DELETE FROM chores WHERE pipeline = ? AND job = ? AND topic IS NULL", *key)
            for each in job.subscriptions:
                self._database.execute(
                    "DELETE FROM chores WHERE pipeline = ? AND job = ? AND topic = ? AND subscription = ?",
                    *key,
                    each.topic,
                    each.name,
                )


def _pipeline(row: sqlite3.Row) -> PipelineRow:
    return PipelineRow(**{**dict(row), "want": DesiredState(row["want"])})


def _definition(row: sqlite3.Row) -> DefinitionRow:
    changes = RevisionChanges(**{key: tuple(names) for key, names in json.loads(row["changes"]).items()})
    paths = {key: Path(row[key]) for key in ("file", "folder")}
    return DefinitionRow(**{**dict(row), **paths, "changes": changes})


def _stored(value: Any) -> Any:
    if isinstance(value, LeaseHolder):
        return json.dumps(asdict(value))
    if isinstance(value, tuple):
        return json.dumps([asdict(each) if isinstance(each, JobSubscription) else each for each in value])
    return int(value) if isinstance(value, bool) else value


def _values(row: JobRow | RunRow | AttemptRow) -> dict[str, Any]:
    return {_column(each.name): _stored(getattr(row, each.name)) for each in fields(row)}


_COLUMNS = {  # of fields that have another name than their column
    "in_definition": "present",
    "reset_checkpoint": "renew",
    "last_attempt": "numbers",
    "next_run": "following",
}
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "state": JobState,
    "want": DesiredState,
    "reads": lambda text: tuple(json.loads(text)),
    "publishes": lambda text: tuple(json.loads(text)),
    "subscriptions": lambda text: tuple(JobSubscription(**each) for each in json.loads(text)),
    "holder": lambda text: None if text is None else LeaseHolder(**json.loads(text)),
    **dict.fromkeys(("scheduled", "on_demand", "in_definition", "reset_checkpoint", "stop", "forced", "open"), bool),
}


def _read(kind: type[_ROW], row: sqlite3.Row) -> _ROW:
    return kind(**{each.name: _READERS.get(each.name, _same)(row[_column(each.name)]) for each in fields(kind)})


def _column(field: str) -> str:
    return _COLUMNS.get(field, field)


def _event(row: sqlite3.Row) -> Event:
    state = None if row["state"] is None else JobState(row["state"])
    return Event(**{**dict(row), "state": state, "fields": json.loads(row["fields"])})


def _same(value: Any) -> Any:
    return value
