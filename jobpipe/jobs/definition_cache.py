"""The pipelines of the store, loaded; and what of a job's definition says that it has changed."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobpipe.config.reading.located_values import plain
from jobpipe.errors import CheckpointMismatch, ConfigError, PipelineError
from jobpipe.jobs.storage.job_rows import DefinitionRow
from jobpipe.jobs.storage.job_store import Store
from jobpipe.pipelines.checkpoints.checkpoint_owner import has_checkpoint, keeps_checkpoint, remedy
from jobpipe.pipelines.checkpoints.checkpoint_storage import check_owner, has_begun
from jobpipe.pipelines.file.file_paths import local_folder, same_place
from jobpipe.pipelines.loading.loader import load_tree, without_engines
from jobpipe.pipelines.model.graph import graph_of, subscriptions_of
from jobpipe.pipelines.model.paths import PipelinePaths
from jobpipe.pipelines.model.pipeline import Job, Pipeline
from jobpipe.pipelines.plugins.plugin_discovery import Plugins

MOST_LOADED = 64
_SERVER_SETTINGS = ("name", "alerts", "restart", "parameters")  # keys of `pipeline` of which an attempt knows nothing


class DefinitionCache:
    """Versions of pipelines as they are needed; the least used ones go."""

    def __init__(self, store: Store, plugins: Plugins) -> None:
        self._store = store
        self._plugins = plugins
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, int], Pipeline] = OrderedDict()

    def get(self, name: str, version: int) -> Pipeline:
        """Return one version of a pipeline.

        Raises:
            PipelineError: it is not right here any more: a plug-in is missing, for instance.
            ConfigError: it is not kept.
        """
        with self._lock:
            found = self._found.get((name, version))
            if found is not None:
                self._found.move_to_end((name, version))
                return found
        row = self._store.definition(name, version)
        if row is None:
            raise ConfigError(f"version {version} of pipeline {name} is not kept", key=name)
        found = self._loaded(json.loads(row.tree), row)
        self.put(found, version)
        return found

    def _loaded(self, tree: dict[str, Any], row: DefinitionRow) -> Pipeline:
        """Load a file; an engine of schedules that is missing by now is only the problem of these."""
        try:
            return load_tree(tree, file=row.file, folder=row.folder, plugins=self._plugins)
        except PipelineError:
            bare = without_engines(tree)
            if bare == tree:
                raise
            return load_tree(bare, file=row.file, folder=row.folder, plugins=self._plugins)

    def put(self, pipeline: Pipeline, version: int) -> None:
        """Keep one that was loaded."""
        with self._lock:
            self._found[(pipeline.name, version)] = pipeline
            while len(self._found) > MOST_LOADED:
                self._found.popitem(last=False)

    def forget(self, name: str) -> None:
        """Let go of all versions of a pipeline that is deleted: another one of its name begins at version 1."""
        with self._lock:
            for key in [key for key in self._found if key[0] == name]:
                del self._found[key]


def digest_of(pipeline: Pipeline, job: Job) -> str:
    """Return a mark of all that an attempt of the job depends on: it differs if that has changed.

    Parameters count where they were put in. What a job reads of ``parameters`` at run time, another attempt sees.
    """
    said = json.dumps([str(pipeline.folder), *settings_of(pipeline, job)], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()


def settings_of(pipeline: Pipeline, job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what an attempt of the job depends on: of section ``pipeline``, and of the job's own."""
    section = plain(pipeline.tree).get("pipeline", {})
    shared = {key: value for key, value in section.items() if not is_server_setting(key)}
    own = dict(job.definition)
    if isinstance(own.get("route"), list):
        own["route"] = [_without_description(each) for each in own["route"]]
    return shared, own


def is_server_setting(key: str) -> bool:
    """Whether the server takes a changed key of section ``pipeline`` without a restart of the jobs."""
    return key.partition(".")[0] in _SERVER_SETTINGS


def _without_description(route: Any) -> Any:
    return {key: value for key, value in route.items() if key != "description"} if isinstance(route, dict) else route


