"""Databases as the tests of sink jdbc-upsert use them: a table, sinks that write to it, and what is in it."""

from __future__ import annotations

import contextlib
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode, TriggerSpec
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sinks.jdbc.upsert_sink import JdbcUpsertSink
from jobpipe.spark.termination.query_stop import QUERY_ID
from tests.databases import postgres
from tests.databases.mariadb import MariaDb
from tests.databases.mysql_server import PASSWORD, SUPERUSER

Rows = list[tuple[Any, ...]]
SCHEMA = "id int, text string, n bigint"


class Tables(ABC):
    """A table ``t`` in a database, and sinks of a job that write to it."""

    text: str
    """The type of a text that may be a key."""
    nocase: str
    """The same, for one that does not tell cases apart."""
    refusal: str
    """In a trigger: refuses a row whose text is ``raise``, with a value of it in the error."""
    cut: str
    """In a trigger before inserts: ends the connection at row 50. SQLite has no connections."""
    mended: str
    """Removes that trigger."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.table(f"id int PRIMARY KEY, text {self.text}, n bigint")

    @abstractmethod
    def sql(self, statement: str) -> Rows:
        """Run a statement; return its rows, if it has any."""

    @abstractmethod
    def where(self) -> dict[str, Any]:
        """Return the sink's options that say where."""

    @abstractmethod
    def stagings(self) -> list[str]:
        """Return the names of the staging tables."""

    @abstractmethod
    def trigger(self, when: str, body: str, table: str = "t") -> None:
        """Make a trigger: ``when`` such as AFTER INSERT, ``body`` one statement."""

    @abstractmethod
    def holding(self) -> contextlib.AbstractContextManager[None]:
        """Hold a lock that a micro-batch of row 1 needs."""

    def named(self, table: str) -> str:
        """Return the name of a table as the sink is given it."""
        return table

    def table(self, columns: str) -> None:
        """Make table ``t`` again."""
        self.sql("DROP TABLE IF EXISTS t")
        self.sql(f"CREATE TABLE t ({columns})")

    def rows(self) -> Rows:
        """Return what is in the table."""
        return self.sql("SELECT * FROM t ORDER BY 1")

    def ledger(self) -> Rows:
        """Return the ledger."""
        return self.sql("SELECT job, target, fence, query, batch FROM jobpipe_ledger ORDER BY 1, 2")

    def context(self, mode: Mode = Mode.STREAMING, job: str = "job", run: str = "run-1") -> JobContext:
        """Return what the sink knows of its job."""
        return JobContext(
            pipeline="p",
            job=job,
            mode=mode,
            storage=str(self.folder / "state"),
            folder=self.folder,
            run=RunValues(run),
            trigger=TriggerSpec.model_validate({"available-now": True}),
        )

    def sink(self, **options: Any) -> JdbcUpsertSink:
        """Return a sink; options have ``_`` for ``-``."""
        given = {
            "table": self.named("t"),
            "keys": "id",
            **self.where(),
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        return JdbcUpsertSink(JdbcUpsertSink.parse(given, self.folder))

    def frame(self, rows: Rows, schema: str = SCHEMA, parts: int = 2) -> DataFrame:
        """Return rows, in partitions."""
        return self.spark.createDataFrame(rows, schema).repartition(parts)

    def opened(self, **options: Any) -> JdbcUpsertSink:
        """Return a sink that has opened, for rows such as those of :meth:`frame`."""
        sink = self.sink(**options)
        sink.open(self.frame([]), self.context())
        return sink

    def write(self, sink: JdbcUpsertSink, batch_id: int, rows: Rows, query: str = "q", **how: Any) -> None:
        """Write a micro-batch, as a query of that id does."""
        self.write_frame(sink, batch_id, self.frame(rows, **how), query)

    def write_frame(self, sink: JdbcUpsertSink, batch_id: int, frame: DataFrame, query: str = "q") -> None:
        """Write a micro-batch, as a query of that id does."""
        context = self.spark.sparkContext
        context.setLocalProperty(QUERY_ID, query)
        try:
            sink.write(frame, batch_id, self.context())
        finally:
            context.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type]


