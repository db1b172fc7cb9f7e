"""What the programs share: a session, and the types that its Spark knows. Runs with any Spark."""

from __future__ import annotations

import re

import pyspark
from pyspark.sql import DataFrame, SparkSession

import jobpipe
from tests.spark.kinds import VALUES, began, selected

GROUPS = sorted({began(column) for column in VALUES})
THIS = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


_BYTES = re.compile(r"bytearray\((b'[^']*')\)")


SECONDS = 180  # for a query


def session() -> SparkSession:
    """Return the session that jobpipe recommends."""
    builder = SparkSession.builder.master("local[2]").appName("compat")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.timeType.enabled": "true",
        "spark.sql.geospatial.enabled": "true",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = jobpipe.session(builder)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def groups() -> dict[str, list[str]]:
    """Return expressions for the types that this Spark knows, by the version in which they began."""
    return {
        f"{since[0]}.{since[1]}": selected(tuple(name for name in VALUES if began(name) == since))
        for since in GROUPS
        if since <= THIS
    }


def values(df: DataFrame) -> dict[str, list[str]]:
    """Return the values of each column: the types compared have no equality, but all a true repr.

    Binary values are of type ``bytes`` since 4.1, and were ``bytearray`` before.
    """
    rows = sorted(df.collect(), key=lambda row: row["id"])
    return {name: [_BYTES.sub(r"\1", repr(row[name]))[:300] for row in rows] for name in df.columns}
