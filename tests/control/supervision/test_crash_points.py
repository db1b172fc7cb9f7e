"""The server is killed before and after each single step of a run's life; another one goes on.

A step is a change of the store, of the registry, or of the launcher. Whatever the moment, the same must come out: no
two attempts at once, no end lost or counted twice, and nothing left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jobpipe.config import load
from jobpipe.control.commands import PipelineCommands
from jobpipe.control.control_service import Submission
from jobpipe.control.revisions.planning import Asked
from jobpipe.jobs.allowed_paths import AllowedPaths
from jobpipe.jobs.definition_cache import DefinitionCache
from jobpipe.jobs.storage.job_store import Store
from jobpipe.jobs.supervision.circuit_breaker import CircuitBreaker
from jobpipe.jobs.supervision.reconciler import JobReconciler
from jobpipe.jobs.supervision.supervision_context import SupervisionContext
from jobpipe.pipelines.loading.loader import load_tree
from jobpipe.pipelines.model.job_states import REPLACED, JobState
from jobpipe.pipelines.plugins.api import Attempt, LaunchState, LaunchStatus
from jobpipe_registry.job_records import EndRecord, Lease
from jobpipe_registry.memory import MemoryRegisterServerHandler, MemoryTree
from jobpipe_registry.node_watch import Watch
from jobpipe_registry.registry_errors import LeaseHeld, NotOrdered
from jobpipe_registry.registry_jobs import JobRecords, StateCallback
from tests.control.world import NAME, Cluster, FakePlugins, job_of

MOST_STEPS = 400
STEPS = 100  # more than a life without a kill has
KEY = (NAME, "report")


class Killed(BaseException):
    """The server ends here."""


class Life:
    """Counts the steps of servers, and ends one of them."""

    def __init__(self, fatal: int | None) -> None:
        self.fatal = fatal
        self.count = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Be killed before the step, or after it."""
        self._at()
        yield
        self._at()

    def _at(self) -> None:
        self.count += 1
        if self.count == self.fatal:
            raise Killed

    def steps_of(self, thing: Any, names: tuple[str, ...]) -> None:
        """Count the calls of some methods."""
        for name in names:
            setattr(thing, name, self._counted(getattr(thing, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            with self.step():
                return call(*arguments, **named)

        return counted


class QuietWatch(Watch):
    """A watch without a thread: the server of the test makes its calls."""

    def close(self) -> None:
        """There is nothing to end."""


class Runner:
    """An attempt's process: takes its lease when it may, then does as the script says."""

    def __init__(self, world: Script, attempt: Attempt) -> None:
        self.attempt = attempt
        self._world = world
        self._handler = world.session()
        self.works = False
        self._role = ""
        self.code: int | None = None
        self.ended = False

    def act(self) -> None:
        """Go on a little."""
        if self.ended:
            return
        jobs = self._handler.jobs
        if not self.works:
            lease = Lease(self.attempt.run, self.attempt.number, "elsewhere", 4711, 1.5e9, str(id(self)))
            try:
                jobs.take_lease(*KEY, lease, lambda why: None)
            except NotOrdered:
                self.end(REPLACED)
                return
            except LeaseHeld:
                return
            self.works = True
            assert not [each for each in self._world.runners if each.works and each is not self and not each.ended]
            self._role = self._world.roles.pop(0)
            return
        order = jobs.state(*KEY).order
        if self._role == "fails":
            self._leave("FAILED", 3, 1)
        elif self._role == "is killed":
            self.end(-9)
        elif self._role == "finishes":
            self._leave("FINISHED", 1, 0)
        elif order is not None and order.want == "stop":
            self._leave("STOPPED", 5, 0)

    def _leave(self, state: str, batches: int, code: int) -> None:
        record = EndRecord(self.attempt.run, self.attempt.number, state, 1.5e9, batches=batches)
        self._handler.jobs.release_lease(*KEY, record)
        self.end(code)

    def end(self, code: int) -> None:
        self.ended, self.code = True, code
        self._handler.shutdown()


class Plugins(FakePlugins):
    """What is installed, and a launcher of the runners of one script after the other."""

    def __init__(self) -> None:
        self.script: Script | None = None
        cluster = Cluster()
        launcher = cluster.launcher()
        launcher.submit = lambda _, attempt: self._submit(attempt)  # type: ignore[method-assign]
        launcher.status = lambda _, launched: self._status(launched)  # type: ignore[method-assign]
        cluster.launcher = lambda: launcher  # type: ignore[method-assign]
        super().__init__(cluster)

    def _submit(self, attempt: Attempt) -> str:
        assert self.script is not None
        with self.script.life.step():
            self.script.runners.append(Runner(self.script, attempt))
            return str(len(self.script.runners) - 1)

    def _status(self, launched: str) -> LaunchStatus:
        assert self.script is not None
        runner = self.script.runners[int(launched)]
        return LaunchStatus(LaunchState.ENDED, runner.code) if runner.ended else LaunchStatus(LaunchState.RUNNING)


class Script:
    """One run: an attempt that fails, one that is killed, one that is stopped."""

    jobs: ClassVar[Mapping[str, Any]] = {"report": job_of()}

    def __init__(self, folder: Path, fatal: int | None, plugins: Plugins) -> None:
        self.plugins = plugins
        plugins.script = self
        self.folder = folder
        self.home = load(overrides={"jobpipe.home": str(folder / "home")}, environ={}).home
        self.tree = MemoryTree()
        self.runners: list[Runner] = []
        self.roles = ["fails", "is killed", "is stopped"]
        self.life = Life(fatal)
        self.handlers: list[MemoryRegisterServerHandler] = []
        self.now = 1.6e9

    def session(self) -> MemoryRegisterServerHandler:
        handler = MemoryRegisterServerHandler(self.tree)
        handler.start({"topic.storage": "/test/topics", "connect.timeout": "5"})
        self.handlers.append(handler)
        return handler

    def clock(self) -> float:
        return self.now

    def serve(self) -> str:
        """Run servers one after the other until all is done; return the run."""
        run = ""
        while True:
            server = ScriptServer(self)
            try:
                run = run or server.submit()
                server.count_steps()
                server.until_done(run)
                return run
            except Killed:
                continue
            finally:
                server.close()


class ScriptServer:
    """One server of a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.life = script.life
        self.store = Store(script.home / "server" / "server.db", script.clock)
        plugins = script.plugins
        self._handler = script.session()
        self.jobs = CircuitBreaker(self._handler.jobs)
        self.jobs.watch = self._watch  # type: ignore[method-assign]
        self._heard: StateCallback | None = None
        self._told: JobRecords | None = None
        self.context = SupervisionContext(
            store=self.store,
            jobs=self.jobs,
            definitions=DefinitionCache(self.store, plugins),
            home=script.home,
            untrusted=AllowedPaths([script.folder]).problems,
            config_file=None,
            stop_seconds=1000.0,
            lost_seconds=0.0,
            clock=script.clock,
            cleanup_added=lambda: None,
        )
        self.plugins = plugins
        self.commands = PipelineCommands(self.store, self.context.definitions)
        self.reconciler = JobReconciler(self.context, *KEY, wake=lambda: None)

    def _watch(self, pipeline: str, job: str, callback: StateCallback) -> Watch:
        """Tell of changes between two steps: a thread would do it at another moment each time."""
        self._heard, self._told = callback, None
        return QuietWatch()

    def _tell(self) -> None:
        state = self._handler.jobs.state(*KEY)
        if self._heard is not None and state != self._told:
            self._told = state
            self._heard(state)

    def count_steps(self) -> None:
        self.life.steps_of(self.jobs, ("set_order", "remove_end", "evict_lease"))
        inside = {"depth": 0}
        write = self.store.write

        @contextmanager
        def counted() -> Iterator[None]:
            if inside["depth"]:
                with write():
                    yield
                return
            inside["depth"] += 1
            try:
                with self.life.step(), write():
                    yield
            finally:
                inside["depth"] -= 1

        self.store.write = counted  # type: ignore[method-assign]

    def submit(self) -> str:
        tree = {
            "pipeline": {"name": NAME, "launcher": {"type": "fake"}, "restart": {"delay": "5s", "max-attempts": 3}},
            "jobs": dict(self.script.jobs),
        }
        folder = self.script.folder
        submission = Submission(file=folder / "pipeline.yaml", folder=folder, tree=json.loads(json.dumps(tree)))
        pipeline = load_tree(tree, file=submission.file, folder=folder, plugins=self.plugins)
        self.pipeline = pipeline
        asked = Asked(pipeline=pipeline, home=self.script.home)
        return self.commands.submit(submission, asked, self.script.now).runs.get("report", "")

    def until_done(self, run: str) -> None:
        script, asked = self.script, False
        self.reconciler.changed()
        for _ in range(MOST_STEPS):
            self._tell()
            wait = self.reconciler.step()
            for runner in script.runners:
                runner.act()
            script.now += 0.0 if wait == 0.0 else 1.0
            last = not script.roles and any(runner.works and not runner.ended for runner in script.runners)
            if last and not asked:
                asked = True
                self.commands.stop(NAME, "report", script.now)
                self.reconciler.changed()
            found = self.store.run(run)
            if wait is None and found is not None and found.is_over:
                return
        raise AssertionError(f"it does not end: {self.store.run(run)}, {self.store.attempts(run)}")

    def close(self) -> None:
        self.reconciler.close()
        self._handler.shutdown()
        self.store.close()


def lived(folder: Path, fatal: int | None, plugins: Plugins) -> Script:
    """Let one run live, the server killed once; see that all came out as it must."""
    script = Script(folder, fatal, plugins)
    run = script.serve()
    store = Store(script.home / "server" / "server.db", script.clock)
    found, attempts = store.run(run), store.attempts(run)
    assert found is not None
    counted = [each for each in attempts if each.batches or each.state is JobState.FAILED]
    assert (found.state, found.batches, found.failures) == (JobState.STOPPED, 8, 2), (fatal, found, attempts)
    assert [each.batches for each in counted] == [3, 0, 5], (fatal, attempts)
    assert not [each for each in attempts if each.open or each.ended is None]
    for _ in range(3):
        for runner in script.runners:
            runner.act()
    assert all(runner.ended for runner in script.runners), fatal
    assert sum(runner.works for runner in script.runners) == 3
    state = script.session().jobs.state(*KEY)
    assert (state.end, state.lease) == (None, None)
    assert not list((script.home / "pipelines" / NAME).glob(".attempts/*"))
    store.close()
    for handler in script.handlers:
        handler.shutdown()
    return script


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    """Return what is installed; to read that takes longer than a life."""
    return Plugins()


def test_without_a_kill_three_attempts_are_made(tmp_path: Path, plugins: Plugins) -> None:
    script = lived(tmp_path, None, plugins)
    assert [runner.code for runner in script.runners] == [1, -9, 0]
    assert script.life.count < STEPS


def _points() -> Iterator[Any]:
    """Yield each step; make test tries every third one."""
    for fatal in range(1, STEPS):
        yield fatal if fatal % 3 == 1 else pytest.param(fatal, marks=pytest.mark.slow)


@pytest.mark.parametrize("fatal", list(_points()))
def test_a_kill_at_any_step_changes_nothing_of_what_comes_out(tmp_path: Path, fatal: int, plugins: Plugins) -> None:
    lived(tmp_path, fatal, plugins)
