"""A PostgreSQL table as one attempt of a job writes it: its ledger row, its staging table, and the transaction.

The ledger has one row for each job and table: the fence, a number that each attempt raises when it opens, and the last
micro-batch that was written, by query and id. All that an attempt changes, but for copying rows into staging, it
changes while it holds the lock on that row, having seen that the fence is still its own. So when a later attempt has
opened, nothing of an earlier one can come any more.

Statements with names of the user's have no parameters, but literals: psycopg takes a % in a name for a placeholder.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jobpipe.errors import CheckpointTooOld, ConfigError, DataLoss, Fenced, LinkError, SchemaMismatch
from jobpipe.pipelines.postgres import PostgresDatabase
from jobpipe.pipelines.sinks.jdbc_rows import DELETED, ORDER, TAG, Copied, CopyOrder

if TYPE_CHECKING:
    from psycopg import sql

    from jobpipe.pipelines.postgres import Connection

log = logging.getLogger(__name__)

MAKING = 0x6A6F627069706521  # key of the advisory lock that is held while a table is made
_FIND = """
    SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s
"""
_COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
# Whole, at once, and over columns alone: others cannot serve ON CONFLICT.
_UNIQUE = """
    SELECT ARRAY(
        SELECT a.attname FROM unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
        WHERE k.place <= i.indnkeyatts ORDER BY k.place
    )::text[]
    FROM pg_index i
    WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
        AND i.indpred IS NULL AND i.indexprs IS NULL
    ORDER BY i.indisprimary DESC, i.indexrelid
"""


@dataclass(frozen=True)
class TargetPlan:
    """What is to be written, and where.

    Attributes:
        schema, ledger_schema: None is the server's current one, and that of the table.
        keys: columns that tell rows apart.
        columns: what is written; with the types in which missing tables get them.
        order_type: of the value that tells which row of a key is the last; None without.
        deletes: whether rows can delete their key.
        create: whether to make a table that is missing.
    """

    database: PostgresDatabase
    job: str
    schema: str | None
    table: str
    ledger_schema: str | None
    ledger: str
    keys: tuple[str, ...]
    columns: Mapping[str, str]
    order_type: str | None = None
    deletes: bool = False
    create: bool = False

    def open(self) -> Target:
        """Take the table over: from now on attempts that opened before are shut out.

        Raises:
            ConfigError: table, columns or keys are not as the options say; earlier attempts are not shut out then.
            LinkError, NotAuthorized: the database cannot be reached, or refuses.
        """
        with self.database.connection(f"jobpipe {self.job}") as connection:
            with self.database.transaction(connection):
                schema = self.schema or _current_schema(connection)
                ledger = (self.ledger_schema or schema, self.ledger)
                self._make_missing(connection, (schema, self.table), ledger)
            with self.database.transaction(connection):
                types = self._check(connection, schema)
                return Target.take(connection, self, (schema, self.table), ledger, types)

    def _make_missing(self, connection: Connection, table: tuple[str, str], ledger: tuple[str, str]) -> None:
        from psycopg import sql

        make = [name for name in (ledger, table) if connection.execute(_FIND, name).fetchone() is None]
        if not self.create:
            make = [name for name in make if name != table]
        if not make:
            return
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [MAKING])  # two that make one at once would fail
        if ledger in make:
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (job text, target text, fence bigint NOT NULL, query text, "
                    "batch bigint, written_at timestamp with time zone, PRIMARY KEY (job, target))"
                ).format(sql.Identifier(*ledger))
            )
        if table in make:
            columns = [
                sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in self.columns.items()
            ]
            statement = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))")
            connection.execute(statement.format(sql.Identifier(*table), _list(columns), _names(self.keys)))
            log.info("made table %s with primary key %s", ".".join(table), ", ".join(self.keys))

    def _check(self, connection: Connection, schema: str) -> dict[str, str]:
        """Return the types of the table's columns; see that it has those of the rows, and the keys."""
        called = f"{schema}.{self.table}"
        found = connection.execute(_FIND, [schema, self.table]).fetchone()
        if found is None:
            what = f"there is no table {called} in {self.database.name}; make it, or let create: true make it"
            raise ConfigError(what, key="table", table=called)
        if found[1] not in ("r", "p"):
            raise ConfigError(f"{called} is not a table, but a view or the like", key="table", table=called)
        types: dict[str, str] = dict(connection.execute(_COLUMNS, found[:1]).fetchall())
        if missing := [name for name in self.columns if name not in types]:
            what = f"table {called} has no column {', '.join(missing)}; it has {', '.join(types)}"
            raise ConfigError(f"{what}; option columns says which ones to write", key="columns", columns=missing)
        unique = [tuple(names) for (names,) in connection.execute(_UNIQUE, found[:1]).fetchall()]
        if not any(set(names) == set(self.keys) for names in unique):
            there = " and ".join(f"({', '.join(names)})" for names in unique) or "none"
            what = f"table {called} has no primary key or unique constraint on ({', '.join(self.keys)})"
            raise ConfigError(f"{what}; those it has: {there}", key="keys", table=called)
        return {name: types[name] for name in self.columns}


