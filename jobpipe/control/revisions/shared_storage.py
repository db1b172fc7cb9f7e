"""Pipelines of one server that keep their checkpoints in one place, where jobs of one name would share a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path

from jobpipe.errors import ConfigError
from jobpipe.jobs.storage.job_rows import PipelineRow
from jobpipe.jobs.storage.job_store import Store
from jobpipe.pipelines.file.file_paths import absolute, is_uri, same_place
from jobpipe.pipelines.file.problems import LISTED, Problem
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe.pipelines.model.pipeline import Pipeline


def shared_storage(store: Store, home: Path, pipeline: Pipeline) -> list[Problem]:
    """Return a problem for each other pipeline of the server with the same storage.

    It is an error if both have a job of the same name in the same folder of this host, else a warning: of a URI it is
    not certain where it leads, and jobs of other names have checkpoints of their own.
    """
    place = _normal(PipelinePaths.of(home, pipeline.name).folder, pipeline.spec.storage, pipeline.folder)
    own = {name for name, job in pipeline.jobs.items() if job.spec.type != "flow" and not job.spec.captures}
    return [
        _problem(pipeline, row.name, place, own, _of_checkpoints(store, row.name))
        for row in store.pipelines()
        if row.name != pipeline.name and place in _places_of(store, home, row)
    ]


def _problem(pipeline: Pipeline, other: str, place: str, own: Collection[str], others: Collection[str]) -> Problem:
    what = f"pipeline {other} already keeps its checkpoints in {place} (jobs {_listed(others)})"
    common = [name for name in own if name in others]
    if common:
        what += f": {_listed(common)} of both would have one checkpoint, which an attempt refuses"
    certain = bool(common) and not is_uri(place)
    remedy = f"give pipeline {pipeline.name} another `storage`"
    return Problem(str(pipeline.file), None, "pipeline.storage", what, remedy, "error" if certain else "warning")


def _of_checkpoints(store: Store, pipeline: str) -> set[str]:
    return {job.name for job in store.jobs(pipeline) if job.in_definition and job.kind not in ("flow", "capture")}


def _places_of(store: Store, home: Path, row: PipelineRow) -> Iterator[str]:
    """Yield where a pipeline of the store keeps its checkpoints, if that can be told."""
    definition = store.definition(row.name, row.version)
    if definition is not None:
        section = json.loads(definition.tree).get("pipeline") or {}
        try:
            yield _normal(PipelinePaths.of(home, row.name).folder, section.get("storage"), definition.folder)
        except ConfigError:  # ~ of a user who is gone
            return


def _normal(usual: Path, given: str | None, folder: Path) -> str:
    """Return a storage as it is compared."""
    return same_place(str(usual) if given is None else absolute(given, folder))


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)
    more = len(shown) - LISTED
    return ", ".join(shown[:LISTED]) + (f" and {more} more" if more > 0 else "")
