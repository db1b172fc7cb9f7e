"""Which topics have the dead letters of jobs, looked up once for each version of a pipeline, and how many they have."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from jobpipe.control.control_service import PipelineStatus
from jobpipe.errors import JobpipeError, PipelineError
from jobpipe.jobs.definition_cache import DefinitionCache
from jobpipe.operations.status_operations import TopicStatus
from jobpipe.pipelines.model.graph import dead_letters_of
from jobpipe.status_walk import Answer


class DeadLetterTopics:
    """By job, of the pipelines that were asked for last. Thread safe."""

    def __init__(self, definitions: DefinitionCache) -> None:
        self._definitions = definitions
        self._lock = threading.Lock()
        # By pipeline: its version and when that was submitted (versions begin again after a deletion); topics by job.
        self._found: dict[str, tuple[tuple[int, float], Mapping[str, str]]] = {}
        self._rows: dict[str, int] = {}  # by topic

    def get(self, pipeline: PipelineStatus, job: str) -> str | None:
        """Return the topic of a job's dead letters; None if it has none, or its file is not right any more."""
        version = (pipeline.version, pipeline.submitted)
        with self._lock:
            known = self._found.get(pipeline.name)
        if known is None or known[0] != version:
            try:
                known = (version, self._load(pipeline))
            except JobpipeError:  # of the moment: the store, for instance
                return None
            with self._lock:
                self._found[pipeline.name] = known
        return known[1].get(job)

    def rows(self, topic: str, answer: Answer | None) -> int | None:
        """Return the rows of such a topic, as it was last seen: those of scheduled jobs are not always served."""
        with self._lock:
            if isinstance(answer, TopicStatus):
                self._rows[topic] = answer.rows
            return self._rows.get(topic)

    def keep_only(self, pipelines: frozenset[str]) -> None:
        """Forget the pipelines that are not among these."""
        with self._lock:
            self._found = {name: found for name, found in self._found.items() if name in pipelines}
            topics = {topic for _, found in self._found.values() for topic in found.values()}
            self._rows = {topic: rows for topic, rows in self._rows.items() if topic in topics}

    def _load(self, status: PipelineStatus) -> Mapping[str, str]:
        try:
            pipeline = self._definitions.get(status.name, status.version)
        except PipelineError:  # it is not right here any more
            return {}
        topics = {name: dead_letters_of(pipeline, job) for name, job in pipeline.jobs.items()}
        prefix = pipeline.spec.topic_prefix
        return {name: prefix + topic for name, topic in topics.items() if topic is not None}
