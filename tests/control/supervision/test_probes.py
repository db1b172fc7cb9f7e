"""How often a launcher is asked, and when it is believed that it cannot say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobpipe.jobs.storage.job_rows import AttemptRow
from jobpipe.jobs.supervision.probes import Probes
from jobpipe.jobs.supervision.supervision_context import SupervisionContext
from jobpipe.pipelines.model.job_states import JobState
from jobpipe.pipelines.plugins.api import Attempt, Launcher, LaunchState, LaunchStatus, PluginOptions

ATTEMPT = AttemptRow(
    run="r", pipeline="p", job="j", number=5, version=1, state=JobState.SUBMITTED, began=1.0, launched="x"
)
RUNNING, UNKNOWN = LaunchState.RUNNING, LaunchState.UNKNOWN


class Clock:
    """Seconds, as the test sets them."""

    now = 1.6e9

    def __call__(self) -> float:
        return self.now


class Scripted(Launcher):
    """Answers after some seconds of the clock."""

    type = "scripted"

    def submit(self, attempt: Attempt) -> str:
        return "x"

    def status(self, launched: str) -> LaunchStatus:
        self.asked += 1
        self.clock.now += self.takes
        if self.takes > 20.0:
            raise TimeoutError("it took too long")
        return LaunchStatus(self.says)

    def cancel(self, launched: str) -> None:
        pass

    def of(self, clock: Clock, takes: float = 0.0) -> Scripted:
        self.clock, self.takes, self.asked, self.says = clock, takes, 0, RUNNING
        return self


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_probes(clock: Clock, launcher: Launcher) -> Probes:
    """Return those of an attempt that this launcher has started."""
    context = SupervisionContext(
        store=None,  # type: ignore[arg-type]
        jobs=None,  # type: ignore[arg-type]
        definitions=None,  # type: ignore[arg-type]
        home=None,  # type: ignore[arg-type]
        untrusted=lambda pipeline: (),
        config_file=None,
        stop_seconds=60.0,
        lost_seconds=10.0,
        clock=clock,
        cleanup_added=lambda: None,
    )
    found = Probes(context, ("p", "j"), lambda: None, lambda: None)
    found.use_launcher(launcher, ATTEMPT)
    return found


def said(found: Probes, attempt: AttemptRow = ATTEMPT) -> LaunchState:
    status = found.status(attempt)
    assert status is not None
    return status.state


def test_a_launcher_is_not_asked_more_often_than_it_wants(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "poll_seconds", 10.0)
    launcher = Scripted(PluginOptions()).of(clock)
    found = make_probes(clock, launcher)
    for _ in range(40):
        assert said(found) is RUNNING
        clock.now += 0.25
    assert launcher.asked == 1
    said(found)
    assert launcher.asked == 2
    found.cancel(ATTEMPT)
    said(found)
    clock.now -= 3600.0  # the clock is set back
    said(found)
    assert launcher.asked == 4


def test_one_slow_answer_makes_no_attempt_lost(clock: Clock) -> None:
    launcher = Scripted(PluginOptions()).of(clock, takes=30.0)
    found = make_probes(clock, launcher)
    assert said(found) is RUNNING  # it was started
    assert said(found) is RUNNING
    launcher.takes = 0.1
    assert said(found) is RUNNING
    launcher.takes = 30.0
    assert [said(found) for _ in range(3)] == [RUNNING, RUNNING, UNKNOWN]


def test_that_a_launcher_cannot_say_is_believed_after_a_while(clock: Clock) -> None:
    launcher = Scripted(PluginOptions()).of(clock)
    found = make_probes(clock, launcher)
    launcher.says = UNKNOWN
    for _ in range(10):
        assert said(found) is RUNNING
        clock.now += 1.0
    assert said(found) is UNKNOWN
    launcher.says = RUNNING
    assert said(found) is RUNNING
    launcher.says = UNKNOWN
    assert said(found) is RUNNING


def test_of_an_attempt_without_an_id_nothing_is_asked(clock: Clock) -> None:
    launcher = Scripted(PluginOptions()).of(clock)
    found = make_probes(clock, launcher)
    assert found.status(replace(ATTEMPT, launched=None)) is None
    assert launcher.asked == 0
