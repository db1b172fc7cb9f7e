"""Sink jdbc-upsert without a database: its options, and what is said of wrong ones."""

from __future__ import annotations

import pickle
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as st

from jobpipe.config.types.secrets import Secret
from jobpipe.errors import ConfigError, UnsupportedType
from jobpipe.pipelines.databases.database_api import Database, split_name
from jobpipe.pipelines.databases.mysql import MySqlDatabase
from jobpipe.pipelines.databases.postgres import PostgresDatabase
from jobpipe.pipelines.sinks.jdbc.postgres_table import PostgresTarget
from jobpipe.pipelines.sinks.jdbc.upsert_sink import JdbcUpsertSink
from tests.pipelines.conftest import Write, loaded, problems

FILE = """
pipeline: {{name: x}}
execution: {{runtime-mode: {mode}}}
source: {{type: csv, path: in, schema: id int}}
sink: {{type: jdbc-upsert, {options}}}
"""
GOOD = {"url": "jdbc:postgresql://db:5432/shop", "table": "shop.orders", "keys": "[id]", "password": "env:SHOP"}


def text(mode: str = "STREAMING", **options: str | None) -> str:
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
    for mode in ("STREAMING", "BATCH"):
        sink_of(write(text(mode)))


def test_it_may_be_one_of_several(write: Write) -> None:
    """It takes a micro-batch twice without writing it twice."""
    sink = text().splitlines()[-1].removeprefix("sink: ")
    loaded(write(f"pipeline: {{name: x}}\nsource: {{type: rate}}\nsinks: [{sink}, {sink.replace('shop.o', 'o')}]\n"))


@pytest.mark.parametrize(
    ("url", "product"),
    [
        ("postgresql://db/shop", "postgresql"),
        ("postgres://db/shop", "postgresql"),
        ("jdbc:postgresql://me@a:5432,b:5432/shop?target_session_attrs=read-write", "postgresql"),
        ("postgresql://[::1]:5432/shop?sslmode=verify-full", "postgresql"),
        ("jdbc:mysql://db/shop", "mysql"),
        ("mariadb://[::1]:3307/shop?sslMode=verify-full&serverSslCert=/etc/ca.pem", "mysql"),
        ("jdbc:mariadb://db/shop?sslMode=VERIFY_IDENTITY", "mysql"),
        ("mysql://db/shop?sslMode=REQUIRED", "mysql"),
    ],
)
def test_good_urls(write: Write, url: str, product: str) -> None:
    """Each name of a database; TLS as its driver calls it, of MySQL that for Java."""
    assert sink_of(write(text(url=f"'{url}'"))).options.url == f"{product}://{url.partition('://')[2]}"


@pytest.mark.parametrize(
    ("mode", "verified"),
    [
        ("sslMode=REQUIRED", (ssl.CERT_NONE, False)),
        ("sslMode=trust", (ssl.CERT_NONE, False)),
        ("sslMode=VERIFY_CA", (ssl.CERT_REQUIRED, False)),
        ("sslMode=verify-ca", (ssl.CERT_REQUIRED, False)),
        ("sslMode=VERIFY_IDENTITY", (ssl.CERT_REQUIRED, True)),
        ("sslMode=verify-full", (ssl.CERT_REQUIRED, True)),
    ],
)
def test_tls_of_mysql(mode: str, verified: tuple[ssl.VerifyMode, bool]) -> None:
    """A context makes the driver insist on TLS."""
    context = MySqlDatabase(f"mysql://db/shop?{mode}")._tls()["ssl"]
    assert (context.verify_mode, context.check_hostname) == verified


def test_tls_of_mysql_where_it_need_not_be() -> None:
    assert MySqlDatabase("mysql://db/shop")._tls() == MySqlDatabase("mysql://db/shop?sslMode=PREFERRED")._tls() == {}
    assert MySqlDatabase("mysql://db/shop?sslMode=disable")._tls() == {"ssl_disabled": True}


