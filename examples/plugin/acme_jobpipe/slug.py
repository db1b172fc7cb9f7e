"""Transform ``slug``: a text as it may stand in a URL."""

from __future__ import annotations

import unicodedata
from typing import Literal

from pydantic import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from jobpipe.pipelines.file.field_types import Text
from jobpipe.pipelines.plugins.api import JobContext, PluginOptions, Transform, column_named, require_columns

_LETTERS = {char: unicodedata.normalize("NFKD", char)[0] for char in map(chr, range(0xE0, 0x250))}
_PLAIN = {char: plain for char, plain in _LETTERS.items() if plain.isascii() and plain.islower()}
_MARKS = "".join(map(chr, range(0x300, 0x370)))  # accents that are characters of their own: they are left out


class Slug(Transform):
    """Adds a column with a text as it may stand in a URL: creme-brulee for Crème brûlée!

    Latin letters lose their accents; all but a-z and 0-9 becomes the separator. Null stays null.
    """

    type = "slug"

    class Options(PluginOptions):
        """Which column, and how."""

        field: Text = Field(description="The column with the text.")
        target: Text = Field(default="slug", description="The column that is added, or replaced.")
        separator: Literal["-", "_", ".", "~"] = Field(default="-", description="What stands between words.")

    options: Options

    def apply(self, frame: DataFrame, job: JobContext) -> DataFrame:
        """Add the column."""
        given = self.options
        require_columns(frame, [given.field], self.type)
        text = sf.lower(column_named(given.field).cast("string"))
        plain = sf.translate(text, "".join(_PLAIN) + _MARKS, "".join(_PLAIN.values()))
        words = sf.trim(sf.regexp_replace(plain, "[^a-z0-9]+", " "))
        return frame.withColumn(given.target, sf.translate(words, " ", given.separator))
