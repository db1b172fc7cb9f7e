"""What a job reads and writes, by its pipeline's file alone: datasets, their columns, and how these are made.

Asks no coordinator and no database. Knows no OpenLineage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobpipe.cdc.cdc_sources import MysqlCdcSource, PostgresCdcSource
from jobpipe.config import Config
from jobpipe.control.lineage.column_frames import UNKNOWN, Frame, FrameColumn, Origins, Use, dataset_frame, used
from jobpipe.control.lineage.dataset_names import (
    DatasetName,
    file_dataset,
    is_known,
    kafka_datasets,
    table_dataset,
    topic_dataset,
)
from jobpipe.control.lineage.sql_columns import columns_of, filtered_frame, query_frame
from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.file_paths import file_format
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.file_formats.format_options import read_schema
from jobpipe.pipelines.model.captured_topics import names_among
from jobpipe.pipelines.model.graph import dead_letters_of, graph_of
from jobpipe.pipelines.model.pipeline import Job, Pipeline, Stage
from jobpipe.pipelines.plugins.api import Sink, Source, Transform
from jobpipe.pipelines.plugins.job_context import INPUT

_MOST_JOBS = 20  # one after the other, of whose topics columns are known
_REGISTRY = ("registry_connect", "namespace")  # options by which a source or sink is in another registry
_TEXT_COLUMNS = {"value": "string"}


@dataclass(frozen=True, kw_only=True)
class DatasetLineage:
    """A dataset that a job reads or writes.

    Attributes:
        topic: whose dataset it is; None: of no topic.
        columns: name and type of all of them, where they are known; a type that is not known is None.
        made_of: of which columns each is made; only those of which that is certain.
        influences: what decides which rows there are.
    """

    dataset: DatasetName
    topic: str | None = None
    columns: tuple[tuple[str, str | None], ...] = ()
    made_of: Mapping[str, Origins] | None = None
    influences: Origins = frozenset()


@dataclass(frozen=True, kw_only=True)
class JobLineage:
    """What a job is.

    Attributes:
        is_stream: it has no end of its own.
        sql: the SQL of its transforms, "" if it has none.
    """

    is_stream: bool
    sql: str = ""
    inputs: tuple[DatasetLineage, ...] = ()
    outputs: tuple[DatasetLineage, ...] = ()


class PipelineLineage:
    """What the jobs of a checked pipeline are.

    Args:
        config: of the server: where topics are registered, unless the file says another place.
    """

    def __init__(self, config: Config, pipeline: Pipeline) -> None:
        self._config = config
        self._pipeline = pipeline
        self._graph = {node.name: node for node in graph_of(pipeline).jobs}
        self._publishers: dict[str, list[str]] = {}
        for node in self._graph.values():
            for topic in node.publishes:
                self._publishers.setdefault(topic, []).append(node.name)
        self._known: dict[DatasetName, Mapping[str, str | None] | None] = {}  # of topics; of one in progress None
        self._depth = 0

    def job(self, name: str) -> JobLineage | None:
        """Return what a job is; None if the file does not have it."""
        job = self._pipeline.jobs.get(name)
        return None if job is None else self._described(job)

    def _described(self, job: Job) -> JobLineage:
        node, trigger = self._graph[job.name], job.trigger
        ends = job.mode is Mode.BATCH or job.spec.schedule is not None
        ends = ends or (trigger is not None and trigger.available_now)
        inputs = [
            DatasetLineage(dataset=dataset, topic=topic, columns=_columns(frame))
            for stage in job.sources.values()
            for dataset, topic, frame in self._inputs(job, stage)
        ]
        rows = self._frame(job)
        outputs = [each for stage in job.sinks for each in self._written(job, stage, rows)]
        named = {each.topic for each in outputs}
        for topic in node.publishes:
            if topic not in named:
                made = UNKNOWN if topic == self._dead_letters(job) else rows
                outputs.append(self._output(self._topic(None, topic), topic, made))
        return JobLineage(
            is_stream=not ends,
            sql=_sql(job),
            inputs=_each_once(inputs),
            outputs=_each_once(outputs),
        )

    # -- what it reads -------------------------------------------------------------------------------------------------

    def _inputs(self, job: Job, stage: Stage[Source]) -> Iterator[tuple[DatasetName, str | None, Frame]]:
        """Yield the datasets of a source: name, topic if it is one, and rows."""
        topics = stage.plugin.topics()
        if topics.names or topics.pattern is not None:
            for topic in self._topics_read(job, stage):
                dataset = self._topic(stage, topic)
                rows = dataset_frame(dataset, self._published(topic, dataset))
                if getattr(stage.plugin.options, "includeMetadata", None):
                    rows = replace(rows, is_complete=False)
                yield dataset, topic, rows
            return
        for dataset in _datasets(stage):
            yield dataset, None, dataset_frame(dataset, self._declared(stage))

    def _topics_read(self, job: Job, stage: Stage[Source]) -> list[str]:
        prefix, topics = self._pipeline.spec.topic_prefix, stage.plugin.topics()
        if topics.pattern is not None and len(job.sources) == 1:
            return list(self._graph[job.name].reads)
        return [prefix + name for name in topics.names]

    def _published(self, topic: str, dataset: DatasetName) -> Mapping[str, str | None] | None:
        """Return the columns of a topic, by the job of the file that publishes it; None: they are not known."""
        if dataset not in self._known:
            self._known[dataset] = None
            if self._depth < _MOST_JOBS:
                self._depth += 1
                self._known[dataset] = self._columns_published(topic, dataset)
                self._depth -= 1
        return self._known[dataset]

    def _columns_published(self, topic: str, dataset: DatasetName) -> Mapping[str, str | None] | None:
        publishers = self._publishers.get(topic, [])
        if len(publishers) != 1:
            return None
        job = self._pipeline.jobs[publishers[0]]
        if job.spec.route or topic == self._dead_letters(job):
            return None
        rows = self._frame(job)
        if job.spec.publish is not None:
            return (dict(_columns(rows)) or None) if dataset == self._topic(None, topic) else None
        found = (each for stage in job.sinks for each in self._written(job, stage, rows))
        return next((dict(each.columns) for each in found if each.dataset == dataset and each.columns), None)

    def _dead_letters(self, job: Job) -> str | None:
        dead = dead_letters_of(self._pipeline, job)
        return None if dead is None else self._pipeline.spec.topic_prefix + dead

    def _declared(self, stage: Stage[Any]) -> Mapping[str, str | None] | None:
        """Return the columns that a stage says; None if it says none."""
        given = getattr(stage.plugin.options, "schema_", None)
        if given is None:
            is_text = file_format(getattr(stage.plugin, "format", stage.type)) == "text"
            return dict(_TEXT_COLUMNS) if is_text and isinstance(stage.plugin, Source) else None
        return _read_columns(str(given), stage.folder)

    def _topic(self, stage: Stage[Any] | None, topic: str) -> DatasetName:
        options: Any = None if stage is None else stage.plugin.options
        given = {name: getattr(options, name) for name in _REGISTRY if getattr(options, name, None) is not None}
        return topic_dataset(replace(self._config, **given) if given else self._config, topic)

    # -- what it makes of it -------------------------------------------------------------------------------------------

    def _frame(self, job: Job) -> Frame:
        """Return a job's rows as its sinks get them."""
        if job.spec.captures:
            return UNKNOWN  # its rows have columns of the capture's own
        if job.spec.type == "flow" or job.spec.application is not None:
            given = None if job.spec.schema_ is None else _read_columns(job.spec.schema_, self._pipeline.folder)
            return UNKNOWN if given is None else _without_origins(given)
        views: dict[str, Frame] = {}
        for view, stage in job.sources.items():
            found = list(self._inputs(job, stage))
            frame = found[0][2] if len(found) == 1 else UNKNOWN
            if not found and (declared := self._declared(stage)) is not None:
                frame = dataset_frame(None, declared)
            views[INPUT if view is None else view] = frame
        rows = views.get(INPUT, UNKNOWN)
        for transform in job.transforms:
            rows = _transformed(transform, rows, views)
        return rows

    # -- what it writes ------------------------------------------------------------------------------------------------

    def _written(self, job: Job, stage: Stage[Sink], rows: Frame) -> Iterator[DatasetLineage]:
        names = getattr(stage.plugin.options, "columns", None)
        rows = rows.only(names) if names else rows
        declared = self._declared(stage)
        if declared is not None:
            columns = tuple(
                replace(rows.find(name) or FrameColumn(name), name=name, type=kind) for name, kind in declared.items()
            )
            rows = Frame(columns, is_complete=True, influences=rows.influences)
        for name in stage.plugin.topics().names:
            topic = self._pipeline.spec.topic_prefix + name
            yield self._output(self._topic(stage, topic), topic, rows)
        for dataset in _datasets(stage):
            yield self._output(dataset, None, rows)

    @staticmethod
    def _output(dataset: DatasetName, topic: str | None, rows: Frame) -> DatasetLineage:
        made_of = {each.name: each.origins for each in rows.columns if each.origins}
        return DatasetLineage(
            dataset=dataset, topic=topic, columns=_columns(rows), made_of=made_of, influences=rows.influences
        )


