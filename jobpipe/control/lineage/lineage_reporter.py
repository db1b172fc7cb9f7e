"""Turns the server's events into lineage events, which wait in an outbox: each once, also if the server is killed."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from openlineage.client.event_v2 import RunState

from jobpipe.config import Config
from jobpipe.control.control_service import Control
from jobpipe.control.lineage.job_lineage import JobLineage, PipelineLineage
from jobpipe.control.lineage.lineage_destinations import destination_of
from jobpipe.control.lineage.lineage_outbox import LineageOutbox, OpenRun
from jobpipe.control.lineage.lineage_sender import FIRST_DELAY, LineageSender
from jobpipe.control.lineage.run_events import LineageRun, RunStatistics, run_event, run_id
from jobpipe.errors import JobpipeError, StoreError
from jobpipe.jobs.storage.job_rows import Event, RunRow
from jobpipe.metrics.metric_samples import LineageSample, TopicsSnapshot
from jobpipe.operations.status_operations import TopicStatus
from jobpipe.pipelines.model.job_states import JobState

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
RUNNING_SECONDS = 300.0  # from one event that says that a run goes on to the next
MOST_DESCRIBED = 256  # jobs whose lineage is kept at hand
_ENDS = {
    JobState.FINISHED: RunState.COMPLETE,
    JobState.FAILED: RunState.FAIL,
    JobState.STOPPED: RunState.ABORT,
    JobState.CANCELED: RunState.ABORT,
}
_Job = tuple[str, float, int, str]  # pipeline, when its first file was submitted, version, job


@dataclass(frozen=True)
class _Missed:
    """How runs stood at a start before which events are missing.

    Attributes:
        newest: the last event of then.
        known: runs that were told to begin, and not to end, as they stood; None: there was no such run.
        active: runs that worked.
    """

    newest: int
    known: Sequence[tuple[OpenRun, RunRow | None]]
    active: Sequence[RunRow]


class LineageReporter:
    """Follows the server's events with one thread, and lets a second one send; :meth:`close` ends both.

    A run begins with the first of its attempts that works, and ends when the server gives no further attempt to it. At
    the first start the runs of that moment begin.

    Args:
        environ: where references ``env:NAME`` lead; None: of this process.
        first_delay: seconds before an event is sent for the second time.
        running_seconds: from one event that says that a run goes on to the next.
        clock: seconds since 1970.

    Raises:
        ConfigError: the configuration does not say where events go, or not rightly.
    """

    def __init__(
        self,
        control: Control,
        config: Config,
        *,
        environ: Mapping[str, str] | None = None,
        first_delay: float = FIRST_DELAY,
        running_seconds: float = RUNNING_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._control = control
        self._config = config
        self._destination = destination_of(config, environ)
        self._first_delay = first_delay
        self._running_seconds = running_seconds
        self._clock = clock
        self._closed = threading.Event()
        self._read = 0  # the last event that was read
        self._missed: _Missed | None = None  # what is to be told before the next event
        self._described: OrderedDict[_Job, JobLineage | None] = OrderedDict()
        self._loaded: tuple[_Job, PipelineLineage] | None = None  # the newest one
        self._snapshot = TopicsSnapshot({}, 0.0)  # asked for before each change, which it would hold up
        self._waiting = self._dropped = 0
        self._thread = threading.Thread(target=self._loop, name="lineage", daemon=True)

    def start(self) -> None:
        """Begin.

        Raises:
            StoreError: what is remembered cannot be read or written.
        """
        path = self._config.home / "server" / "lineage.db"
        self._outbox = LineageOutbox(path, self._clock, self._note_dropped)
        try:
            self._resume()
        except BaseException:
            self._outbox.close()
            raise
        self._sender = LineageSender(self._outbox, self._destination, first_delay=self._first_delay)
        self._sender.start()
        self._thread.start()

    def close(self) -> None:
        """End; what is not sent yet is sent after the next start."""
        self._closed.set()
        self._thread.join()
        self._sender.close()
        self._outbox.close()

    def sample(self) -> LineageSample:
        """Return what metrics say; never fails."""
        try:
            self._waiting = self._outbox.waiting()[0]
        except StoreError as error:
            log.warning("metrics say how many lineage events waited before: %s", error.message)
        return LineageSample(waiting=self._waiting, sent=self._sender.sent, dropped=self._dropped)

    def _note_dropped(self, count: int, why: str) -> None:
        self._dropped += count
        what = f"{count} lineage event{'s' * (count > 1)}"
        log.error("%s dropped, %d since the start: %s", what, self._dropped, why)

    # -- the server's events -------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._closed.is_set():
            try:
                if self._missed is not None:
                    self._tell_missed(self._missed)
                    self._missed = None
                    self._sender.wake()
                events = self._control.events(self._read, wait=POLL_SECONDS, limit=100)
                if any(each.what == "state" and each.state in (JobState.RUNNING, *_ENDS) for each in events):
                    self._snapshot = self._control.topics_snapshot()  # once for all: it may take seconds
                for event in events:
                    self._take(event)
                self._tell_running()
            except StoreError as error:
                log.warning("lineage waits: %s", error.message)
                self._closed.wait(POLL_SECONDS)
            except Exception:
                log.exception("lineage waits")
                self._closed.wait(POLL_SECONDS)

    def _take(self, event: Event) -> None:
        """Turn an event into lineage, and note that it was; one that cannot be is left out."""
        try:
            with self._outbox.write():
                self._handle(event)
                self._outbox.note_event(event.id)
        except StoreError:
            raise  # it is taken again
        except Exception:
            log.exception("no lineage of event %d of pipeline %s", event.id, event.pipeline)
            with self._outbox.write():
                if event.state in _ENDS:
                    self._outbox.remove_run(str(event.fields.get("run")))
                self._outbox.note_event(event.id)
            self._note_dropped(1, "it could not be made")
        self._read = event.id
        self._sender.wake()

    def _handle(self, event: Event) -> None:
        run = event.fields.get("run")
        if event.what == "state" and event.job is not None and isinstance(run, str):
            known = self._outbox.open_run(run)
            if event.state is JobState.RUNNING:
                self._works(event, run, known)
            elif event.state in _ENDS:
                self._ends(event, run, known)
        elif event.what == "removed" or event.what == "deleted":
            for each in self._outbox.open_runs():  # none, unless its end is not known
                if each.pipeline == event.pipeline and event.job in (None, each.job):
                    self._end(each, RunState.ABORT, event.at)

    def _works(self, event: Event, run: str, known: OpenRun | None) -> None:
        if known is None:
            self._begin(self._control.store.run(run), event.pipeline, str(event.job), run, event.at)
            return
        version = self._version(event.pipeline, run)
        if version != known.version:  # another attempt, by another file
            self._tell(replace(known, version=version), RunState.RUNNING, event.at)

    def _ends(self, event: Event, run: str, known: OpenRun | None) -> None:
        state = _ENDS[event.state or JobState.FAILED]
        if known is None:
            if state is RunState.ABORT:
                return  # it has not worked
            row = self._control.store.run(run)
            known = self._begin(row, event.pipeline, str(event.job), run, self._began(row, event.at))
        self._end(known, state, event.at, event.detail if state is RunState.FAIL else "")

    def _began(self, row: RunRow | None, ended: float) -> float:
        """Return when a run began that was not seen to work: a short one, or one that could not be started."""
        attempts = [] if row is None else self._control.store.attempts(row.id, 1)
        if row is None or not attempts or row.attempts == row.before:
            return ended
        return min(attempts[-1].began, ended)

    def _version(self, pipeline: str, run: str) -> int:
        """Return the version of the file by which a run works."""
        attempts = self._control.store.attempts(run, 1)
        if attempts:
            return attempts[-1].version
        row = self._control.store.pipeline(pipeline)
        return 0 if row is None else row.version

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Find out where to go on; if events are missing in between, the runs themselves are to be compared.

        The same if the server's store is another one, such as an older copy: its events are not those that were read.
        """
        last = self._outbox.last_event()
        store = self._control.store
        kept = self._control.events(0, limit=1)
        if last is not None and last <= store.newest_event() and (not kept or kept[0].id <= last + 1):
            self._read = last
            return
        active: list[RunRow] = []
        with store.write():  # all of one moment
            self._read = store.newest_event()
            known = [(each, store.run(each.run)) for each in self._outbox.open_runs()]
            for pipeline, name in store.active_jobs():
                job = store.job(pipeline, name)
                row = None if job is None else store.run(job.run)
                works = row is not None and row.state not in (JobState.SUBMITTED, JobState.LOST, *_ENDS)
                if row is not None and works and row.attempts > row.before:
                    active.append(row)
        self._missed = _Missed(self._read, known, active)

    def _tell_missed(self, missed: _Missed) -> None:
        """Tell which runs have ended, and which have begun; files are loaded for it, so nothing may wait for this."""
        self._snapshot = self._control.topics_snapshot()
        with self._outbox.write():
            for run, row in missed.known:
                with self._dropping(run.run):
                    self._end_missed(run, row)
            for row in missed.active:
                if self._outbox.open_run(row.id) is None:
                    with self._dropping(row.id):
                        self._begin(row, row.pipeline, row.job, row.id, row.began)
            self._outbox.note_event(missed.newest)

    def _end_missed(self, run: OpenRun, row: RunRow | None) -> None:
        if row is None:
            self._end(run, RunState.ABORT, self._clock())
        elif row.is_over:
            state = _ENDS[row.state]
            ended = self._clock() if row.ended is None else row.ended
            self._end(run, state, ended, row.detail if state is RunState.FAIL else "")

    @contextlib.contextmanager
    def _dropping(self, run: str) -> Iterator[None]:
        """Leave out what cannot be told of one run, so that it holds up no other one."""
        try:
            yield
        except StoreError:
            raise  # the next round tells all of it
        except Exception:
            log.exception("no lineage of run %s", run)
            self._outbox.remove_run(run)
            self._note_dropped(1, "it could not be made")

    def _begin(self, row: RunRow | None, pipeline: str, job: str, run: str, at: float) -> OpenRun:
        version = self._version(pipeline, run)
        begun = OpenRun(
            run=run,
            id=run_id(run, at),
            pipeline=pipeline,
            job=job,
            version=version,
            lower=None if row is None else row.lower,
            upper=None if row is None else row.upper,
            began=at,
            told=at,
        )
        lineage = self._lineage(begun)
        topics = self._topics(lineage)
        begun = replace(begun, before={name: (each.log, each.rows, each.bytes) for name, each in topics.items()})
        self._tell(begun, RunState.START, at)
        return begun

    def _end(self, run: OpenRun, state: RunState, at: float, error: str = "") -> None:
        self._tell(run, state, at, error)
        self._outbox.remove_run(run.run)

    def _tell(self, run: OpenRun, state: RunState, at: float, error: str = "") -> None:
        """Let an event be sent, and note that it is."""
        lineage = self._lineage(run)
        about = LineageRun(id=run.id, run=run.run, pipeline=run.pipeline, job=run.job, lower=run.lower, upper=run.upper)
        text = run_event(
            state,
            about,
            at,
            namespace=self._config.server_lineage_namespace,
            lineage=lineage,
            statistics=None if state is RunState.START else self._statistics(run, lineage),
            error=error,
        )
        self._outbox.add(run.id, state.value, text)
        self._outbox.put_run(replace(run, told=at))

    def _tell_running(self) -> None:
        """Say of each run that goes on that it does, from time to time; topics are asked for once."""
        is_asked = False
        for run in self._outbox.open_runs():
            now = self._clock()
            if 0.0 <= now - run.told < self._running_seconds:
                continue
            row = self._control.store.run(run.run)
            if row is None or row.is_over or row.state is JobState.LOST:
                continue  # its end comes; or whether it goes on is not known
            if not is_asked:
                self._snapshot, is_asked = self._control.topics_snapshot(), True  # it may take seconds
            try:
                with self._outbox.write():
                    self._tell(run, RunState.RUNNING, now)
            except StoreError:
                raise
            except Exception:
                log.exception("no lineage of run %s of job %s.%s", run.run, run.pipeline, run.job)
                self._outbox.put_run(replace(run, told=now))
            self._sender.wake()

    # -- what events say -----------------------------------------------------------------------------------------------

    def _lineage(self, run: OpenRun) -> JobLineage | None:
        """Return what a run's job reads and writes; None if the file cannot be loaded here, or is not kept."""
        pipeline = self._control.store.pipeline(run.pipeline)
        key = (run.pipeline, 0.0 if pipeline is None else pipeline.born, run.version, run.job)
        if key not in self._described:
            self._described[key] = self._describe(key)
            while len(self._described) > MOST_DESCRIBED:
                self._described.popitem(last=False)
        self._described.move_to_end(key)
        return self._described[key]

    def _describe(self, key: _Job) -> JobLineage | None:
        name, _, version, job = key
        try:
            if self._loaded is None or self._loaded[0][:3] != key[:3]:
                pipeline = self._control.load(self._control.revision(name, version))
                self._loaded = (key, PipelineLineage(self._config, pipeline))
            return self._loaded[1].job(job)
        except StoreError:
            raise
        except JobpipeError as error:
            log.warning("lineage of job %s.%s names no datasets: %s", name, job, error.message.partition("\n")[0])
        except Exception:
            log.exception("lineage of job %s.%s names no datasets", name, job)
        return None

    def _topics(self, lineage: JobLineage | None) -> dict[str, TopicStatus]:
        """Return how the topics that a job publishes stand, those that are served and answer."""
        published = [each.topic for each in (() if lineage is None else lineage.outputs) if each.topic is not None]
        if not published:
            return {}
        served = self._snapshot.topics
        return {topic: found for topic in published if isinstance(found := served.get(topic), TopicStatus)}

    def _statistics(self, run: OpenRun, lineage: JobLineage | None) -> RunStatistics:
        published = {}
        for topic, now in self._topics(lineage).items():
            before = run.before.get(topic)
            if before is None and now.uptime <= self._clock() - run.began:
                before = (now.log, 0, 0)  # the log was made in this run
            if before is not None and before[0] == now.log:
                published[topic] = (max(0, now.rows - before[1]), max(0, now.bytes - before[2]))
        return RunStatistics(rows_read=self._rows_read(run.run), published=published)

    def _rows_read(self, run: str) -> int | None:
        """Return how many rows all attempts of a run have read; None if that is not known."""
        row = self._control.store.run(run)
        if row is None:
            return None
        batches, rows = row.batches, row.rows
        attempts = () if row.is_over else self._control.run(run).attempts
        if attempts and attempts[-1].ended is None:
            newest = attempts[-1]
            if newest.batches is None or newest.rows is None:
                return None
            batches, rows = batches + newest.batches, rows + newest.rows
        return None if batches and not rows else rows
