"""Topics to keep serving after their publishing jobs have ended."""

from __future__ import annotations

from collections.abc import Sequence

from jobpipe.jobs.storage.job_store import Store
from jobpipe.pipelines.model.graph import TopicNode


class TopicsOfJobs:
    """The topics that jobs of the server publish and read, of all pipelines. For one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._active: set[str] = set()

    def topics(self) -> Sequence[TopicNode]:
        """Return those that a job of the server publishes; jobs are named as ``pipeline.job``."""
        self._active = {f"{pipeline}.{job}" for pipeline, job in self._store.active_jobs()}
        publishers: dict[str, list[str]] = {}
        readers: dict[str, list[str]] = {}
        for job in self._store.jobs():
            for topics, found in ((job.publishes, publishers), (job.reads, readers)):
                for topic in topics:
                    found.setdefault(topic, []).append(f"{job.pipeline}.{job.name}")
        return [TopicNode(topic, tuple(jobs), tuple(readers.get(topic, ()))) for topic, jobs in publishers.items()]

    def is_active(self, job: str) -> bool:
        """Whether a job had a run that had not ended, when :meth:`topics` was called last."""
        return job in self._active
