"""A session that is stopped and made again in one process, as in every notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.kit import Place, start_job

pytestmark = pytest.mark.spark


def test_a_sink_replaces_one_whose_session_was_stopped(place: Place, tmp_path: Path) -> None:
    """Spark stops no query whose context was stopped: it says that nothing can be called there."""
    assert start_job(place, "session_again", "again", tmp_path).result() == 2