class PostgresTables(Tables):
    """In a schema of PostgreSQL."""

    text = "text"
    nocase = "text COLLATE nocase"
    refusal = "IF new.text = 'raise' THEN RAISE EXCEPTION 'secret of %', new.id; END IF"
    cut = "IF new.id = 50 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF"
    mended = "DROP FUNCTION see_13 CASCADE"

    def __init__(self, spark: SparkSession, folder: Path, server: postgres.Postgres, schema: str) -> None:
        self.postgres = server
        self.schema = schema
        self.secret = folder / "password"
        self.secret.write_text(postgres.PASSWORD)
        self.secret.chmod(0o600)
        self.sql("CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        super().__init__(spark, folder)

    def sql(self, statement: str) -> Rows:
        """Run a statement; return its rows, if it has any."""
        with self.postgres.connect() as connection:
            connection.execute(f"SET search_path = {self.schema}")
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def where(self) -> dict[str, Any]:
        """Return the sink's options that say where."""
        return {"url": self.postgres.url, "user": postgres.SUPERUSER, "password": f"file:{self.secret}"}

    def named(self, table: str) -> str:
        """Return the name of a table as the sink is given it."""
        return f"{self.schema}.{table}"

    def stagings(self) -> list[str]:
        """Return the names of the staging tables."""
        found = self.sql(
            f"SELECT relname FROM pg_class WHERE relnamespace = '{self.schema}'::regnamespace "  # noqa: S608
            "AND relname LIKE 'jobpipe_staging_%' AND relkind = 'r'"
        )
        return [str(name) for (name,) in found]

    def table(self, columns: str) -> None:
        """Make table ``t`` again."""
        self.sql(f"DROP TABLE IF EXISTS t CASCADE; CREATE TABLE t ({columns})")

    def trigger(self, when: str, body: str, table: str = "t") -> None:
        """Make a trigger, which finds the schema's tables."""
        name = f"see_{len(when)}"
        self.sql(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path = {self.schema} "
            f"AS $f$ BEGIN {body}; RETURN new; END $f$; "
            f"CREATE TRIGGER {name} {when} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()"
        )

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Hold a lock of the table."""
        with self.postgres.connect() as other, other.transaction():
            other.execute(f"LOCK TABLE {self.schema}.t")
            yield


class MariaDbTables(Tables):
    """In a database of MariaDB."""

    text = "varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    nocase = "varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    refusal = "IF new.text = 'raise' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'secret of 1'; END IF"
    cut = "IF new.id = 50 THEN KILL CONNECTION_ID(); END IF"
    mended = "DROP TRIGGER see_13"

    def __init__(self, spark: SparkSession, folder: Path, server: MariaDb, database: str) -> None:
        self.server = server
        self.database = database
        self.secret = folder / "password"
        self.secret.write_text(PASSWORD)
        self.secret.chmod(0o600)
        super().__init__(spark, folder)

    def sql(self, statement: str) -> Rows:
        """Run a statement; return its rows, if it has any."""
        return self.server.query(statement, self.database)

    def where(self) -> dict[str, Any]:
        """Return the sink's options that say where."""
        return {
            "url": self.server.url(self.database),
            "user": SUPERUSER,
            "password": f"file:{self.secret}",
        }

    def stagings(self) -> list[str]:
        """Return the names of the staging tables."""
        return [str(name) for (name,) in self.sql("SHOW TABLES LIKE 'jobpipe\\_staging\\_%'")]

    def trigger(self, when: str, body: str, table: str = "t") -> None:
        """Make a trigger."""
        self.sql(f"CREATE TRIGGER see_{len(when)} {when} ON {table} FOR EACH ROW {body}")

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Hold a lock of row 1."""
        with contextlib.closing(self.server.connect(self.database)) as other:
            other.begin()
            other.cursor().execute("SELECT * FROM t WHERE id = 1 FOR UPDATE")
            yield


class SqliteTables(Tables):
    """In a file of SQLite."""

    text = "text"
    nocase = "text COLLATE NOCASE"
    refusal = "SELECT RAISE(ABORT, 'secret of 1') WHERE new.text = 'raise'"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.file = folder / "rows of #50%.db"
        super().__init__(spark, folder)

    def sql(self, statement: str) -> Rows:
        """Run a statement; return its rows, if it has any."""
        with contextlib.closing(sqlite3.connect(self.file, timeout=20)) as connection, connection:
            return connection.execute(statement).fetchall()

    def where(self) -> dict[str, Any]:
        """Return the sink's options that say where."""
        return {"url": f"jdbc:sqlite:{self.file}"}

    def stagings(self) -> list[str]:
        """Return the names of the staging tables."""
        return [str(name) for (name,) in self.sql("SELECT name FROM sqlite_master WHERE name LIKE 'jobpipe_staging_%'")]

    def trigger(self, when: str, body: str, table: str = "t") -> None:
        """Make a trigger."""
        self.sql(f"CREATE TRIGGER see_{len(when)} {when} ON {table} FOR EACH ROW BEGIN {body}; END")

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Hold the lock of the file."""
        with contextlib.closing(sqlite3.connect(self.file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
