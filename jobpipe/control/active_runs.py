"""What the control server of a home knows of a pipeline, by its store: also while no server runs itself."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path

from jobpipe.errors import ControlConflict

log = logging.getLogger(__name__)

BUSY_SECONDS = 10.0


def require_no_run_of_server(home: Path, pipeline: str) -> None:
    """Check that the server of this home has no job of a pipeline: jobs live on when it is killed.

    Raises:
        ControlConflict: it has, or had when it ended.
    """
    jobs = _jobs_of_server(home / "server" / "server.db", pipeline)
    if jobs:
        raise ControlConflict(
            f"pipeline {pipeline} is run by the control server of {home}: {', '.join(jobs)[:300]}; stop it first, with "
            f"`jobpipe pipeline stop {pipeline} --wait`",
            pipeline=pipeline,
        )


def is_known_to_server(home: Path, pipeline: str) -> bool:
    """Whether the server of this home has a pipeline, or had when it ended."""
    return bool(_names(home / "server" / "server.db", "SELECT name FROM pipelines WHERE name = ?", pipeline))


def _jobs_of_server(store: Path, pipeline: str) -> list[str]:
    query = "SELECT DISTINCT job FROM runs WHERE pipeline = ? AND ended IS NULL ORDER BY job"
    return _names(store, query, pipeline)


def _names(store: Path, query: str, pipeline: str) -> list[str]:
    if not store.is_file():
        return []
    try:
        with contextlib.closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as opened:
            return [str(row[0]) for row in opened.execute(query, (pipeline,))]
    except sqlite3.Error as error:  # of another version, for instance
        log.warning("%s cannot be read: %s", store, error)
        return []
