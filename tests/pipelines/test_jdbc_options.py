"""Sink jdbc-upsert without a database: its options, and what is said of wrong ones."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as st

from jobpipe.config.secrets import Secret
from jobpipe.errors import ConfigError, UnsupportedType
from jobpipe.pipelines.postgres import PostgresDatabase, split_name
from jobpipe.pipelines.sinks.jdbc import JdbcUpsertSink
from jobpipe.pipelines.sinks.jdbc_rows import type_of
from tests.pipelines.conftest import Write, loaded, problems

FILE = """
pipeline: {{name: x{mode}}}
source: {{type: csv, path: in, schema: id int}}
sink: {{type: jdbc-upsert, {options}}}
"""
GOOD = {"url": "jdbc:postgresql://db:5432/shop", "table": "shop.orders", "keys": "[id]", "password": "env:SHOP"}


def text(mode: str = "", **options: str | None) -> str:
    given = {**GOOD, **{name.replace("_", "-"): value for name, value in options.items()}}
    shown = ", ".join(f"{name}: {value}" for name, value in given.items() if value is not None)
    return FILE.format(mode=mode, options=shown)


def sink_of(path: Path) -> Any:
    (stage,) = loaded(path).jobs["x"].sinks
    return stage.plugin


def test_defaults(write: Write) -> None:
    sink = sink_of(write(text()))
    assert isinstance(sink, JdbcUpsertSink)
    given = sink.options
    assert (given.url, given.table, given.keys) == ("postgresql://db:5432/shop", "shop.orders", ("id",))
    assert given.password == Secret("env:SHOP")
    assert (given.columns, given.delete_when, given.order_by, given.create) == (None, None, None, False)
    assert (given.ledger, given.connect_timeout, given.statement_timeout) == ("jobpipe_ledger", 30.0, 600.0)
    assert sink.promise.exactly_once
    assert sink.idempotent


def test_both_modes(write: Write) -> None:
    for mode in ("", ", execution.runtime-mode: BATCH"):
        sink_of(write(text(mode)))


def test_it_may_be_one_of_several(write: Write) -> None:
    """It takes a micro-batch twice without writing it twice."""
    sink = text().splitlines()[-1].removeprefix("sink: ")
    loaded(write(f"pipeline: {{name: x}}\nsource: {{type: rate}}\nsinks: [{sink}, {sink.replace('shop.o', 'o')}]\n"))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db/shop",
        "postgres://db/shop",
        "jdbc:postgresql://me@a:5432,b:5432/shop?target_session_attrs=read-write",
        "postgresql://[::1]:5432/shop?sslmode=verify-full",
    ],
)
def test_good_urls(write: Write, url: str) -> None:
    expected = "postgresql://" + url.partition("://")[2]
    assert sink_of(write(text(url=f"'{url}'"))).options.url == expected


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:mysql://db/shop",
        "postgresql://db",
        "postgresql:///",
        "db:5432/shop",
        "postgresql://db/my shop",
        "postgresql://db/shop#part",
    ],
)
def test_wrong_urls(write: Write, url: str) -> None:
    """The remedy says how they look."""
    (problem,) = problems(write(text(url=f"'{url}'")))
    assert problem.key == "sink.url"
    assert "jdbc:postgresql://HOST:PORT/DATABASE" in problem.remedy


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@db/shop",
        "jdbc:postgresql://me:hun/ter2@db/shop",
        "mysql://me:hunter2@db/shop",
        "postgresql://db/shop?user=me&password=hunter2",
        "postgresql://db/shop?sslPassword=hunter2",
        "postgresql://db/shop?p%61ssword=hunter2",
    ],
)
def test_urls_with_a_password(write: Write, url: str) -> None:
    """They are not shown."""
    (problem,) = problems(write(text(url=f"'{url}'")))
    assert (problem.key, problem.what) == ("sink.url", "it has a password in it")
    assert "ter2" not in str(problem)


@pytest.mark.parametrize(
    ("options", "key", "what"),
    [
        ({"password": "hunter2"}, "password", "a reference to a secret"),
        ({"table": "a.b.c"}, "table", "schema.table, or table"),
        ({"table": "'\"a\"'"}, "table", "schema.table, or table"),
        ({"ledger": "''"}, "ledger", "schema.table, or table"),
        ({"keys": None}, "keys", "The columns of the primary key"),
        ({"keys": "[id, id]"}, "keys", "names of columns"),
        ({"keys": "[]"}, "keys", "names of columns"),
        ({"columns": "[name]"}, "columns", "the keys id are not among them"),
        ({"order_by": "id"}, "order-by", "all rows of a key have the same value there"),
        ({"delete_when": "''"}, "delete-when", "a text"),
        ({"statement_timeout": "soon"}, "statement-timeout", "a time, such as"),
        ({"tabel": "x"}, "tabel", "did you mean table?"),
    ],
)
def test_wrong_options(write: Write, options: dict[str, str | None], key: str, what: str) -> None:
    (problem,) = problems(write(text(**options)))
    assert problem.key == f"sink.{key}"
    assert what in str(problem)
    assert "hunter2" not in str(problem)


def test_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said how to install it."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with (
        pytest.raises(ConfigError, match=r"pip install 'psycopg\[binary\]>=3\.2'"),
        PostgresDatabase("postgresql://db/shop").connection("test"),
    ):
        pass


def test_a_database_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are given it."""
    monkeypatch.setenv("SHOP", "hunter2")
    database = PostgresDatabase("postgresql://me@db:1/shop?sslmode=require", "me", Secret("env:SHOP"))
    assert b"hunter2" not in pickle.dumps(database)
    assert "hunter2" not in repr(database)
    assert database.name == "db:1/shop"


def test_names() -> None:
    assert (split_name("a.b"), split_name("b")) == (("a", "b"), (None, "b"))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (st.ByteType(), "smallint"),
        (st.DecimalType(7, 3), "numeric(7,3)"),
        (st.TimestampType(), "timestamp with time zone"),
        (st.TimestampNTZType(), "timestamp without time zone"),
        (st.ArrayType(st.ArrayType(st.IntegerType())), "integer[]"),
        (st.ArrayType(st.StructType([])), "jsonb"),
        (st.MapType(st.StringType(), st.IntegerType()), "jsonb"),
        (st.VarcharType(5), "text"),
    ],
)
def test_types(kind: st.DataType, expected: str) -> None:
    assert type_of("a", kind) == expected


def test_types_that_do_not_pass() -> None:
    for kind in (st.NullType(), st.DayTimeIntervalType(), st.ArrayType(st.VariantType())):
        with pytest.raises(UnsupportedType, match=r"column a: type .* cannot be written"):
            type_of("a", kind)
