"""A table as one attempt of a job writes it: its ledger row, its staging table, and the transaction.

The ledger has one row for each job and table: the fence, a number that each attempt raises when it opens, and the last
micro-batch that was written, by query and id. All that an attempt changes, but for copying rows into staging, it
changes while it holds the lock on that row, having seen that the fence is still its own. So when a later attempt has
opened, nothing of an earlier one can come any more.

The rules are here; the SQL is in a module for each database.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from jobpipe.errors import CheckpointTooOld, ConfigError, DataLoss, Fenced, LinkError, SchemaMismatch, UnsupportedType
from jobpipe.pipelines.databases.database_api import Database
from jobpipe.pipelines.sinks.jdbc.staging_copy import DELETED, HASH, ORDER, Copied, CopyOrder, named

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

log = logging.getLogger(__name__)

STAGING = "jobpipe_staging_"


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

    database: Database
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


@dataclass(frozen=True)
class Written:
    """What the ledger knows of a job and a table; query and batch are None before the first micro-batch."""

    fence: int
    query: str | None
    batch: int | None


@dataclass(frozen=True)
class Target(ABC):
    """A table that this attempt has taken over.

    Attributes:
        table, ledger, staging: schema and name.
        fence: of this attempt.
        types: of the table's columns.
    """

    product: ClassVar[str]
    hashes: ClassVar[bool] = False
    """Whether rows are staged with a hash of all that is written of them."""

    plan: TargetPlan
    table: tuple[str, str]
    ledger: tuple[str, str]
    staging: tuple[str, str]
    fence: int
    types: Mapping[str, str] = field(repr=False)

    # -- types ---------------------------------------------------------------------------------------------------------

    @classmethod
    def type_of(cls, name: str, kind: DataType, *, key: bool = False) -> str:
        """Return the type of a column of a missing table, for one of Spark's.

        Raises:
            UnsupportedType: there is none.
        """
        found = cls._type_of(kind, key=key)
        if found is None:
            what = f"column {name}: type {kind.simpleString()} cannot be written to {cls.product}"
            raise UnsupportedType(f"{what}; cast it, or leave it out", column=name, type=kind.simpleString())
        return found

    @classmethod
    @abstractmethod
    def _type_of(cls, kind: DataType, *, key: bool = False) -> str | None: ...

    @classmethod
    @abstractmethod
    def order_type(cls, kind: DataType) -> str | None:
        """Return the type of the value that tells which row of a key is the last, None if it has no order."""

    @classmethod
    def order_column(cls, name: str, kind: DataType) -> Column:
        """Return that value as tasks copy it."""
        return named(name)

    @abstractmethod
    def column(self, name: str, kind: DataType) -> Column:
        """Return a column as tasks copy it."""

    # -- the beginning -------------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def open(cls, plan: TargetPlan) -> Self:
        """Take a table over: from now on attempts that opened before are shut out.

        Raises:
            ConfigError: table, columns or keys are not as the options say; earlier attempts are not shut out then.
            LinkError, NotAuthorized: the database cannot be reached, or refuses.
        """

    @property
    def order(self) -> CopyOrder:
        """What tasks are told."""
        plan, extra = self.plan, []
        if plan.deletes:
            extra.append(DELETED)
        if plan.order_type is not None:
            extra.append(ORDER)
        if self.hashes:
            extra.append(HASH)
        return CopyOrder(plan.database, f"jobpipe {plan.job} task", self.staging, (*plan.columns, *extra))

    # -- a micro-batch -------------------------------------------------------------------------------------------------

    def admit(self, query: str, batch_id: int) -> bool:
        """Return whether a micro-batch is to be written, with an empty staging table; False if it was written.

        Raises:
            Fenced: a later attempt has opened.
            CheckpointTooOld, DataLoss: the last one that was written is a later one, or not the one before.
        """
        database = self.plan.database
        with database.connection(f"jobpipe {self.plan.job}") as connection:
            with database.transaction(connection):
                if self._is_written(connection, query, batch_id):
                    return False
                self._empty(connection)
            self._emptied(connection)
        return True

    def commit(self, query: str, batch_id: int, copied: Copied) -> None:
        """Write what tasks copied, and note that, in one transaction.

        Raises:
            Fenced: a later attempt has opened.
            SchemaMismatch: the table cannot take the rows.
            LinkError: another attempt may work; whether this one did, the ledger knows.
        """
        application, database = f"jobpipe {self.plan.job}", self.plan.database
        with database.connection(application, tuple(self.plan.columns)) as connection:
            with database.transaction(connection):
                if self._is_written(connection, query, batch_id):
                    return
                counts = (0, 0)
                if copied.rows:
                    self._check_staged(connection, copied)
                    self._check_unique(connection, copied)
                    counts = self._merge(connection, copied)
                    self._empty(connection)
                self._note(connection, query, batch_id)
            self._tidy(connection)
        log.info("%s: batch %d: %d rows written, %d deleted", ".".join(self.table), batch_id, *counts)

    def _is_written(self, connection: Any, query: str, batch_id: int) -> bool:
        """Lock the ledger's row until the end of the transaction; return whether it has the micro-batch."""
        called = ".".join(self.table)
        written = self._lock(connection)
        if written is None or written.fence != self.fence:
            now = "the row of the ledger is gone" if written is None else f"a later one has fence {written.fence}"
            what = f"job {self.plan.job} no longer writes to {called}: this attempt has fence {self.fence}, and {now}"
            raise Fenced(what, job=self.plan.job, table=called, fence=self.fence)
        last = written.batch
        if written.query != query or last is None:
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
        return batch_id == last

    def _check_staged(self, connection: Any, copied: Copied) -> None:
        """See that all rows are there, each with a key."""
        count, *empty = self._counts(connection, copied)
        if count != copied.rows:
            name = ".".join(self.staging)
            what = f"of {copied.rows} rows in the staging table {name} {count} are left: did the server restart?"
            raise LinkError(what, table=name)
        if bad := {key: missing for key, missing in zip(self.plan.keys, empty, strict=True) if missing}:
            counts = ", ".join(f"{key} in {missing} rows" for key, missing in bad.items())
            what = f"key columns without a value: {counts}; filter such rows out, or give other keys"
            raise SchemaMismatch(what, columns=list(bad), table=".".join(self.table))

    def _check_unique(self, connection: Any, copied: Copied) -> None:
        """See that for each key one row is the last; rows that are equal in all that is written are one."""
        if count := self._differing(connection, copied):
            keys, ordered = ", ".join(self.plan.keys), self.plan.order_type is not None
            which = "that differ, and the same order-by value" if ordered else "that differ"
            remedy = "give an order-by column that tells them apart" if ordered else "order-by can say which one counts"
            what = f"{count} keys ({keys}) have several rows in the micro-batch {which}; {remedy}, or make them one"
            raise SchemaMismatch(what, columns=list(self.plan.keys), table=".".join(self.table))

    # -- in SQL --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _lock(self, connection: Any) -> Written | None:
        """Lock the ledger's row until the end of the transaction; return it, None if it is gone."""

    @abstractmethod
    def _empty(self, connection: Any) -> None:
        """Remove all rows of staging, as a part of the transaction."""

    def _emptied(self, connection: Any) -> None:  # noqa: B027 - most need nothing
        """Remove them after the transaction, where that cannot be a part of it."""

    def _tidy(self, connection: Any) -> None:  # noqa: B027
        """Do the same after a micro-batch is written."""

    @abstractmethod
    def _counts(self, connection: Any, copied: Copied) -> Sequence[int]:
        """Return how many rows are staged, and for each key, in how many it is null."""

    @abstractmethod
    def _differing(self, connection: Any, copied: Copied) -> int:
        """Return how many keys have several rows that differ, none of which is the last."""

    @abstractmethod
    def _merge(self, connection: Any, copied: Copied) -> tuple[int, int]:
        """Write and delete; return how many rows."""

    @abstractmethod
    def _note(self, connection: Any, query: str, batch_id: int) -> None:
        """Note in the ledger that a micro-batch is written."""