def previous_checkpoints(row: DefinitionRow, home: Path) -> dict[str, str | None]:
    """Return where a stored file has the checkpoints of its jobs, as URIs; None of a job that keeps none.

    The file's text says it, so that it is known also if the file can no longer be loaded here.
    """
    tree, places = json.loads(row.tree), PipelinePaths.of(home, row.pipeline)
    given = (tree.get("pipeline") or {}).get("storage")
    try:
        return {
            name: places.storage_in(given, row.folder, name) if keeps_checkpoint(job) else None
            for name, job in tree["jobs"].items()
        }
    except ConfigError:  # ~ of a user who is gone: no attempt finds the storage either
        return {}


def incompatible_checkpoints(pipeline: Pipeline, home: Path, former: Mapping[str, str | None]) -> dict[str, str]:
    """Return why jobs cannot go on from their checkpoints, by their names, as far as this host sees them.

    Args:
        former: what :func:`previous_checkpoints` gives of the newest file that was submitted; empty: there is none.
    """
    places, found = PipelinePaths.of(home, pipeline.name), {}
    for name, job in pipeline.jobs.items():
        try:
            if has_checkpoint(job):
                storage = places.storage(pipeline, name)
                check_owner(storage, pipeline.name, job)
                before = former.get(name)
                if before is not None and same_place(before) != same_place(storage):
                    _require_moved(storage, before, pipeline.name, name)
        except CheckpointMismatch as error:
            found[name] = error.message
    return found


def existing_checkpoints(pipeline: Pipeline, home: Path) -> frozenset[str]:
    """Return the jobs that go on from a checkpoint which is on this host."""
    places = PipelinePaths.of(home, pipeline.name)
    queries = (name for name, job in pipeline.jobs.items() if has_checkpoint(job))
    found = set()
    for name in queries:
        with suppress(CheckpointMismatch):  # it is reported as unfit
            if has_begun(places.storage(pipeline, name)):
                found.add(name)
    return frozenset(found)


def _require_moved(storage: str, before: str, pipeline: str, job: str) -> None:
    """Check that a job whose checkpoint is to be elsewhere goes on from the one that it had.

    Raises:
        CheckpointMismatch: it would begin without it, or go on from an older one, or that cannot be seen.
    """
    if local_folder(before) is None:
        why = (
            f"the storage has changed: the checkpoint of job {job} was in {before}, which cannot be seen from the "
            f"server, so it is not known whether it was moved to {storage}. Stop the pipeline, move it there, and let "
            f"the server forget the old place, with `jobpipe pipeline delete {pipeline} --keep-subscriptions`; then "
            "submit"
        )
        if local_folder(storage) is not None:
            why = f"{why}. {remedy(job, storage)}"
    elif not has_begun(before):
        return
    elif local_folder(storage) is None:
        why = (
            f"the storage has changed: the checkpoint of job {job} is in {before}, and the server cannot see whether "
            f"{storage} has it. Stop the job, move the folder there, and submit again; if the job is to begin without "
            f"it, move {before} somewhere else"
        )
    elif has_begun(storage):
        why = (
            f"the storage has changed: job {job} has read on with the checkpoint in {before}, and there is another one "
            f"in {storage}, from which it would read rows again. Stop the job, and move {before} there in place of it; "
            f"if the one in {storage} is a copy, move {before} away. {remedy(job, storage)}"
        )
    else:
        why = (
            f"the storage has changed: the checkpoint of job {job} is in {before}, and there is none in {storage}. "
            f"Stop the job and move the folder there; {remedy(job, storage)}"
        )
    raise CheckpointMismatch(why, file=storage)


def subscriptions_by_job(pipeline: Pipeline) -> dict[str, list[tuple[str, str]]]:
    """Return (topic, name) of each subscription by which a job reads, where the file says the topic."""
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in pipeline.jobs}
    for topic in graph_of(pipeline).topics:
        for name in subscriptions_of(pipeline, topic.name):
            found[name.split(".")[1]].append((topic.name, name))
    return found
