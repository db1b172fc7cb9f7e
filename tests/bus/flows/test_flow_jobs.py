"""What ``jobpipe.run`` makes of flows that end, fail or are stopped by their own program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import jobpipe
from jobpipe.errors import ConfigError, FlowFailed, JobpipeError
from jobpipe.flows.flow_driver import Flow
from jobpipe.flows.flow_settings import FlowState, FlowStatus


class Told(Flow):
    """A flow that stands as it is told; it runs nothing."""

    def __init__(self, name: str, state: FlowState, error: JobpipeError | None = None) -> None:
        self.name = name
        self.cut_short = False
        self._state = state
        self._error = error

    def join(self, timeout: float | None = None) -> bool:
        return self._state is not FlowState.RUNNING

    def begin_stop(self, *, at_once: bool = False) -> None:
        if self._state is FlowState.RUNNING:
            self._state = FlowState.STOPPED

    def exception(self) -> JobpipeError | None:
        return self._error

    def status(self) -> FlowStatus:
        return FlowStatus(self.name, self._state, "orders", None, (), None)


class Side:
    """A publisher, which notes how it is closed."""

    topic = "side"

    def __init__(self) -> None:
        self.closed: list[bool] = []

    def close(self, final: bool = False) -> None:
        self.closed.append(final)


@pytest.fixture
def line(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Return what reads the one line of ``jobpipe.run``."""

    def line() -> str:
        (said,) = [each for each in capfd.readouterr().err.splitlines() if each.startswith("jobpipe: ")]
        return said.removeprefix("jobpipe: ").rpartition(", after ")[0]

    return line


@pytest.mark.parametrize(
    ("states", "said", "final"),
    [
        ([FlowState.ENDED], "one finished", True),
        ([FlowState.STOPPED], "one was stopped", False),
        ([FlowState.ENDED, FlowState.STOPPED], "one, two ended: two was stopped", False),
    ],
)
def test_a_stop_by_the_program_is_no_end(
    line: Callable[[], str], states: list[FlowState], said: str, final: bool
) -> None:
    """No end mark: the source goes on."""
    side = Side()
    flows = [Told(name, state) for name, state in zip(("one", "two"), states, strict=False)]
    assert jobpipe.run(*flows, sinks=[side], final=True) == 0  # type: ignore[list-item]
    assert line() == said
    assert side.closed == [final]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([], "one failed: FlowFailed: no such column"),
        ([Told("two", FlowState.RUNNING)], "one, two failed: one: FlowFailed: no such column"),
        (
            [Told("two", FlowState.FAILED, FlowFailed("no such row"))],
            "one, two failed: one: FlowFailed: no such column; two: FlowFailed: no such row",
        ),
    ],
)
def test_a_failure_names_its_job(line: Callable[[], str], others: list[Flow], said: str) -> None:
    failed = Told("one", FlowState.FAILED, FlowFailed("no such column"))
    assert jobpipe.run(failed, *others, sinks=[]) == 1
    assert line() == said


def test_what_is_no_job() -> None:
    """Before anything is waited for, or closed."""
    flow: Any = Told("one", FlowState.RUNNING)
    for jobs, said in (([], "needs a query or a flow"), ([[flow]], "got list"), ([flow, None], "got NoneType")):
        with pytest.raises(ConfigError, match=said):
            jobpipe.run(*jobs)
    assert flow.status().state is FlowState.RUNNING
