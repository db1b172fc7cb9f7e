"""Source ``python``: a function of the user's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import Field

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.field_types import Arguments, ObjectName, revealed
from jobpipe.pipelines.plugins.api import PluginOptions, Source
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.plugins.object_loader import import_object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class PythonSource(Source):
    """Rows that a function of yours returns: it is called with the Spark session and the options."""

    type = "python"

    class Options(PluginOptions):
        """Which function."""

        function: ObjectName = Field(description="(spark, **options) to a DataFrame, a stream if the job is STREAMING.")
        options: Arguments = Field(default_factory=dict, description="Its keyword arguments.")

    options: Options

    def imports(self) -> Iterable[str]:
        yield self.options.function

    def load(self, spark: SparkSession, job: JobContext) -> DataFrame:
        from pyspark.sql import DataFrame

        found: Any = import_object(self.options.function)(spark, **revealed(self.options.options, job.folder))
        if not isinstance(found, DataFrame):
            said = f"{self.options.function} returned {type(found).__name__}, not a DataFrame"
            raise ConfigError(said, key="function")
        return found
