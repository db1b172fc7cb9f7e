"""Texts in files that are not in the encoding that they are read in: Spark passes their bytes on, or changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_UTF8 = "its bytes are no UTF-8: is the file in another encoding, such as ISO-8859-1?"


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
