"""The rows: four shapes, each made by Spark from two columns: ``id``, a number, and ``made``, its event time in µs.

Values depend on ``id`` alone, cost little to make, and differ from row to row, so that no encoding gets them for free.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention


@dataclass(frozen=True)
class Shape:
    """A shape's name, and how many rows are measured in how many micro-batches unless told otherwise."""

    name: str
    rows_per_batch: int
    batches: int = 5

    def of(self, rows: DataFrame) -> DataFrame:
        """Return rows of this shape for each ``id`` and ``made``."""
        return rows.select("id", "made", *_COLUMNS[self.name]())


def _text(seed: int, length: int) -> Column:
    """Return so many characters that look random: hexadecimal digits of hashes."""
    parts = [F.hex(F.xxhash64(F.col("id"), F.lit(seed + n))) for n in range((length + 15) // 16)]
    return F.substring(F.lpad(F.concat(*parts), len(parts) * 16, "0"), 1, length)


def _number(seed: int) -> Column:
    return F.xxhash64(F.col("id"), F.lit(seed))


def _narrow() -> list[Column]:
    return [(F.pmod(_number(1), F.lit(1_000_000)) / 100).alias("amount"), F.hash("id").alias("kind")]


def _wide() -> list[Column]:
    longs = [_number(n).alias(f"long{n}") for n in range(29)]
    doubles = [(F.hash("id", F.lit(n)) / 1000).alias(f"double{n}") for n in range(29)]
    return [*longs, *doubles]


def _strings() -> list[Column]:
    return [_text(n, length).alias(f"text{n}") for n, length in enumerate((8, 16, 32, 64))]


def _nested() -> list[Column]:
    item = F.struct(_text(2, 8).alias("sku"), F.hash("id").alias("count"))
    other = F.struct(_text(3, 8).alias("sku"), F.hash("made").alias("count"))
    customer = F.struct(
        _text(1, 16).alias("name"), F.struct(_number(5).alias("zip"), F.hash("id").alias("x")).alias("at")
    )
    marks = F.create_map(F.lit("a"), _number(6) / 7, F.lit("b"), _number(7) / 7)
    return [customer.alias("customer"), F.array(item, other).alias("items"), marks.alias("marks")]


_COLUMNS = {"narrow": _narrow, "wide": _wide, "strings": _strings, "nested": _nested}

SHAPES = {
    shape.name: shape
    for shape in (Shape("narrow", 400_000), Shape("wide", 40_000), Shape("strings", 200_000), Shape("nested", 100_000))
}
