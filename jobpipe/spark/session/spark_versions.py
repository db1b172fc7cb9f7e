"""What differs between the versions of Spark that jobpipe runs with: 3.5, and 4.0 to 4.3.

No other module asks for the version. It looks at what is there where that is enough; names in Spark's JVM go by the
version. Seen in 3.5.9, 4.0.5, 4.1.4, 4.2.1 and 4.3.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types
from pyspark.sql.pandas import types as arrow_types
from pyspark.sql.types import DataType, StringType, StructType

from jobpipe.errors import UnsupportedSpark
from jobpipe.spark.session.supported_versions import WORKS, require_known

__all__ = [
    "CHECKPOINT_BY_FILE_SYSTEM",
    "HAS_ADMISSION_CONTROL",
    "HAS_DEFAULT_CLASS_PATH",
    "HAS_SOURCES",
    "HAS_UTF8_FUNCTIONS",
    "INSTALLED",
    "NEWER_TYPES",
    "TRIGGER",
    "UNKNOWN_TYPES",
    "VERSION",
    "DataSourceArrowWriter",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "default_api_mode",
    "is_collated",
    "require_admission_control",
    "require_sources",
    "session_conf",
    "session_for_stream",
    "terminated",
    "to_arrow_schema",
]

INSTALLED = pyspark.__version__
VERSION = require_known(INSTALLED)

# -- sources -----------------------------------------------------------------------------------------------------------

HAS_SOURCES = VERSION >= (4, 0)  # in Python

HAS_ADMISSION_CONTROL = VERSION >= (4, 2)

HAS_UTF8_FUNCTIONS = VERSION >= (4, 0)  # is_valid_utf8 and make_valid_utf8

if TYPE_CHECKING or HAS_ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """Stands for Spark's."""

    class ReadAllAvailable(ReadLimit):
        """Stands for Spark's."""

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):
        """Stands for Spark's."""

        max_rows: int

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):
        """Stands for Spark's."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """Stands for Spark's."""


def require_sources(what: str) -> None:
    """See that this Spark has data sources in Python.

    Raises:
        UnsupportedSpark: it has not.
    """
    if not HAS_SOURCES:
        why = "data sources in Python began with it"
        raise _needs(what, "4.0", f"{why} ({WORKS}). jobpipe.subscribe() reads without Spark")


def require_admission_control(what: str) -> None:
    """See that Spark tells a stream where a micro-batch begins, and asks it for its newest position.

    Raises:
        UnsupportedSpark: it does not.
    """
    if not HAS_ADMISSION_CONTROL:
        why = "before it, Spark does not tell a stream of Python where a micro-batch begins, nor asks how far it could"
        raise _needs(what, "4.2", f"{why} read (docs/deploy.md says what works)")


def _needs(what: str, version: str, why: str) -> UnsupportedSpark:
    return UnsupportedSpark(
        f"{what} needs PySpark {version} or later, and this is {pyspark.__version__}: {why}",
        version=pyspark.__version__,
    )


# -- writers -----------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
elif HAS_SOURCES:
    from pyspark.sql.datasource import DataSourceArrowWriter

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # 4.0, which gives a task's rows to any writer of record batches as such
        from pyspark.sql.datasource import DataSourceStreamWriter

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """Stands for Spark's."""

# -- types -------------------------------------------------------------------------------------------------------------

# By the first word of their names in a schema's JSON.
_SINCE_SOME_VERSION = {
    "geography": "GeographyType",
    "geometry": "GeometryType",
    "time": "TimeType",
    "variant": "VariantType",
}
NEWER_TYPES: tuple[type[DataType], ...] = tuple(
    getattr(spark_types, name) for name in _SINCE_SOME_VERSION.values() if hasattr(spark_types, name)
)
UNKNOWN_TYPES = frozenset(word for word, name in _SINCE_SOME_VERSION.items() if not hasattr(spark_types, name))


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema as Spark has it in Arrow, with timestamps in UTC.

    Raises:
        PySparkTypeError: there is no Arrow form of a type.
    """
    convert: Callable[..., pa.Schema] = arrow_types.to_arrow_schema
    return convert(schema, timezone="UTC") if VERSION >= (4, 2) else convert(schema)


def is_collated(kind: StringType) -> bool:
    """Tell whether a string has another order and equality than that of its bytes (since 4.0)."""
    return VERSION >= (4, 0) and not kind.isUTF8BinaryCollation()


# -- sessions ----------------------------------------------------------------------------------------------------------


def session_conf(spark: SparkSession) -> dict[str, str]:
    """Return all settings of a classic session, those given while it runs too."""
    if VERSION >= (4, 0):
        return dict(spark.conf.getAll)
    conf, jvm = spark.conf, spark._jvm  # type: Any, Any
    return dict(jvm.scala.collection.JavaConverters.mapAsJavaMap(conf._jconf.getAll()))


def default_api_mode() -> str:
    """Return ``classic`` or ``connect``: what a builder makes if nothing says which."""
    if VERSION < (4, 0):
        return "classic"
    from pyspark.util import default_api_mode

    return default_api_mode()


HAS_DEFAULT_CLASS_PATH = VERSION >= (4, 0)  # spark.driver.defaultExtraClassPath
_CHECKPOINTING = "checkpointing." if VERSION >= (4, 1) else ""
CHECKPOINT_BY_FILE_SYSTEM = (
    f"org.apache.spark.sql.execution.streaming.{_CHECKPOINTING}FileSystemBasedCheckpointFileManager"
)

# -- queries, in the JVM -----------------------------------------------------------------------------------------------

# The method in which a query's thread is from the beginning of a trigger to its end.
TRIGGER = "executeOneBatch" if VERSION >= (4, 0) else "$anonfun$runActivatedStream$1"


def terminated(jvm: Any) -> Any:
    """Return the state of a query that is to end."""
    streaming = jvm.org.apache.spark.sql.execution.streaming
    home = streaming.runtime if VERSION >= (4, 1) else streaming
    return getattr(getattr(home, "TERMINATED$"), "MODULE$")


def session_for_stream(execution: Any, jvm: Any) -> Any:
    """Return the session that Spark cloned for a run of a query, as the JVM has it."""
    if VERSION >= (4, 0):
        return execution.sparkSessionForStream()
    kind = jvm.java.lang.Class.forName("org.apache.spark.sql.execution.streaming.StreamExecution")
    method = kind.getDeclaredMethod("sparkSessionForStream", None)
    method.setAccessible(True)
    return method.invoke(execution, None)
