"""``jobpipe pipeline try``: a job's transforms, or its flow's function, on sample rows."""

from __future__ import annotations

import json
import re
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from jobpipe.config.job_secrets import export
from jobpipe.config.reading.located_values import Path as Place
from jobpipe.errors import ConfigError, JobpipeError, short_repr
from jobpipe.pipelines.file.error_messages import problem_at
from jobpipe.pipelines.file.field_types import secret_or_none
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.problems import nearest, pipeline_error
from jobpipe.pipelines.file_formats.format_options import read_columns, read_schema
from jobpipe.pipelines.model.pipeline import Job, Pipeline, Stage
from jobpipe.pipelines.plugins.api import Source
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sinks.format_sinks import FileSink
from jobpipe.pipelines.transforms.json_values import json_number, json_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS_MOST = 100_000
NAMES_MOST = 5
_JAVA_CLASS = re.compile(r"\A(?:\w+\.)+[\w$]+: ")
_RUN = RunValues("try", datetime(2000, 1, 1, tzinfo=UTC), datetime(2000, 1, 2, tzinfo=UTC))

Row = dict[str, Any]


@dataclass(frozen=True)
class DryRunResult:
    """What became of the rows: those that came out, and the dead letters.

    Attributes:
        unknown: for each source, in a sentence, the names in its rows that are none of its columns: they are left out.
    """

    rows: list[Row]
    dead: list[Row]
    unknown: tuple[str, ...] = ()


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file: an object on each line, or one list of objects.

    Raises:
        ConfigError: it cannot be read, or holds something else, or too many.
    """
    try:
        text = path.read_text(encoding="utf-8")
        listed = text.lstrip().startswith("[")
        rows = json.loads(text) if listed else list(_lines(text))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} is not there; give a file with a JSON object on each line", file=str(path)
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected a JSON object on each line, or a list of them ({error})") from error
    if len(rows) > ROWS_MOST or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{path}: expected at most {ROWS_MOST:,} JSON objects", file=str(path))
    return list(rows)


def _lines(text: str) -> Iterator[Any]:
    """Yield the value of each line.

    Raises:
        ValueError: a line is no JSON; it says which.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{error.msg}: line {number}, column {error.colno}") from error


def differences(found: list[Row], expected: list[Row]) -> list[str]:
    """Return what differs, a line for each row, whatever their order: ``-`` is missing, ``+`` is not expected."""
    got, wanted = Counter(map(_canonical, found)), Counter(map(_canonical, expected))
    lines = [("-", row) for row in (wanted - got).elements()] + [("+", row) for row in (got - wanted).elements()]
    return [f"{sign} {row}" for sign, row in sorted(lines, key=lambda line: (line[1], line[0]))]


