"""Change data capture: tables of a database as topics, first their rows, then each committed change once.

A capture is a plain process that publishes; no Spark is needed::

    from jobpipe import cdc

    with cdc.postgres(
        name="shop", hostname="db.example.org", database="shop", username="jobpipe",
        password="env:SHOP_PASSWORD", tables=["public.orders", "public.customers"],
    ) as capture:
        capture.run()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from jobpipe.cdc.capture_options import CaptureOptions
    from jobpipe.cdc.mariadb.mysql_capture import MysqlCapture
    from jobpipe.cdc.postgresql.postgres_capture import PostgresCapture
    from jobpipe.config import Config

Options = TypeVar("Options", bound="CaptureOptions")


def postgres(
    *,
    name: str,
    tables: Sequence[str],
    password: str | None = None,
    route: Mapping[str, str] | None = None,
    config: str | Path | Config | None = None,
    **options: Any,
) -> PostgresCapture:
    """Return a capture of tables of PostgreSQL, whose ``run()`` captures until its ``stop()``.

    Args:
        name: of the capture; the same one each time the program starts.
        tables: regular expressions of whole names, schema.table.
        password: a reference to it: ``env:NAME``, ``file:PATH`` or ``enc:…``.
        route: topics by regular expressions of tables, with groups as ``$1``; by default a table's topic is
            schema.table.
        config: of jobpipe: a file, or a loaded configuration.
        options: as :class:`jobpipe.cdc.postgresql.postgres_options.PostgresOptions` has them.

    Raises:
        ConfigError: an option is wrong; names it.
    """
    from jobpipe.cdc.postgresql.postgres_capture import PostgresCapture
    from jobpipe.cdc.postgresql.postgres_options import PostgresOptions

    return PostgresCapture(_options(PostgresOptions, name, tables, password, route, options), config)


def mysql(
    *,
    name: str,
    tables: Sequence[str],
    password: str | None = None,
    route: Mapping[str, str] | None = None,
    config: str | Path | Config | None = None,
    **options: Any,
) -> MysqlCapture:
    """Return a capture of tables of MariaDB or MySQL, whose ``run()`` captures until its ``stop()``.

    Args:
        name, password, config: as of :func:`postgres`.
        tables: regular expressions of whole names, database.table.
        route: topics by regular expressions of tables; by default a table's topic is database.table.
        options: as :class:`jobpipe.cdc.mariadb.mysql_options.MysqlOptions` has them.

    Raises:
        ConfigError: an option is wrong; names it.
    """
    from jobpipe.cdc.mariadb.mysql_capture import MysqlCapture
    from jobpipe.cdc.mariadb.mysql_options import MysqlOptions

    return MysqlCapture(_options(MysqlOptions, name, tables, password, route, options), config)


def _options(
    kind: Callable[..., Options],
    name: str,
    tables: Sequence[str],
    password: str | None,
    route: Mapping[str, str] | None,
    options: Mapping[str, Any],
) -> Options:
    """Return options from plain values.

    Raises:
        ConfigError: one is wrong; names it.
    """
    from jobpipe.cdc.capture_options import IncompatibleChange, SchemaChange, Startup
    from jobpipe.cdc.change_rows import RowFormat
    from jobpipe.config.types.secrets import EXPECTED, parse_secret
    from jobpipe.errors import ConfigError
    from jobpipe.pipelines.file.spec import RouteSpec

    secret = None if password is None else parse_secret(password, Path.cwd())
    if password is not None and secret is None:
        raise ConfigError(f"capture {name!r}: password, expected {EXPECTED}", key="password")
    routes = tuple(RouteSpec(**{"source-table": each, "sink-table": topic}) for each, topic in (route or {}).items())
    kinds: dict[str, Any] = {
        "format": RowFormat,
        "startup": Startup,
        "schema_change": SchemaChange,
        "incompatible_change": IncompatibleChange,
    }
    try:
        given: dict[str, Any] = {key: kinds[key](value) if key in kinds else value for key, value in options.items()}
        return kind(name=name, tables=tuple(tables), password=secret, route=routes, **given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"capture {name!r}: {error}") from None
