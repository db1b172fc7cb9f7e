"""URLs of databases, as options of plug-ins give them, and which database each is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from jobpipe.config.types.secrets import Secret
from jobpipe.pipelines.databases.database_api import Database
from jobpipe.pipelines.databases.mysql import MySqlDatabase, bad_parameter
from jobpipe.pipelines.databases.postgres import PostgresDatabase
from jobpipe.pipelines.databases.sqlite import SCHEME, SqliteDatabase
from jobpipe.pipelines.file.field_types import expected, wrong_key
from jobpipe.pipelines.file.secret_keys import holds_secret

_FORM = (
    "jdbc:postgresql://HOST:PORT/DATABASE, jdbc:mysql:// or jdbc:mariadb:// with the same, or jdbc:sqlite:FILE, "
    "without a password, which is a key of its own"
)
_PATTERN = r"(jdbc:)?(postgres(ql)?://\S+|(mysql|mariadb)://\S+|sqlite:(?!//)[^?]+)"


def _url(raw: Any, folder: Path) -> str:
    if isinstance(raw, str) and ("password" in unquote(raw).lower() or holds_secret(raw)):
        raise wrong_key("it has a password in it", "take it out, and give password: env:NAME, file:PATH or enc:...")
    if not isinstance(raw, str) or re.fullmatch(_PATTERN, raw) is None:
        raise ValueError
    scheme, _, rest = raw.removeprefix("jdbc:").partition(":")
    if scheme == "sqlite":
        if rest.strip() in ("", ":memory:"):
            raise ValueError
        return SCHEME + str(folder.absolute() / Path(rest).expanduser())
    url = ("postgresql:" if scheme.startswith("postgres") else "mysql:") + rest
    parts = urlsplit(url)
    if not parts.path.strip("/") or parts.fragment:
        raise ValueError
    if url.startswith("mysql:"):
        _check_mysql(url)
    return url


def _check_mysql(url: str) -> None:
    parts = urlsplit(url)
    if parts.username is not None:
        raise wrong_key("it has a user in it", "take it out, and give user: NAME")
    if not parts.hostname or "," in parts.netloc or "/" in parts.path.strip("/"):
        raise ValueError
    _ = parts.port  # a ValueError, if it is none
    if (what := bad_parameter(url)) is not None:
        raise wrong_key(what, "change it, or leave it out")


DatabaseUrl = Annotated[str, *expected(_FORM, _url, {"type": "string", "pattern": f"^{_PATTERN}$"})]


def database_of(
    url: str, user: str | None, password: Secret | None, connect_timeout: float, statement_timeout: float
) -> Database:
    """Return the database of a URL as :data:`DatabaseUrl` makes it; times are in seconds.

    >>> database_of("sqlite:/data/shop.db", None, None, 30, 600).product
    'SQLite'
    """
    kinds: tuple[type[Database], ...] = (PostgresDatabase, MySqlDatabase, SqliteDatabase)
    kind = dict(zip(("postgresql", "mysql", "sqlite"), kinds, strict=True))[url.partition(":")[0]]
    return kind(url, user, password, connect_timeout, statement_timeout)