def _read_columns(schema: str, folder: Path) -> Mapping[str, str | None] | None:
    try:
        found = columns_of(read_schema(schema, folder))
    except ConfigError:
        return None
    return None if found is None else dict(found)


def _columns(frame: Frame) -> tuple[tuple[str, str | None], ...]:
    return tuple((each.name, each.type) for each in frame.columns) if frame.is_complete else ()


def _without_origins(columns: Mapping[str, str | None]) -> Frame:
    return Frame(tuple(FrameColumn(name, kind) for name, kind in columns.items()), is_complete=True)


def _each_once(found: Iterable[DatasetLineage]) -> tuple[DatasetLineage, ...]:
    """Return datasets, each once; of one that is there twice it is not certain how its columns are made."""
    once: dict[DatasetName, DatasetLineage] = {}
    for each in found:
        known = once.setdefault(each.dataset, each)
        if known is not each and known != each:
            once[each.dataset] = replace(known, columns=(), made_of=None, influences=frozenset())
    return tuple(once.values())


def _datasets(stage: Stage[Any]) -> tuple[DatasetName, ...]:
    """Return the datasets of a source or sink that is no topic; none if they are not certain."""
    plugin: Any = stage.plugin
    options = plugin.options
    kind = str(getattr(plugin, "format", stage.type)).lower()
    given: dict[str, Any] = {name.lower(): value for name, value in (getattr(options, "options", None) or {}).items()}
    if isinstance(plugin, Source) and (files := plugin.folders(stage.folder)) is not None:
        return _one(file_dataset(files.pattern, is_pattern=True))
    if isinstance(plugin, Sink) and (folder := plugin.folder(stage.folder)) is not None:
        return _one(file_dataset(folder))
    if kind in ("delta", "iceberg"):
        path = str(getattr(options, "path", None) or "")
        if "/" not in path:
            return ()  # a table of a catalog
        return _one(file_dataset(path if ":" in path else str(stage.folder / path)))
    if kind == "jdbc":
        url, table = given.get("url"), given.get("dbtable")
        return _one(table_dataset(url, table, exact=False)) if is_known(url) and is_known(table) else ()
    if kind == "jdbc-upsert":
        return _one(table_dataset(getattr(options, "url", ""), getattr(options, "table", ""), exact=True))
    if kind == "kafka":
        return _kafka(given)
    if isinstance(plugin, PostgresCdcSource | MysqlCdcSource):
        own = plugin.options
        url = f"mysql://{own.hostname}:{own.port}/any"  # a table's name has its database
        if isinstance(own, PostgresCdcSource.Options):
            url = f"postgresql://{own.hostname}:{own.port}/{own.database_name}"
        found = (table_dataset(url, table, exact=True) for table in names_among(own.tables))
        return tuple(dataset for dataset in found if dataset is not None)
    return ()


