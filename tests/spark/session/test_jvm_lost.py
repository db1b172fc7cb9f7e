"""The JVM dies while it sends the driver what tasks returned: for collect() that is the end of the rows."""

from __future__ import annotations

import pytest

from tests.spark.kit import Place, start_job

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("what", ["sink", "rows"])
def test_what_did_not_all_come_is_an_error(place: Place, what: str) -> None:
    """Nothing is sealed: the next attempt writes the batch again."""
    found = start_job(place, "jvm_lost", "lost", what).result()
    assert found["raised"] is not None
    assert found["sealed"] is None


def test_collect_needs_the_care(place: Place) -> None:
    """Once it raises too, :func:`jobpipe.spark.session.collect_rows.collect_rows` can go."""
    found = start_job(place, "jvm_lost", "lost", "collect").result()
    assert found["raised"] is None
    assert int(found["sealed"]) < 50_000
