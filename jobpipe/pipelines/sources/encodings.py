"""Texts in files that are not in the encoding that they are read in: Spark passes their bytes on, or changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobpipe.pipelines.plugins import ORIGIN, REASON, UNPARSED, column_named, origin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_UTF8 = "its bytes are no UTF-8: is the file in another encoding, such as ISO-8859-1?"


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


def require_utf8(frame: DataFrame, column: str) -> DataFrame:
    """Return rows of files that fail if a text in a column is no UTF-8; the error names the file."""
    from pyspark.sql import functions as sf

    said = sf.concat(
        sf.lit("file "),
        frame.metadataColumn("_metadata")["file_path"],
        sf.lit(f": a line cannot be read: {NO_UTF8} Convert it, as iconv does, or read it as csv with option encoding"),
    )
    valid = sf.col(column).isNull() | sf.is_valid_utf8(sf.col(column))
    return frame.filter(sf.when(valid, sf.lit(True)).otherwise(sf.raise_error(said).cast("boolean")))
