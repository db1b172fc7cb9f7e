"""The sink of a job with routes: rows go to the topics that their routes name, each micro-batch to each once.

The transforms are applied where a micro-batch is written, to the rows of each topic, since they need not keep the
column that says where a row comes from. So they keep no state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from jobpipe.jobs.workloads.routed_sources import RoutedSources
from jobpipe.pipelines.model.routes import Routes
from jobpipe.pipelines.plugins.api import ORIGIN, PluginOptions, Transform
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sinks.topic_sink import JobpipeSink
from jobpipe.spark.session.collect_rows import collect_rows


class RoutedSink(JobpipeSink):
    """Publishes several topics.

    Args:
        options: those of the job's sink; each topic has them.
        transforms: of the job.
        subscriptions: returns what :attr:`JobContext.subscribers` has, for any topic, by its name without the prefix.
    """

    def __init__(
        self,
        options: PluginOptions,
        routes: Routes,
        transforms: Sequence[Transform],
        subscriptions: Callable[[str], tuple[str, ...]],
    ) -> None:
        super().__init__(options)
        self._routes = routes
        self._transforms = transforms
        self._subscriptions = subscriptions
        self._kept: RoutedSources | None = None
        self._sinks: dict[str, JobpipeSink] = {}

    def open(self, frame: DataFrame, job: JobContext) -> None:
        """Take over the topics that are known, and those that attempts before have made; others have a row first.

        Args:
            frame: rows as they come from the source, with column ORIGIN.
        """
        made = self._made(frame.sparkSession.createDataFrame([], frame.schema), job)
        self._kept = RoutedSources(frame.sparkSession, job.storage)
        sources = [source for source in self._kept.names() if self._routes.reads(source)]
        for target in dict.fromkeys(
            (*self._routes.fixed, *(to for each in sources for to in self._routes.targets(each)))
        ):
            self._sink_of(target).open(made, self._with_subscribers(target, job))

    def write(self, batch: DataFrame, batch_id: int, job: JobContext) -> None:
        """Publish a micro-batch, or the rows of a run, to each topic that has rows of it."""
        kept = batch.persist()
        try:
            origin = sf.col(ORIGIN)["topic"]
            sources: dict[str, list[str]] = {}
            for topic in sorted(row["topic"] for row in collect_rows(kept.select(origin.alias("topic")).distinct())):
                for target in self._routes.targets(topic.removeprefix(job.topic_prefix)):
                    sources.setdefault(target, []).append(topic)
            self._keep(sources, job)
            for target, topics in sorted(sources.items()):
                job.check()
                rows = self._made(kept.where(origin.isin(topics)), job)
                self._sink_of(target).write(rows, batch_id, self._with_subscribers(target, job))
        finally:
            kept.unpersist()

    def close(self, *, ended: bool) -> None:
        failed: Exception | None = None
        while self._sinks:
            _, sink = self._sinks.popitem()
            try:
                sink.close(ended=ended)
            except Exception as error:  # noqa: BLE001 - the others are closed all the same
                failed = failed or error
        if failed is not None:
            raise failed

    def _sink_of(self, target: str) -> JobpipeSink:
        if target not in self._sinks:
            self._sinks[target] = JobpipeSink(self.options.model_copy(update={"topic": target}))
        return self._sinks[target]

    def _keep(self, sources: dict[str, list[str]], job: JobContext) -> None:
        """Keep the sources of topics that are not known beforehand, before any such topic is made."""
        assert self._kept is not None  # noqa: S101 - open made it
        for target in sources.keys() - {*self._routes.fixed}:
            for source in sources[target]:
                self._kept.add(str(source).removeprefix(job.topic_prefix))

    def _with_subscribers(self, target: str, job: JobContext) -> JobContext:
        """Return the job with the subscribers of a topic, whose name may be known from a row alone."""
        return replace(job, subscribers={target: self._subscriptions(target)})

    def _made(self, rows: DataFrame, job: JobContext) -> DataFrame:
        rows = rows.drop(ORIGIN)
        for transform in self._transforms:
            rows = transform.apply(rows, job)
        return rows