def _canonical(row: Row) -> str:
    return json.dumps(_plain(row), sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else json_number(value)
    return value


def try_job(pipeline: Pipeline, name: str, inputs: Mapping[str | None, list[Row]]) -> DryRunResult:
    """Run a job's transforms on rows, by the views of its sources; of a single source, by None.

    Raises:
        ConfigError: there is no such job, it is a program of the user's, or the rows do not fit its sources.
        PipelineError: a stage fails; it says which, if that is known, and why.
    """
    job = pipeline.jobs.get(name)
    if job is None:
        raise ConfigError(f"there is no job {name!r}; {nearest(name, pipeline.jobs)}", key=name)
    if job.spec.application is not None:
        raise ConfigError(f"job {name} is a program of your own: run it", key=name)
    if job.spec.captures:
        raise ConfigError(
            f"job {name} captures tables, and transforms no rows: try a job that reads its topics", key=name
        )
    if set(inputs) != set(job.sources):
        views = ", ".join(f"--input {view}=FILE" for view in job.sources if view is not None)
        raise ConfigError(f"job {name}: give {views or '--input FILE, once'}", key="input")
    from jobpipe.jobs.workloads.spark_session import add_path

    add_path(pipeline.folder)
    export(job.spec.secrets)
    with _problems_at(pipeline, job.path):
        if job.spec.type == "flow":
            return _try_flow(pipeline, job, inputs[None])
        with _session(pipeline, job) as spark:
            return _try_query(spark, pipeline, job, inputs)


@contextmanager
def _problems_at(pipeline: Pipeline, path: Place) -> Iterator[None]:
    """Report any failure as a problem at that path of the file; one that is a problem already stays as it is."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # of Spark, Arrow, a plug-in, or the user's function
        raise pipeline_error([problem_at(pipeline.tree, path, _reason(error, pipeline.folder), "")]) from error


def _reason(error: BaseException, folder: Path) -> str:
    """Return in a line what is wrong: Python's error and its place in the user's code, or what Java or Spark says."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if isinstance(error, JobpipeError):
        return error.message
    of_spark = isinstance(error, (PySparkException, Py4JError))
    text = str(error) if of_spark else "".join(traceback.format_exception(error))
    _, traced, trace = text.rpartition("Traceback (most recent call last):\n")
    lines = [line for line in (trace if traced else text).splitlines() if line.strip()] or [type(error).__name__]
    if traced:
        said = next((line for line in lines if not line[0].isspace()), lines[-1].strip())
        places = [line.strip() for line in lines if line.lstrip().startswith(f'File "{folder}')]
        return f"{said} ({places[-1]})" if places else said
    causes = [line.partition(": ")[2] for line in lines if line.startswith(("Caused by: ", ": "))]
    return _JAVA_CLASS.sub("", causes[-1] if causes else lines[0])


def _try_flow(pipeline: Pipeline, job: Job, rows: list[Row]) -> DryRunResult:
    import pyarrow as pa

    from jobpipe.pipelines.plugins.object_loader import import_object
    from jobpipe.spark.flow.spark_flow import flow_test
    from jobpipe.spark.schema.spark_arrow_schema import arrow_schema

    spec = job.spec
    columns = None if spec.schema_ is None else _columns(pipeline, job, spec.schema_)
    try:
        given = pa.Table.from_pylist(rows)
    except pa.ArrowException as error:
        raise ConfigError(f"the rows of --input have no common columns: {error}", key="input") from error
    made = flow_test(
        import_object(str(spec.function)),
        [given],
        setup=None if spec.setup is None else import_object(spec.setup),
        schema=None if columns is None else arrow_schema(columns),
    )
    return DryRunResult([json_row(batch, number) for batch in made for number in range(batch.num_rows)], [])


def _columns(pipeline: Pipeline, job: Job, schema: str) -> StructType:
    with _session(pipeline, job):  # without one Spark reads no columns
        return read_columns(schema, pipeline.folder)


@contextmanager
def _session(pipeline: Pipeline, job: Job) -> Iterator[SparkSession]:
    from jobpipe.spark.session.spark_versions import require_admission_control

    require_admission_control("a pipeline")
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    from jobpipe.jobs.runner.driver_environment import prepare_environment
    from jobpipe.jobs.workloads.spark_session import prepare_jvm, session_keys

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # a failure is reported once, by its error
        PySparkLogger.getLogger(name).setLevel("CRITICAL")

    fixed = {"spark.master": "local[1]"}
    prepare_environment(fixed["spark.master"])
    keys = session_keys(pipeline, job, "file:/")
    level = pipeline.configuration(job).get("spark.log.level", "OFF")
    prepare_jvm({**keys, **fixed, "spark.log.level": level})
    spark = SparkSession.builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _try_query(
    spark: SparkSession, pipeline: Pipeline, job: Job, inputs: Mapping[str | None, list[Row]]
) -> DryRunResult:
    from jobpipe.pipelines.dead_letters.dead_letter_split import DeadLetters

    context = JobContext(
        pipeline=pipeline.name,
        job=job.name,
        mode=job.mode,
        storage="",
        folder=pipeline.folder,
        run=_RUN,
        parameters=pipeline.spec.parameters,
        topic_prefix=pipeline.spec.topic_prefix,
    )
    frames: dict[str | None, DataFrame] = {}
    for view, rows in inputs.items():
        with _problems_at(pipeline, job.sources[view].path):
            frames[view] = _frame(spark, job.sources[view].make(_RUN), rows, pipeline.folder)
    unknown = tuple(
        said for view, rows in inputs.items() if (said := _unknown_names(view, rows, frames[view].columns)) is not None
    )
    frame = next(iter(frames.values()))
    made: list[tuple[Stage[Any], DataFrame]] = [(job.sources[view], each) for view, each in frames.items()]
    if job.spec.errors.tolerance == "all":
        stages = [(stage.type, stage.make(_RUN)) for stage in job.transforms]
        letters = DeadLetters(context, "", "", stages, None, view=next(iter(frames)))
        with ExitStack() as stack, _finding(pipeline, made):
            good, marked = letters.split(frame, stack)
            _check_sinks(spark, pipeline, job, good, context)
            dead = [row for each, is_dead, letter in marked for row in _rows(each.where(is_dead).select(letter))]
            return DryRunResult(_rows(good), [row["letter"] for row in dead], unknown)
    context = replace(context, views={view: each for view, each in frames.items() if view is not None})
    for stage in job.transforms:
        with _problems_at(pipeline, stage.path):
            frame = stage.make(_RUN).apply(frame, context)
        made.append((stage, frame))
    _check_sinks(spark, pipeline, job, frame, context)
    with _finding(pipeline, made):
        return DryRunResult(_rows(frame), [], unknown)


def _unknown_names(view: str | None, rows: list[Row], columns: list[str]) -> str | None:
    """Return in a sentence which names in the rows of a source are none of its columns; None if all are."""
    names = sorted({name for row in rows for name in row}.difference(columns))
    if not names:
        return None
    source = "the source" if view is None else f"source {view}"
    listed = ", ".join(map(short_repr, names[:NAMES_MOST])) + (", ..." if len(names) > NAMES_MOST else "")
    return f"{listed} in the rows is left out: the columns of {source} are {', '.join(columns)}"


def _check_sinks(spark: SparkSession, pipeline: Pipeline, job: Job, frame: DataFrame, context: JobContext) -> None:
    """See that each sink takes the columns; of values it says nothing.

    Raises:
        PipelineError: a sink does not.
    """
    for stage in job.sinks:
        sink = stage.make(_RUN)
        with _problems_at(pipeline, stage.path):
            try:
                sink.check_columns(frame, context)
            except ConfigError as error:
                raise pipeline_error([problem_at(pipeline.tree, stage.path, error.message, "")]) from error
            if isinstance(sink, FileSink):
                _write_no_rows(sink, spark.createDataFrame([], frame.schema), context.folder)


def _write_no_rows(sink: FileSink, empty: DataFrame, folder: Path) -> None:
    """Let Spark say whether files of this format can have these columns."""
    given = {name: str(value) for name, value in sink.options.options.items()}
    options = {name: text for name, text in given.items() if secret_or_none(text, folder) is None}
    writer = (
        empty.write.format(sink.format)
        .options(**options)
        .partitionBy(*getattr(sink.options, "partition_by", None) or ())
    )
    with TemporaryDirectory(prefix="jobpipe-try-") as place:
        writer.save(f"{place}/rows")


@contextmanager
def _finding(pipeline: Pipeline, made: list[tuple[Stage[Any], DataFrame]]) -> Iterator[None]:
    """Find the stage that fails; Spark computes all of them at once, so each is computed again, up to that one."""
    try:
        yield
    except Exception:
        for stage, frame in made:
            with _problems_at(pipeline, stage.path):
                _rows(frame)
        raise


def _frame(spark: SparkSession, source: Source, rows: list[Row], folder: Path) -> DataFrame:
    """Return the rows with the columns that the source says it has, else with those that Spark finds in them."""
    import pyarrow as pa

    lines = spark.createDataFrame(pa.table({"line": pa.array([json.dumps(row) for row in rows], pa.string())}))
    reader = spark.read.option("mode", "FAILFAST")
    schema = getattr(source.options, "schema_", None)
    if schema is not None:
        reader = reader.schema(read_schema(schema, folder))
    return reader.json(lines)


def _rows(frame: DataFrame) -> list[Row]:
    from pyspark.sql import functions as sf

    from jobpipe.pipelines.transforms.column_transforms import WHOLE_JSON
    from jobpipe.spark.session.collect_rows import collect_rows

    column = sf.to_json(sf.struct("*"), WHOLE_JSON).alias("json")
    return [json.loads(row["json"]) for row in collect_rows(frame.select(column))]
