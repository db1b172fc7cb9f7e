"""A function of Spark's that finds the first row of each file. It is a module of its own, for it needs pandas."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql.pandas.functions import pandas_udf


def marks_first() -> Callable[[Column], Column]:
    """Return a function of a column of numbers: whether a row's number is another than that of the row before.

    It is false where the number is 0. The rows are those of a task, in their order. It is not deterministic, so Spark
    moves no filter below it.
    """

    def first(numbers: Iterator[pd.Series]) -> Iterator[pd.Series]:
        before = 0
        for each in numbers:
            yield (each != each.shift(fill_value=before)) & (each != 0)
            before = each.iloc[-1] if len(each) else before

    make: Any = pandas_udf
    return cast(Callable[[Column], Column], make(first, "boolean").asNondeterministic())
