"""Which topics have the dead letters of jobs, looked up once for each version of a pipeline."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from jobpipe.control.control_service import PipelineStatus
from jobpipe.errors import JobpipeError
from jobpipe.jobs.definition_cache import DefinitionCache
from jobpipe.pipelines.model.graph import dead_letters_of


class DeadLetterTopics:
    """By job, of the pipelines that were asked for last. Thread safe."""

    def __init__(self, definitions: DefinitionCache) -> None:
        self._definitions = definitions
        self._lock = threading.Lock()
        self._found: dict[
            str, tuple[tuple[int, float], Mapping[str, str]]
        ] = {}  # versions begin again after a deletion

    def get(self, pipeline: PipelineStatus, job: str) -> str | None:
        """Return the topic of a job's dead letters; None if it has none, or its file is not right any more."""
        version = (pipeline.version, pipeline.submitted)
        with self._lock:
            known = self._found.get(pipeline.name)
        if known is None or known[0] != version:
            known = (version, self._load(pipeline))
            with self._lock:
                self._found[pipeline.name] = known
        return known[1].get(job)

    def keep_only(self, pipelines: frozenset[str]) -> None:
        """Forget the pipelines that are not among these."""
        with self._lock:
            self._found = {name: found for name, found in self._found.items() if name in pipelines}

    def _load(self, status: PipelineStatus) -> Mapping[str, str]:
        try:
            pipeline = self._definitions.get(status.name, status.version)
        except JobpipeError:
            return {}
        topics = {name: dead_letters_of(pipeline, job) for name, job in pipeline.jobs.items()}
        prefix = pipeline.spec.topic_prefix
        return {name: prefix + topic for name, topic in topics.items() if topic is not None}
