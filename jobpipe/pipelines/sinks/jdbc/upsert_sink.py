"""Sink ``jdbc-upsert``: rows into a table of a database, by key, exactly once.

Tasks copy the rows of a micro-batch into a staging table; then the driver, in one transaction, checks that no later
attempt has begun and that the micro-batch was not written, writes and deletes by key, and notes the micro-batch in a
ledger. :mod:`jobpipe.pipelines.sinks.jdbc.upsert_table` has the rules, a module for each database the statements, and
:mod:`~jobpipe.pipelines.sinks.jdbc.staging_copy` the tasks. Tasks are given the reference to the password, and read the
secret where they run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from jobpipe.errors import ConfigError
from jobpipe.pipelines.databases.database_api import Database, TableName, split_name
from jobpipe.pipelines.databases.database_urls import DatabaseUrl, database_of
from jobpipe.pipelines.databases.postgres import PostgresDatabase
from jobpipe.pipelines.databases.sqlite import SqliteDatabase
from jobpipe.pipelines.file.field_types import Columns, Duration, Flag, SecretReference, Text
from jobpipe.pipelines.file.problems import OptionError
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.api import DeliveryGuarantee, PluginOptions, Sink
from jobpipe.pipelines.plugins.job_context import JobContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jobpipe.pipelines.sinks.jdbc.portable_sql import TargetPlan
    from jobpipe.pipelines.sinks.jdbc.upsert_table import Target

log = logging.getLogger(__name__)


class JdbcUpsertSink(Sink):
    """Writes rows into a table of PostgreSQL, MySQL, MariaDB or SQLite, by key.

    Rows with a new key are inserted, others replace the row of their key, and those for which delete-when is true
    delete it. Needs pip install 'psycopg[binary]>=3.2' for PostgreSQL, 'pymysql>=1.2' for MySQL and MariaDB.
    """

    type = "jdbc-upsert"
    identifying: ClassVar[frozenset[str] | None] = frozenset({"url", "table", "ledger"})
    promise = DeliveryGuarantee(
        True, "one transaction writes a micro-batch and notes its id, if no later attempt has begun"
    )
    idempotent: ClassVar[bool] = True

    class Options(PluginOptions):
        """Where, what, and by which key."""

        url: DatabaseUrl = Field(
            description="The database, as in JDBC. Parameters: of PostgreSQL, those of libpq; of MySQL and MariaDB, "
            "sslMode and serverSslCert; SQLite has none, and is for jobs with master: local."
        )
        table: TableName = Field(description="The table. Names are as in the database: case matters.")
        user: Text | None = Field(default=None, description="Name of the user in the database.")
        password: SecretReference | None = Field(
            default=None,
            description="Password of the user. The driver and each task read it, so env: and file: must exist there.",
        )
        keys: Columns = Field(description="The columns of the primary key, or of a unique constraint.")
        columns: Columns | None = Field(
            default=None, description="Columns that are written; by default all columns of the rows."
        )
        delete_when: Text | None = Field(
            default=None, description="A condition in Spark's SQL: a row for which it is true deletes its key."
        )
        order_by: Text | None = Field(
            default=None,
            description="If a micro-batch has several rows of a key, the one with the highest value in this column "
            "counts. Without it, several rows are an error, unless they are equal.",
        )
        create: Flag = Field(default=False, description="Make the table if it is missing, with keys as primary key.")
        ledger: TableName = Field(
            default="jobpipe_ledger",
            description="The table that notes what was written; staging is in its schema. Without a schema it is in "
            "that of the table.",
        )
        connect_timeout: Duration = Field(default=30.0, description="Timeout of a connection.")
        statement_timeout: Duration = Field(
            default=600.0, description="Timeout of a statement and of a lock; 0 = none."
        )

    options: Options

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._target: Target | None = None

    def check(self, mode: Mode) -> Iterable[OptionError]:
        """Keys are written too."""
        given = self.options
        if isinstance(self._database(), SqliteDatabase):
            for key, value in (("user", given.user), ("password", given.password)):
                if value is not None:
                    yield OptionError(key, "SQLite has no users", "leave it out: the rights are those of the file")
        if isinstance(self._database(), PostgresDatabase):
            for key, name in (("table", given.table), ("ledger", given.ledger)):
                if any(len(part.encode()) > PostgresDatabase.name_bytes for part in name.split(".")):
                    yield OptionError(key, "PostgreSQL cuts off names of more than 63 bytes", "give a shorter one")
        if given.table == given.ledger:
            yield OptionError("ledger", "it is the table itself", "give the ledger a name of its own")
        if given.columns is not None and (missing := [key for key in given.keys if key not in given.columns]):
            yield OptionError("columns", f"the keys {', '.join(missing)} are not among them", "add them")
        if given.order_by in given.keys:
            yield OptionError("order-by", "all rows of a key have the same value there", "give another column")

    def check_columns(self, frame: DataFrame, job: JobContext) -> None:
        """See that keys, columns, order-by and delete-when fit the rows, and that the database has the types."""
        self._plan(frame, job)

    def open(self, frame: DataFrame, job: JobContext) -> None:
        """Take the table over from earlier attempts."""
        from jobpipe.spark.session.classic_session import require_classic

        require_classic(frame.sparkSession, "jdbc-upsert")
        database = self._database()
        if isinstance(database, SqliteDatabase) and not str(frame.sparkSession.sparkContext.master).startswith("local"):
            what = f"SQLite at {database.name} is a file of this host, and tasks run on others; use master: local[N]"
            raise ConfigError(f"{what}, or another database", key="url")
        self._target = _target_of(database).open(self._plan(frame, job))
        log.info("%s has fence %d of %s", job.name, self._target.fence, ".".join(self._target.table))

    def write(self, batch: DataFrame, batch_id: int, job: JobContext) -> None:
        """Write a micro-batch, if it was not written."""
        from jobpipe.pipelines.sinks.jdbc.staging_copy import copy_rows

        if self._target is None:
            self.open(batch, job)
        target = self._target
        assert target is not None  # noqa: S101 - open made it
        query = _query_of(batch, job)
        if not target.admit(query, batch_id):
            log.info("%s: batch %d is written already", ".".join(target.table), batch_id)
            return
        target.commit(query, batch_id, copy_rows(self._staged(batch, target), target.order))

    def close(self, *, ended: bool) -> None:
        """Forget the table; no connection is open between two calls."""
        self._target = None

    def _database(self) -> Database:
        given = self.options
        return database_of(given.url, given.user, given.password, given.connect_timeout, given.statement_timeout)

    def _plan(self, frame: DataFrame, job: JobContext) -> TargetPlan:
        """Return what is to be written of rows as those of ``frame``; opens nothing."""
        from jobpipe.pipelines.sinks.jdbc.portable_sql import TargetPlan
        from jobpipe.pipelines.sinks.jdbc.staging_copy import require_columns

        given, there, database = self.options, frame.columns, self._database()
        target = _target_of(database)
        columns = given.columns or tuple(there)
        require_columns("columns", columns, there)
        require_columns("keys", given.keys, columns)
        kinds = {column.name: column.dataType for column in frame.schema.fields}
        ordered = None
        if given.order_by is not None:
            require_columns("order-by", [given.order_by], there)
            kind = kinds[given.order_by]
            ordered = target.order_type(kind)
            if ordered is None:
                what = f"order-by names {given.order_by}, whose type has no order here: {kind.simpleString()}"
                raise ConfigError(what, key="order-by")
        if given.delete_when is not None:
            _check_condition(frame, given.delete_when)
        (schema, table), (ledger_schema, ledger) = split_name(given.table), split_name(given.ledger)
        return TargetPlan(
            database=database,
            job=job.name,
            schema=schema,
            table=table,
            ledger_schema=ledger_schema,
            ledger=ledger,
            keys=given.keys,
            columns={name: target.type_of(name, kinds[name], key=name in given.keys) for name in columns},
            order_type=ordered,
            deletes=given.delete_when is not None,
            create=given.create,
        )

    def _staged(self, batch: DataFrame, target: Target) -> DataFrame:
        """Return the rows as tasks copy them."""
        from pyspark.sql import functions as sf

        from jobpipe.pipelines.sinks.jdbc.staging_copy import hash_of

        kinds = {column.name: column.dataType for column in batch.schema.fields}
        chosen = [target.column(name, kinds[name]) for name in target.plan.columns]
        if self.options.delete_when is not None:
            chosen.append(sf.coalesce(sf.expr(self.options.delete_when), sf.lit(False)))
        written = tuple(chosen)
        if self.options.order_by is not None:
            chosen.append(target.order_column(self.options.order_by, kinds[self.options.order_by]))
        if target.hashes:
            chosen.append(hash_of(written))
        # Spark's mapInArrow reads names as expressions.
        return batch.select(*(column.alias(f"c{at}") for at, column in enumerate(chosen)))


def _target_of(database: Database) -> type[Target]:
    """Return the class of a database's tables; each needs PySpark."""
    from jobpipe.pipelines.sinks.jdbc.mysql_table import MySqlTarget
    from jobpipe.pipelines.sinks.jdbc.postgres_table import PostgresTarget
    from jobpipe.pipelines.sinks.jdbc.sqlite_table import SqliteTarget

    return next(kind for kind in (PostgresTarget, MySqlTarget, SqliteTarget) if kind.product == database.product)


def _query_of(batch: DataFrame, job: JobContext) -> str:
    """Return what tells this micro-batch, with its id: the query's id, which is the checkpoint's, or the run's."""
    from jobpipe.spark.termination.query_stop import QUERY_ID

    if job.mode is Mode.BATCH:
        return job.run.id
    query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if query is None:
        raise ConfigError("jdbc-upsert writes a stream's micro-batches in foreachBatch, and there is no query here")
    return query


def _check_condition(frame: DataFrame, condition: str) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as sf

    try:
        kind = frame.select(sf.expr(condition)).schema.fields[0].dataType.simpleString()
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"delete-when cannot be used on these rows: {reason}", key="delete-when") from error
    if kind != "boolean":
        raise ConfigError(f"delete-when is no condition: its type is {kind}", key="delete-when")
