"""``--where``: which rows of a record batch an SQL condition holds for, by a Spark session of this process."""

from __future__ import annotations

import pyarrow as pa

from jobpipe.errors import ConfigError

NUMBER = "_jobpipe_number"


class RowFilter:
    """An SQL condition on the columns of rows. Spark starts with the first rows; times are those of UTC."""

    def __init__(self, condition: str) -> None:
        self._condition = condition

    def numbers(self, batch: pa.RecordBatch) -> list[int]:
        """Return the numbers of the rows for which the condition is true, in order.

        Raises:
            ConfigError: Spark does not take the condition, or it fails with one of the rows; or there is no PySpark.
        """
        try:
            from pyspark.errors import PySparkException
            from pyspark.logger import PySparkLogger
            from pyspark.sql import SparkSession

            from jobpipe.spark.session.job_session import session
        except ImportError as error:
            raise ConfigError(f"--where is evaluated by PySpark, 4.0 or later: {error}", key="where") from error
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        spark = session(builder.config("spark.sql.session.timeZone", "UTC"))
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # its error reports a failure once
            PySparkLogger.getLogger(name).setLevel("CRITICAL")
        table = pa.Table.from_batches([batch]).append_column(NUMBER, pa.array(range(batch.num_rows), pa.int64()))
        try:
            kept = spark.createDataFrame(table).where(self._condition).select(NUMBER).collect()
        except (PySparkException, TypeError) as error:
            first = str(error).strip().splitlines()[0]
            raise ConfigError(f"--where: Spark does not take {self._condition!r}: {first}", key="where") from error
        return sorted(row[0] for row in kept)


def filtered(batch: pa.RecordBatch, numbers: list[int] | None) -> pa.RecordBatch:
    """Return the rows with these numbers; all of them for None."""
    return batch if numbers is None else batch.take(pa.array(numbers, pa.int64()))
