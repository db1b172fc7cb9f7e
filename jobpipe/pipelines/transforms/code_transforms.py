"""Transforms by code: ``sql`` and ``python``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pyspark.sql import DataFrame

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.field_types import Arguments, ObjectName, Text, revealed
from jobpipe.pipelines.file.problems import OptionError
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.file_formats.format_options import read_columns
from jobpipe.pipelines.plugins.api import PluginOptions, Transform
from jobpipe.pipelines.plugins.job_context import INPUT, JobContext
from jobpipe.pipelines.plugins.object_loader import import_object
from jobpipe.pipelines.transforms.python_udf import BatchCalls, RowCalls, require_returns, with_dead

_COLUMNS = re.compile(r"[\w\s`.,*]*")  # with nothing that is computed: `*, id AS key`, `key IS NOT NULL`
_EXCEPT = re.compile(r"\bEXCEPT\s*\([^()]*\)", re.IGNORECASE)
_ESCAPED_STAR = re.compile(r"((?:\A|,)\s*)\\\*(?=\s|,|\Z)")  # as Flink CDC writes the wildcard
Projection = Annotated[Text, AfterValidator(lambda text: _ESCAPED_STAR.sub(r"\1*", text))]


class SqlTransform(Transform):
    """Chooses rows and columns by Spark's SQL, or queries the job's sources by their names."""

    type = "sql"

    class Options(PluginOptions):
        """What is chosen."""

        projection: Projection | None = Field(
            default=None, description="The part between SELECT and FROM: *, upper(name) AS name."
        )
        filter: Text | None = Field(default=None, description="The part after WHERE; applied to the incoming rows.")
        query: Text | None = Field(
            default=None,
            description="A whole SELECT instead, over input (the incoming rows) and the sources by their names.",
        )
        description: str | None = Field(default=None, description="For people.")

    options: Options

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """It does one of both."""
        given = self.options
        if given.query is not None and (given.projection is not None or given.filter is not None):
            yield OptionError("query", "projection or filter is given too", "put all of it in the query")
        elif given.query is None and given.projection is None and given.filter is None:
            yield OptionError("", "it chooses nothing", "give projection, filter or query")

    @property
    def may_fail(self) -> bool:
        """With Spark's ANSI mode a cast, a division and many functions do, unless they are named try_...."""
        texts = filter(None, (self.options.projection, self.options.filter, self.options.query))
        return any(_COLUMNS.fullmatch(_EXCEPT.sub("", text)) is None for text in texts)

    @property
    def stateful(self) -> bool | None:
        """A query may group or join."""
        return False if self.options.query is None else None

    @property
    def reads_views(self) -> bool:
        """A query can name them."""
        return self.options.query is not None

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        given = self.options
        if given.query is None:
            rows = frame if given.filter is None else frame.where(given.filter)
            if given.projection is None:
                return rows
            # The projection is a list of expressions with commas, EXCEPT and the like: only a statement takes it whole.
            return _over({INPUT: rows}, f"SELECT {given.projection} FROM {INPUT}")  # noqa: S608 - the user's own
        return _over({**job.views, INPUT: frame}, given.query)


def _over(views: Mapping[str, DataFrame], query: str) -> DataFrame:
    """Return a query over frames by their names, which are visible to it alone."""
    session = next(iter(views.values())).sparkSession
    for name, frame in views.items():
        frame.createOrReplaceTempView(name)
    try:
        return session.sql(query)  # analysed here, so that the views are not needed any more
    finally:
        for name in views:
            session.catalog.dropTempView(name)


class PythonTransform(Transform):
    """Calls a function of yours: with the DataFrame, with each row, or with each Arrow record batch."""

    type = "python"

    class Options(PluginOptions):
        """Which function."""

        function: ObjectName | None = Field(default=None, description="(frame, **options) to a DataFrame.")
        row_function: ObjectName | None = Field(
            default=None, description="(row, **options) to a row, a list of rows, or None; a row is a dict."
        )
        batch_function: ObjectName | None = Field(
            default=None, description="(batch, **options) to a pyarrow.RecordBatch or Table; called in tasks."
        )
        schema_: Text | None = Field(
            default=None,
            alias="schema",
            description="Columns of what row-function or batch-function returns, or file:PATH.",
        )
        options: Arguments = Field(default_factory=dict, description="Its keyword arguments.")

    options: Options

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """It has one function, and a schema exactly for those that run in tasks."""
        given = self.options
        functions = [name for name in (given.function, given.row_function, given.batch_function) if name is not None]
        if len(functions) != 1:
            what = "no function is given" if not functions else "several functions are given"
            yield OptionError("", what, "give function, row-function or batch-function, one of them")
        elif (given.function is None) != (given.schema_ is not None):
            if given.function is None:
                yield OptionError("schema", "the columns of the result are not known", "give schema: 'id bigint'")
            else:
                yield OptionError("schema", "a function of a DataFrame says the columns itself", "leave it out")

    def imports(self) -> Iterable[str]:
        given = self.options
        yield from (name for name in (given.function, given.row_function, given.batch_function) if name is not None)

    @property
    def stateful(self) -> bool | None:
        """A function of the DataFrame may group."""
        return None if self.options.function is not None else False

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        """Call it, or let tasks call it."""
        given, options = self.options, revealed(self.options.options, job.folder)
        if given.function is not None:
            found: Any = import_object(given.function)(frame, **options)
            if not isinstance(found, DataFrame):
                said = f"{given.function} returned {type(found).__name__}, not a DataFrame"
                raise ConfigError(said, key="function")
            return found
        return self._in_tasks(frame, job, tolerant=False)

    @property
    def tolerant(self) -> bool:
        """A function of rows or record batches can be asked again without the rows that it cannot take."""
        return self.options.function is None

    def apply_tolerant(self, frame: DataFrame, job: JobContext) -> DataFrame | None:
        """Let tasks call it, and say for which rows it raises."""
        return self._in_tasks(frame, job, tolerant=True) if self.tolerant else None

    def _in_tasks(self, frame: DataFrame, job: JobContext, *, tolerant: bool) -> DataFrame:
        given, options = self.options, revealed(self.options.options, job.folder)
        schema = read_columns(str(given.schema_), job.folder)
        name = str(given.row_function if given.row_function is not None else given.batch_function)
        calls = RowCalls if given.row_function is not None else BatchCalls
        secrets = [str(value) for key, value in options.items() if value != given.options[key]]
        function = import_object(name)
        require_returns(function, name)
        call = calls(function, options, schema, tolerant=tolerant, names=frame.columns, secrets=secrets)
        # Spark's mapInArrow reads names as expressions.
        return frame.toDF(*(f"c{at}" for at in range(len(frame.columns)))).mapInArrow(
            call, with_dead(schema) if tolerant else schema
        )
