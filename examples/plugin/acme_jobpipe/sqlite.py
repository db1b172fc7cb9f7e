"""Sink ``sqlite``: rows in a table of an SQLite database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pydantic import Field
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructField

from jobpipe.pipelines.file.field_types import Text
from jobpipe.pipelines.plugins.api import (
    DeliveryGuarantee,
    JobContext,
    Mode,
    OptionError,
    PluginOptions,
    Sink,
    column_named,
)

_TYPES = {
    **dict.fromkeys(("boolean", "tinyint", "smallint", "int", "bigint"), "INTEGER"),
    **dict.fromkeys(("float", "double"), "REAL"),
    "binary": "BLOB",
}
_QUERY_ID = "sql.streaming.queryId"  # set by Spark where it calls a query's sink
_BUSY = 60.0  # seconds to wait for another job that writes to the same database

_LEDGER = """
CREATE TABLE IF NOT EXISTS jobpipe_ledger
(writer TEXT, destination TEXT, batch INTEGER NOT NULL, PRIMARY KEY (writer, destination))
"""
# Changes no row if the batch is there already. To know the last one is enough: the ids of a query's batches only grow.
_CLAIM = """
INSERT INTO jobpipe_ledger VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET batch = excluded.batch WHERE excluded.batch > batch
"""


class SqliteSink(Sink):
    """Appends rows to a table of an SQLite database, a file on the driver's host.

    The table is made if it is not there. Numbers, truth values and bytes stay what they are; all else becomes a text,
    as by Spark's CAST. Table jobpipe_ledger says which micro-batch of a query was the last.
    """

    type = "sqlite"
    promise = DeliveryGuarantee(True, "the rows of a micro-batch and its id are written in one transaction")
    idempotent = True

    class Options(PluginOptions):
        """Where to."""

        path: Text = Field(description="The database, from the folder of the pipeline's file.")
        table: Text = Field(description="The table.")

    options: Options

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """Complain of what SQLite would take for the name of a file, or for our own table."""
        if "://" in self.options.path:
            yield OptionError("path", "it is a URI; SQLite writes local files alone", "give a path")
        if self.options.table.lower().startswith(("sqlite_", "jobpipe_")):
            yield OptionError("table", "names that begin with sqlite_ or jobpipe_ are reserved", "give another")

    def open(self, frame: DataFrame, job: JobContext) -> None:
        """Make the tables, and the folder of the database."""
        self._path(job).parent.mkdir(parents=True, exist_ok=True)
        columns = ", ".join(f"{_quoted(field.name)} {_type(field)}" for field in frame.schema)
        with self._transaction(job) as database:
            database.execute(_LEDGER)
            database.execute(f"CREATE TABLE IF NOT EXISTS {_quoted(self.options.table)} ({columns})")

    def write(self, batch: DataFrame, batch_id: int, job: JobContext) -> None:
        """Write the rows and the id of their batch, unless an earlier attempt has."""
        query_id = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)  # None in a run of a BATCH job
        writer = query_id or f"{job.name} {job.run.id}"
        names = ", ".join(map(_quoted, batch.columns))
        values = ", ".join("?" for _ in batch.columns)
        insert = f"INSERT INTO {_quoted(self.options.table)} ({names}) VALUES ({values})"  # noqa: S608 - names are quoted
        with self._transaction(job) as database:
            if database.execute(_CLAIM, (writer, self.options.table, batch_id)).rowcount:
                rows = batch.select(*map(_value, batch.schema))
                database.executemany(insert, rows.toLocalIterator())  # one partition at a time

    def _path(self, job: JobContext) -> Path:
        return job.folder / Path(self.options.path).expanduser()

    @contextmanager
    def _transaction(self, job: JobContext) -> Iterator[sqlite3.Connection]:
        """Commit at the end of the block; after an error nothing of it remains.

        The connection is for one call: Spark may make the next one from another thread.
        """
        with closing(sqlite3.connect(self._path(job), timeout=_BUSY, isolation_level=None)) as database, database:
            database.execute("BEGIN IMMEDIATE")
            yield database


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _type(field: StructField) -> str:
    return _TYPES.get(field.dataType.simpleString(), "TEXT")


def _value(field: StructField) -> Column:
    column = column_named(field.name)
    return column.cast("string") if _type(field) == "TEXT" else column