def staging_name(job: str, table: tuple[str, str], length: int) -> str:
    """Return the name of the staging table of a job and a table, with that much of a hash."""
    return STAGING + hashlib.sha256(repr((job, table)).encode()).hexdigest()[:length]


def check_columns(
    plan: TargetPlan, called: str, types: Mapping[str, str], made: Collection[str] = ()
) -> dict[str, str]:
    """Return the types of the columns that are written.

    Args:
        types: of all columns of the table.
        made: those whose values the database makes, and takes none.

    Raises:
        ConfigError: the table lacks one, or makes its values itself.
    """
    if taken := [name for name in plan.columns if name in made]:
        what = f"the database makes the values of {', '.join(taken)} of table {called} (GENERATED ALWAYS)"
        remedy = (
            "leave the columns out by option columns, and give other keys; or make an identity GENERATED BY DEFAULT"
        )
        raise ConfigError(f"{what}, and takes none from rows; {remedy}", key="columns", columns=taken)
    if missing := [name for name in plan.columns if name not in types]:
        what = f"table {called} has no column {', '.join(missing)}; it has {', '.join(types)}"
        raise ConfigError(f"{what}; option columns says which ones to write", key="columns", columns=missing)
    return {name: types[name] for name in plan.columns}


def check_keys(plan: TargetPlan, called: str, unique: Sequence[tuple[str, ...]]) -> None:
    """See that the keys are those of a primary key or unique constraint.

    Raises:
        ConfigError: they are not.
    """
    if not any(set(names) == set(plan.keys) for names in unique):
        there = " and ".join(f"({', '.join(names)})" for names in unique) or "none"
        what = f"table {called} has no primary key or unique constraint on ({', '.join(plan.keys)})"
        raise ConfigError(f"{what}; those it has: {there}", key="keys", table=called)


def missing_table(plan: TargetPlan, called: str) -> ConfigError:
    """Return the error of a table that is not there."""
    what = f"there is no table {called} in {plan.database.name}; make it, or let create: true make it"
    return ConfigError(what, key="table", table=called)


def no_table(called: str) -> ConfigError:
    """Return the error of what is there, and no table."""
    return ConfigError(f"{called} is not a table, but a view or the like", key="table", table=called)
