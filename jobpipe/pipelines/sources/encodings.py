"""Texts in files that are not in the encoding that they are read in: Spark passes their bytes on, or changes them."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from jobpipe.pipelines.plugins.api import ORIGIN, REASON, UNPARSED, column_named, origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REPLACED = (
    "a text has the character U+FFFD, which stands for bytes that are no UTF-8. Give the source options: {encoding: "
    "ISO-8859-1} if that is the encoding of the file, or convert it, as iconv does; if it has this very character, "
    "{encoding: UTF-8}"
)
_GOOD = "_jobpipe_good"
NO_UTF8 = "its bytes are no UTF-8: is the file in another encoding, such as ISO-8859-1?"


def require_good(frame: DataFrame, bad: Column, said: Column) -> DataFrame:
    """Return rows that fail if one of them is bad, also one that a filter would leave out, or a join.

    The check is not deterministic, so Spark moves no filter below it.

    Args:
        said: by the error.
    """
    from pyspark.sql import functions as sf

    good = sf.when(bad, sf.raise_error(said).cast("int")).otherwise(sf.spark_partition_id())
    return frame.withColumn(_GOOD, good).filter(sf.col(_GOOD) >= 0).drop(_GOOD)


def tolerant_lines(frame: DataFrame) -> DataFrame:
    """Return lines of text files as a source of a job with dead letters does: those that are no UTF-8 are unparsed."""
    from pyspark.sql import functions as sf

    line = sf.col("value")
    bad = ~sf.is_valid_utf8(line)
    others = [name for name in frame.columns if name != "value"]  # of partitions
    return frame.select(
        sf.when(~bad, line).alias("value"),
        *(column_named(name) for name in others),
        sf.when(bad, sf.make_valid_utf8(line)).alias(UNPARSED),
        sf.when(bad, sf.lit(NO_UTF8)).alias(REASON),
        origin(file=frame.metadataColumn("_metadata")["file_path"]).alias(ORIGIN),
    )


def require_decoded(frame: DataFrame) -> DataFrame:
    """Return rows of csv that fail if a text in them has the character that stands for what is no UTF-8.

    Spark puts it there without a word in csv. Its parsers of json and xml refuse such bytes, and name the file.
    """
    from pyspark.sql import functions as sf

    bad = _has_replaced(frame)
    if bad is None:
        return frame
    file = frame.metadataColumn("_metadata")["file_path"]
    return require_good(frame, bad, sf.concat(sf.lit("file "), file, sf.lit(f": a row cannot be read: {REPLACED}")))


def with_undecoded(frame: DataFrame) -> DataFrame:
    """Return the rows of a source of a job with dead letters; those that :func:`require_decoded` refuses are unparsed.

    Their text is lost to Spark, and they come as JSON.
    """
    from pyspark.sql import functions as sf

    bad = _has_replaced(frame)
    if bad is None:
        return frame
    names = [name for name in frame.columns if name not in (UNPARSED, ORIGIN)]
    found = sf.col(UNPARSED).isNull() & bad
    row = sf.to_json(sf.struct(*map(column_named, names)))
    return frame.withColumns(
        {REASON: sf.when(found, sf.lit(REPLACED)), UNPARSED: sf.when(found, row).otherwise(sf.col(UNPARSED))}
    )


def _has_replaced(frame: DataFrame) -> Column | None:
    """Return whether a row has U+FFFD in a text; None if its columns are no texts."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType

    names = [field.name for field in frame.schema if isinstance(field.dataType, StringType) and field.name != UNPARSED]
    each = [sf.coalesce(sf.contains(column_named(name), sf.lit("\ufffd")), sf.lit(False)) for name in names]
    return reduce(lambda one, other: one | other, each) if each else None


def require_utf8(frame: DataFrame, column: str) -> DataFrame:
    """Return rows of files that fail if a text in a column is no UTF-8; the error names the file."""
    from pyspark.sql import functions as sf

    said = sf.concat(
        sf.lit("file "),
        frame.metadataColumn("_metadata")["file_path"],
        sf.lit(f": a line cannot be read: {NO_UTF8} Convert it, as iconv does, or read it as csv with option encoding"),
    )
    return require_good(frame, ~sf.is_valid_utf8(sf.col(column)), said)