def test_a_file_of_certificates_that_is_missing() -> None:
    database = MySqlDatabase("mysql://db/shop?sslMode=verify-full&serverSslCert=/nowhere/ca.pem")
    with (
        pytest.raises(ConfigError, match=r"serverSslCert of MySQL at db/shop: .*No such file"),
        database.connection("x"),
    ):
        pass


def test_urls_of_sqlite(write: Write) -> None:
    """Paths start from the file's folder."""
    path = write(text(url="'jdbc:sqlite:data/shop #1.db'", password=None, table="orders"))
    assert sink_of(path).options.url == f"sqlite:{path.parent}/data/shop #1.db"


def test_sqlite_has_no_users(write: Write) -> None:
    """Two problems, at once."""
    found = problems(write(text(url="'sqlite:shop.db'", user="me", table="orders")))
    assert [(problem.key, "SQLite has no users" in problem.what) for problem in found] == [
        ("sink.user", True),
        ("sink.password", True),
    ]


WRONG_URLS = {  # by what is said of them; the last is a remedy, which says how they look
    "it has a user in it": ["mysql://me@db/shop"],
    "it has the parameter useSSL": ["mysql://db/shop?useSSL=true"],
    "sslMode is maybe": ["mariadb://db/shop?sslMode=maybe"],
    "it has a password in it": [
        "postgresql://me:hunter2@db/shop",
        "jdbc:postgresql://me:hun/ter2@db/shop",
        "mysql://me:hunter2@db/shop",
        "postgresql://db/shop?user=me&password=hunter2",
        "postgresql://db/shop?sslPassword=hunter2",
        "postgresql://db/shop?p%61ssword=hunter2",
    ],
    "jdbc:postgresql://HOST:PORT/DATABASE": [
        "jdbc:oracle:thin://db/shop",
        "mysql://db",
        "mysql://a,b/shop",
        "mysql://db:port/shop",
        "mysql:///shop",
        "mysql://db/shop/orders",
        "sqlite:",
        "sqlite::memory:",
        "sqlite:///data/shop.db",
        "sqlite:shop.db?mode=ro",
        "postgresql://db",
        "postgresql:///",
        "db:5432/shop",
        "postgresql://db/my shop",
        "postgresql://db/shop#part",
    ],
}


@pytest.mark.parametrize(("url", "what"), [(url, what) for what, urls in WRONG_URLS.items() for url in urls])
def test_wrong_urls(write: Write, url: str, what: str) -> None:
    """Passwords in them are not shown."""
    (problem,) = problems(write(text(url=f"'{url}'")))
    assert problem.key == "sink.url"
    assert what in str(problem)
    assert "ter2" not in str(problem)


@pytest.mark.parametrize(
    ("options", "key", "what"),
    [
        ({"password": "hunter2"}, "password", "a reference to a secret"),
        ({"table": "a.b.c"}, "table", "schema.table, or table"),
        ({"table": "'\"a\"'"}, "table", "schema.table, or table"),
        ({"ledger": "''"}, "ledger", "schema.table, or table"),
        ({"table": "t" * 64}, "table", "PostgreSQL cuts off names of more than 63 bytes"),
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


@pytest.mark.parametrize(
    ("database", "package", "remedy"),
    [
        (PostgresDatabase("postgresql://db/shop"), "psycopg", r"pip install 'psycopg\[binary\]>=3\.2'"),
        (MySqlDatabase("mysql://db/shop"), "pymysql", r"pip install 'pymysql>=1\.2'"),
    ],
)
def test_without_the_driver(monkeypatch: pytest.MonkeyPatch, database: Database, package: str, remedy: str) -> None:
    """It is said how to install it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=remedy), database.connection("test"):
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
    assert PostgresTarget.type_of("a", kind) == expected


def test_types_that_do_not_pass() -> None:
    for kind in (st.NullType(), st.DayTimeIntervalType(), st.ArrayType(st.VariantType())):
        with pytest.raises(UnsupportedType, match=r"column a: type .* cannot be written"):
            PostgresTarget.type_of("a", kind)