def _one(dataset: DatasetName | None) -> tuple[DatasetName, ...]:
    return () if dataset is None else (dataset,)


def _kafka(given: Mapping[str, Any]) -> tuple[DatasetName, ...]:
    servers = given.get("kafka.bootstrap.servers")
    named = given.get("subscribe", given.get("topic"))
    if not is_known(servers):
        return ()
    if is_known(named):
        return kafka_datasets(servers, tuple(topic for each in named.split(",") if (topic := each.strip())))
    try:
        assigned = json.loads(given.get("assign", "{}"))
    except (TypeError, ValueError):
        return ()
    return kafka_datasets(servers, tuple(sorted(assigned))) if isinstance(assigned, dict) else ()


def _sql(job: Job) -> str:
    """Return the SQL of a job's transforms, in order, as statements."""
    found = []
    for stage in job.transforms:
        given: Any = stage.plugin.options
        if stage.type != "sql":
            continue
        if getattr(given, "query", None) is not None:
            found.append(given.query.strip())
        else:
            where = "" if given.filter is None else f" WHERE {given.filter}"
            found.append(f"SELECT {given.projection or '*'} FROM {INPUT}{where}")  # noqa: S608 - the user's own
    return ";\n".join(found)


def _transformed(stage: Stage[Transform], rows: Frame, views: Mapping[str, Frame]) -> Frame:
    """Return the rows after a transform; of one that is not known here nothing is certain."""
    given: Any = stage.plugin.options
    match stage.type:
        case "sql" if given.query is not None:
            return query_frame(given.query, {**views, INPUT: rows})
        case "sql":
            kept = rows if given.filter is None else filtered_frame(given.filter, rows)
            if given.projection is None:
                return kept
            return query_frame(f"SELECT {given.projection} FROM {INPUT}", {INPUT: kept})  # noqa: S608
        case "Filter":
            return filtered_frame(given.predicate, rows)
        case "Cast":
            kinds = {name: columns_of(f"c {kind}") for name, kind in given.spec.items()}
            return rows.with_columns(
                _changed(rows, name, None if kind is None else kind["c"]) for name, kind in kinds.items()
            )
        case "TimestampConverter":
            return rows.with_columns([_changed(rows, given.field, None)])
        case "MaskField":
            columns = [(each, rows.find(each)) for each in given.fields]
            return rows.with_columns(
                replace(found, origins=used(found.origins, Use.TRANSFORMATION, masked=given.predicate is None))
                if (found := column) is not None
                else FrameColumn(name)
                for name, column in columns
            )
        case "InsertField":
            names = (
                *(given.static_field, given.timestamp_field),
                *(given.topic_field, given.partition_field, given.offset_field),
            )
            origins: Origins | None = frozenset() if given.predicate is None else None
            return rows.with_columns(FrameColumn(name, None, origins) for name in names if name is not None)
        case "ReplaceField":
            kept = rows.only(given.include) if given.include is not None else rows
            kept = kept.without(given.exclude or ())
            return kept.renamed(given.renames or {})
        case "watermark" | "deduplicate":
            return rows
    return UNKNOWN


def _changed(rows: Frame, name: str, kind: str | None) -> FrameColumn:
    found = rows.find(name)
    return FrameColumn(name, kind, None if found is None else used(found.origins, Use.TRANSFORMATION))
