"""Makes OpenLineage's run events, by the classes of its Python client: https://openlineage.io/docs/spec/object-model.

Knows no store and no server; sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby

from openlineage.client import set_producer
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    RunFacet,
    column_lineage_dataset,
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    nominal_time_run,
    output_statistics_output_dataset,
    schema_dataset,
    sql_job,
    tags_run,
)
from openlineage.client.serde import Serde
from openlineage.client.uuid import generate_static_uuid

import jobpipe
from jobpipe.control.lineage.column_frames import Origin
from jobpipe.control.lineage.job_lineage import DatasetLineage, JobLineage

MOST_EVENT_BYTES = 1 << 20
"""A larger event is sent without columns and SQL."""
_INTEGRATION = "JOBPIPE"

set_producer(f"pkg:generic/jobpipe@{jobpipe.__version__}")


@dataclass(frozen=True, kw_only=True)
class LineageRun:
    """A run, as OpenLineage knows it.

    Attributes:
        id: OpenLineage's.
        run: the server's.
        lower, upper: its bounds, as the server has them; None of a run without.
    """

    id: str
    run: str
    pipeline: str
    job: str
    lower: str | None = None
    upper: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunStatistics:
    """What a run has done so far.

    Attributes:
        rows_read: None: not known.
        published: rows and bytes of topics, by dataset's topic; those that are known.
    """

    rows_read: int | None = None
    published: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def run_id(run: str, began: float) -> str:
    """Return OpenLineage's id of a run: the same for the same run and moment, in every server.

    Args:
        run: the server's id of it.
        began: when it began, in seconds since 1970; a run that is made again has another one.
    """
    return str(generate_static_uuid(datetime.fromtimestamp(began, UTC), run.encode()))


def run_event(
    state: RunState,
    run: LineageRun,
    at: float,
    *,
    namespace: str,
    lineage: JobLineage | None,
    statistics: RunStatistics | None = None,
    error: str = "",
) -> str:
    """Return an event as JSON.

    Args:
        at: when it happened, in seconds since 1970.
        namespace: of the job.
        lineage: None: it is not known what the job reads and writes.
        statistics: what the run has done; None: that is not known.
        error: why it has failed, "" if it has not.
    """
    name = f"{run.pipeline}.{run.job}"
    for columns in (True, False):
        event = RunEvent(
            eventType=state,
            eventTime=_time(at),
            run=Run(runId=run.id, facets=_run_facets(run, error)),
            job=Job(namespace=namespace, name=name, facets=_job_facets(lineage, columns=columns)),
            inputs=_inputs(lineage, statistics, columns=columns),
            outputs=_outputs(lineage, statistics, columns=columns),
        )
        text = Serde.to_json(event)
        if len(text) <= MOST_EVENT_BYTES:
            break
    return text


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _run_facets(run: LineageRun, error: str) -> dict[str, RunFacet]:
    found: dict[str, RunFacet] = {
        "tags": tags_run.TagsRunFacet(
            tags=[tags_run.TagsRunFacetFields(key="jobpipe.run", value=run.run, source=_INTEGRATION)]
        )
    }
    if run.lower is not None and "T" in run.lower:  # else offsets, which are no times
        upper = run.upper if run.upper is not None and "T" in run.upper else None
        found["nominalTime"] = nominal_time_run.NominalTimeRunFacet(nominalStartTime=run.lower, nominalEndTime=upper)
    if error:
        found["errorMessage"] = error_message_run.ErrorMessageRunFacet(message=error, programmingLanguage="PYTHON")
    return found


def _job_facets(lineage: JobLineage | None, *, columns: bool) -> dict[str, JobFacet]:
    if lineage is None:
        return {}
    kind = "STREAMING" if lineage.is_stream else "BATCH"
    found: dict[str, JobFacet] = {
        "jobType": job_type_job.JobTypeJobFacet(processingType=kind, integration=_INTEGRATION, jobType="JOB")
    }
    if lineage.sql and columns:
        found["sql"] = sql_job.SQLJobFacet(query=lineage.sql, dialect="spark")
    return found


def _inputs(lineage: JobLineage | None, statistics: RunStatistics | None, *, columns: bool) -> list[InputDataset]:
    made = []
    for each in () if lineage is None else lineage.inputs:
        found = InputDataset(each.dataset.namespace, each.dataset.name, facets=_schema(each) if columns else {})
        rows = None if statistics is None else statistics.rows_read
        if lineage is not None and len(lineage.inputs) == 1 and rows is not None:
            facet = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=rows)
            found.inputFacets = {"inputStatistics": facet}
        made.append(found)
    return made


def _outputs(lineage: JobLineage | None, statistics: RunStatistics | None, *, columns: bool) -> list[OutputDataset]:
    made = []
    for each in () if lineage is None else lineage.outputs:
        facets = {**_schema(each), **_column_lineage(each)} if columns else {}
        found = OutputDataset(each.dataset.namespace, each.dataset.name, facets=facets)
        done = None if statistics is None or each.topic is None else statistics.published.get(each.topic)
        if done is not None:
            facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=done[0], size=done[1])
            found.outputFacets = {"outputStatistics": facet}
        made.append(found)
    return made


def _schema(given: DatasetLineage) -> dict[str, DatasetFacet]:
    fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in given.columns]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)} if fields else {}


def _column_lineage(given: DatasetLineage) -> dict[str, DatasetFacet]:
    fields = {
        name: column_lineage_dataset.Fields(inputFields=_input_fields(origins))
        for name, origins in (given.made_of or {}).items()
    }
    influences = _input_fields(given.influences)
    if not fields and not influences:
        return {}
    return {"columnLineage": column_lineage_dataset.ColumnLineageDatasetFacet(fields=fields, dataset=influences)}


def _input_fields(origins: Iterable[Origin]) -> list[column_lineage_dataset.InputField]:
    """Return columns, each once, with all ways in which they are used."""
    return [
        column_lineage_dataset.InputField(
            namespace=dataset.namespace,
            name=dataset.name,
            field=column,
            transformations=[
                column_lineage_dataset.Transformation(
                    type="DIRECT" if each.use.is_direct else "INDIRECT",
                    subtype=str(each.use) or None,
                    masking=each.masked,
                )
                for each in group
            ],
        )
        for (dataset, column), group in groupby(sorted(origins), lambda each: (each.dataset, each.column))
    ]