@dataclass(frozen=True)
class Target:
    """A table that this attempt has taken over.

    Attributes:
        table, ledger, staging: schema and name.
        fence: of this attempt.
        types: of the table's columns.
    """

    plan: TargetPlan
    table: tuple[str, str]
    ledger: tuple[str, str]
    staging: tuple[str, str]
    fence: int
    types: Mapping[str, str] = field(repr=False)

    @classmethod
    def take(
        cls,
        connection: Connection,
        plan: TargetPlan,
        table: tuple[str, str],
        ledger: tuple[str, str],
        types: Mapping[str, str],
    ) -> Target:
        """Raise the fence, and make a staging table: of what is left there nothing counts."""
        from psycopg import sql

        staging = (ledger[0], f"jobpipe_staging_{hashlib.sha256(repr((plan.job, table)).encode()).hexdigest()[:32]}")
        raised = sql.SQL(
            "INSERT INTO {} AS known (job, target, fence) VALUES ({}, {}, 1) "
            "ON CONFLICT (job, target) DO UPDATE SET fence = known.fence + 1 RETURNING fence"
        )
        (fence,) = _row(connection, raised.format(sql.Identifier(*ledger), plan.job, ".".join(table)))
        extra = [sql.SQL("NULL::uuid AS {}").format(sql.Identifier(TAG))]
        if plan.deletes:
            extra.append(sql.SQL("false AS {}").format(sql.Identifier(DELETED)))
        if plan.order_type is not None:
            # As Spark compares: texts by their bytes.
            collation = sql.SQL(' COLLATE "C"' if plan.order_type == "text" else "")
            order_type = sql.SQL(plan.order_type)
            extra.append(sql.SQL("NULL::{}{} AS {}").format(order_type, collation, sql.Identifier(ORDER)))
        name, source = sql.Identifier(*staging), sql.Identifier(*table)
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))
        # Types and collations of the table, so that keys are told apart as there; none of its constraints.
        statement = sql.SQL("CREATE UNLOGGED TABLE {} AS SELECT {}, {} FROM {} WITH NO DATA")
        connection.execute(statement.format(name, _names(plan.columns), _list(extra), source))
        about = f"Rows of jobpipe's job {plan.job} on their way into {'.'.join(table)}"
        connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(name, sql.Literal(about)))
        return cls(plan, table, ledger, staging, fence, types)

    @property
    def order(self) -> CopyOrder:
        """What tasks are told."""
        deleted, order = ((DELETED,) if self.plan.deletes else ()), ((ORDER,) if self.plan.order_type else ())
        columns = (*self.plan.columns, *deleted, *order)
        return CopyOrder(self.plan.database, f"jobpipe {self.plan.job} task", self.staging, columns)

    def admit(self, query: str, batch_id: int) -> bool:
        """Return whether a micro-batch is to be written, with an empty staging table; False if it was written.

        Raises:
            Fenced: a later attempt has opened.
            CheckpointTooOld, DataLoss: the last one that was written is a later one, or not the one before.
        """
        from psycopg import sql

        database, name = self.plan.database, sql.Identifier(*self.staging)
        with database.connection(f"jobpipe {self.plan.job}") as connection, database.transaction(connection):
            if self._is_written(connection, query, batch_id):
                return False
            if _row(connection, sql.SQL("SELECT EXISTS (SELECT FROM {})").format(name))[0]:
                connection.execute(sql.SQL("TRUNCATE {}").format(name))
        return True

    def commit(self, query: str, batch_id: int, copied: Copied) -> None:
        """Write what tasks copied, and note that, in one transaction.

        Raises:
            Fenced: a later attempt has opened.
            SchemaMismatch: the table cannot take the rows.
            LinkError: another attempt may work; whether this one did, the ledger knows.
        """
        application, database = f"jobpipe {self.plan.job}", self.plan.database
        with (
            database.connection(application, self.plan.columns) as connection,
            database.transaction(connection),
        ):
            if self._is_written(connection, query, batch_id):
                return
            counts = self._merge(connection, copied) if copied.rows else (0, 0)
            self._note(connection, query, batch_id)
        log.info("%s: batch %d: %d rows written, %d deleted", ".".join(self.table), batch_id, *counts)

    def _is_written(self, connection: Connection, query: str, batch_id: int) -> bool:
        """Lock the ledger's row until the end of the transaction; return whether it has the micro-batch."""
        from psycopg import sql

        called = ".".join(self.table)
        statement = sql.SQL("SELECT fence, query, batch FROM {} WHERE job = {} AND target = {} FOR UPDATE")
        row = connection.execute(statement.format(sql.Identifier(*self.ledger), self.plan.job, called)).fetchone()
        if row is None or row[0] != self.fence:
            now = "the row of the ledger is gone" if row is None else f"a later one has fence {row[0]}"
            what = f"job {self.plan.job} no longer writes to {called}: this attempt has fence {self.fence}, and {now}"
            raise Fenced(what, job=self.plan.job, table=called, fence=self.fence)
        _, last_query, last = row
        if last_query != query or last is None:
            return False
        if batch_id < last:
            what = (
                f"query {query} comes with batch {batch_id}, but {called} has all up to batch {last}: the checkpoint "
            )
            raise CheckpointTooOld(f"{what}is an old copy; use the newest, or a new one", table=called, last=last)
        if batch_id > last + 1:
            what = f"query {query} comes with batch {batch_id}, but of the earlier ones {called} has only those up to "
            remedy = (
                f"batch {last}: was the database restored, or did the job run without this sink? To continue without "
                f"them, set query to NULL in its row of {'.'.join(self.ledger)}"
            )
            raise DataLoss(what + remedy, table=called, last=last)
        return bool(batch_id == last)

    def _merge(self, connection: Connection, copied: Copied) -> tuple[int, int]:
        """Write and delete; return how many rows."""
        from psycopg import sql

        plan = self.plan
        parts: dict[str, sql.Composable] = {
            "staging": sql.Identifier(*self.staging),
            "table": sql.Identifier(*self.table),
            "ours": sql.SQL("{} = ANY ({}::uuid[])").format(sql.Identifier(TAG), list(copied.tags)),
            "deleted": sql.Identifier(DELETED),
            "keys": _names(plan.keys),
            "columns": _names(plan.columns),
        }
        last_first = sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(ORDER))
        self._check_staged(connection, copied, parts)
        self._check_unique(connection, {**parts, "order": last_first if plan.order_type else sql.SQL("1")})
        parts["order"] = _list([parts["keys"], *([last_first] if plan.order_type else [])])
        parts["rows"] = sql.SQL(
            "(SELECT DISTINCT ON ({keys}) * FROM {staging} WHERE {ours} ORDER BY {order}) new"
        ).format(**parts)
        deleted = 0
        if plan.deletes:
            parts["same"] = sql.SQL(" AND ").join(
                sql.SQL("old.{0} = new.{0}").format(sql.Identifier(key)) for key in plan.keys
            )
            statement = sql.SQL("DELETE FROM {table} AS old USING {rows} WHERE new.{deleted} AND {same}")
            deleted = connection.execute(statement.format(**parts)).rowcount
        others = [sql.Identifier(name) for name in plan.columns if name not in plan.keys]
        values = _list([sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in others])
        parts["change"] = sql.SQL("UPDATE SET {}").format(values) if others else sql.SQL("NOTHING")
        parts["which"] = sql.SQL("WHERE NOT new.{deleted}").format(**parts) if plan.deletes else sql.SQL("")
        statement = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM {rows} {which} ON CONFLICT ({keys}) DO {change}"
        )
        written = connection.execute(statement.format(**parts)).rowcount
        connection.execute(sql.SQL("TRUNCATE {staging}").format(**parts))
        return written, deleted

    def _check_staged(self, connection: Connection, copied: Copied, parts: Mapping[str, sql.Composable]) -> None:
        """See that all rows are there, each with a key."""
        from psycopg import sql

        empty = [sql.SQL("count(*) FILTER (WHERE {} IS NULL)").format(sql.Identifier(key)) for key in self.plan.keys]
        statement = sql.SQL("SELECT count(*), {empty} FROM {staging} WHERE {ours}")
        found = _row(connection, statement.format(**parts, empty=_list(empty)))
        if found[0] != copied.rows:
            name = ".".join(self.staging)
            what = f"of {copied.rows} rows in the staging table {name} {found[0]} are left: did the server restart?"
            raise LinkError(what, table=name)
        if bad := {key: count for key, count in zip(self.plan.keys, found[1:], strict=True) if count}:
            counts = ", ".join(f"{key} in {count} rows" for key, count in bad.items())
            what = f"key columns without a value: {counts}; filter such rows out, or give other keys"
            raise SchemaMismatch(what, columns=list(bad), table=".".join(self.table))

    def _check_unique(self, connection: Connection, parts: Mapping[str, sql.Composable]) -> None:
        """See that for each key one row is the last; rows that are equal in all that is written are one."""
        from psycopg import sql

        several = sql.SQL("SELECT EXISTS (SELECT FROM {staging} WHERE {ours} GROUP BY {keys} HAVING count(*) > 1)")
        if not _row(connection, several.format(**parts))[0]:
            return
        written = [*self.plan.columns, *([DELETED] if self.plan.deletes else [])]
        differing = sql.SQL(
            'SELECT count(*) FROM (SELECT FROM (SELECT {keys}, ROW({written})::text COLLATE "C" AS _jobpipe_text, '
            "rank() OVER (PARTITION BY {keys} ORDER BY {order}) AS _jobpipe_rank "
            "FROM {staging} WHERE {ours}) AS ranked WHERE _jobpipe_rank = 1 "
            "GROUP BY {keys} HAVING min(_jobpipe_text) <> max(_jobpipe_text)) AS several"
        )
        (count,) = _row(connection, differing.format(**parts, written=_names(written)))
        if count:
            keys, ordered = ", ".join(self.plan.keys), self.plan.order_type is not None
            which = "that differ, and the same order-by value" if ordered else "that differ"
            remedy = "give an order-by column that tells them apart" if ordered else "order-by can say which one counts"
            what = f"{count} keys ({keys}) have several rows in the micro-batch {which}; {remedy}, or make them one"
            raise SchemaMismatch(what, columns=list(self.plan.keys), table=".".join(self.table))

    def _note(self, connection: Connection, query: str, batch_id: int) -> None:
        from psycopg import sql

        statement = sql.SQL("UPDATE {} SET query = {}, batch = {}, written_at = now() WHERE job = {} AND target = {}")
        ledger, called = sql.Identifier(*self.ledger), ".".join(self.table)
        connection.execute(statement.format(ledger, query, batch_id, self.plan.job, called))


def _current_schema(connection: Connection) -> str:
    (found,) = _row(connection, "SELECT current_schema()")
    if found is None:
        raise ConfigError("the search path of the database names no schema; write table: schema.table", key="table")
    return str(found)


def _row(connection: Connection, statement: Any) -> tuple[Any, ...]:
    """Return the only row."""
    found = connection.execute(statement).fetchone()
    assert found is not None  # noqa: S101 - such statements have one
    return found


def _names(names: Sequence[str] | Mapping[str, str]) -> sql.Composed:
    from psycopg import sql

    return _list([sql.Identifier(name) for name in names])


def _list(parts: Sequence[sql.Composable]) -> sql.Composed:
    from psycopg import sql

    return sql.SQL(", ").join(parts)
