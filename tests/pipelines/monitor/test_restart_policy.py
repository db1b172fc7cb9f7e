"""When a failed attempt is followed by another one."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe import errors
from jobpipe.jobs.supervision.restart_policy import FINAL, RestartPolicy
from jobpipe.pipelines.file.spec import RestartSpec


def restarts(**given: Any) -> RestartPolicy:
    spec = RestartSpec.model_validate({key.replace("_", "-"): value for key, value in given.items()})
    return RestartPolicy(spec, spread=lambda: 1.0)


def test_delays_double_up_to_the_longest() -> None:
    counted = restarts(delay="5s", max_delay="1min", max_attempts=None)
    assert [counted.delay("", 1.0) for _ in range(6)] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_jobs_that_fail_together_do_not_start_together() -> None:
    """Each delay is a little longer or shorter; by how much, has a limit."""
    delays = {RestartPolicy(RestartSpec.model_validate({"delay": "10s"})).delay("", 1.0) for _ in range(50)}
    assert len(delays) > 1
    assert all(delay is not None and 9.0 <= delay <= 11.0 for delay in delays)


def test_thousands_of_failures_are_counted() -> None:
    counted = restarts(delay="5s", max_delay="5m", max_attempts=None)
    assert {counted.delay("", 1.0) for _ in range(5000)} == {5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0}


def test_an_attempt_that_ran_long_counts_as_the_first() -> None:
    counted = restarts(delay="5s", max_attempts=3, reset_after="1h")
    assert [counted.delay("", 1.0), counted.delay("", 3599.0)] == [5.0, 10.0]
    assert counted.delay("", 3600.0) == 5.0
    assert [counted.delay("", 1.0), counted.delay("", 1.0)] == [10.0, None]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_after_so_many_attempts_it_is_left(most: int) -> None:
    counted = restarts(max_attempts=most)
    delays = [counted.delay("OSError", 1.0) for _ in range(most)]
    assert None not in delays[:-1]
    assert delays[-1] is None


def test_never() -> None:
    assert restarts(policy="never").delay("", 1.0) is None


@pytest.mark.parametrize("error", sorted(FINAL))
def test_final_errors_end_it_at_once(error: str) -> None:
    assert restarts(max_attempts=None).delay(error, 1.0) is None


def test_final_errors_exist() -> None:
    """Those of jobpipe and of Spark, by their names."""
    import pyspark.errors

    from jobpipe.pipelines.plugins import plugin_discovery

    named = {*vars(errors), *vars(pyspark.errors), *vars(plugin_discovery)}
    assert not FINAL - named


def test_what_is_derived_from_a_final_error_is_final() -> None:
    ours = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    derived = {name for name, kind in ours.items() if any(base.__name__ in FINAL for base in kind.__mro__)}
    assert len(derived) > 10
    assert not derived - FINAL
