"""The names of datasets, as OpenLineage gives them: https://openlineage.io/docs/spec/naming. Opens nothing.

A name that is not certain is none: of a path in a default file system, for instance, or of a table that a query makes.
"""

from __future__ import annotations

import os
import posixpath
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard
from urllib.parse import parse_qs, urlsplit

from jobpipe.config import Config
from jobpipe.config.types.secrets import parse_secret
from jobpipe.pipelines.file.file_paths import is_uri, local_folder

_PATTERN = re.compile(r"(?<!\\)[*?\[{]|\$\{")  # in a part of a path; ${...} is of each run
_ESCAPE = re.compile(r"\\(.)")
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}
_OBJECTS = frozenset({"s3", "gs", "abfss", "wasbs"})  # stores of objects, whose keys begin without a slash
_PART = r'(?:[\w$]+|"[^"]+"|`[^`]+`)'
_TABLE = re.compile(rf"\s*{_PART}(?:\s*\.\s*{_PART}){{0,2}}\s*")


@dataclass(frozen=True, order=True)
class DatasetName:
    """A dataset: the namespace of what it is in, and its name there."""

    namespace: str
    name: str


def topic_dataset(config: Config, topic: str) -> DatasetName:
    """Return the dataset of a topic; ``topic`` has its prefix.

    The namespace is the registry and its path: the first server by the alphabet, since ensembles are listed in any
    order. The embedded registry is one of this host and this home.
    """
    servers, slash, chroot = config.registry_connect.partition("/")
    if config.embedded:
        return DatasetName(f"jobpipe://{socket.gethostname().lower()}{config.home}{config.namespace}", topic)
    return DatasetName(
        f"jobpipe://{min(each.strip() for each in servers.lower().split(','))}{slash}{chroot}{config.namespace}", topic
    )


def file_dataset(path: str, *, is_pattern: bool = False) -> DatasetName | None:
    """Return the dataset of files; None if the file system is not certain.

    Args:
        path: absolute, or a URI.
        is_pattern: then it is that of the folder below which everything matches.
    """
    path = _fixed(path, is_pattern=is_pattern)
    local = local_folder(path)
    if local is not None and local.is_absolute():
        return DatasetName("file", _normal(str(local)))
    if not is_uri(path):
        return None
    scheme, _, rest = path.partition(":")
    scheme = _SCHEMES.get(scheme.lower(), scheme.lower())
    if not rest.startswith("//"):
        return None
    server, _, key = rest[2:].partition("/")  # ? and # are of names, as Hadoop has it
    user, at, place = server.rpartition("@")
    if not place or ":" in user:  # a password stands there
        return None
    place = (user + at if scheme in ("abfss", "wasbs") else "") + place.lower()
    name = posixpath.normpath("/" + key.lstrip("/")).rstrip("/")
    return DatasetName(f"{scheme}://{place}", (name.lstrip("/") if scheme in _OBJECTS else name) or "/")


def _fixed(path: str, *, is_pattern: bool) -> str:
    """Return a path up to the first part that is not the same for all files and runs."""
    special = _PATTERN if is_pattern else re.compile(r"\$\{")
    kept = []
    for part in path.split("/"):
        if special.search(part):
            break
        kept.append(_ESCAPE.sub(r"\1", part) if is_pattern else part)
    return "/".join(kept) or "/"


def table_dataset(url: str, table: str, *, exact: bool) -> DatasetName | None:
    """Return the dataset of a table of PostgreSQL, MySQL, MariaDB or SQLite; None of another one, or of a query.

    Args:
        url: as of JDBC, or of sink jdbc-upsert.
        exact: the name is as in the database; else it stands in SQL, where PostgreSQL takes it in small letters.
    """
    url = url.removeprefix("jdbc:")
    kind, _, rest = url.partition(":")
    names = table.split(".") if exact else _names(table, small=kind in ("postgresql", "postgres"))
    if names is None:
        return None
    *schemas, name = names
    if kind == "sqlite":
        file = rest.partition("?")[0]
        schemas = [each for each in schemas if each.lower() != "main"]
        return DatasetName(f"sqlite://{_normal(file)}", ".".join([*schemas, name])) if file.startswith("/") else None
    try:
        parts = urlsplit(url)
        host, port, database = parts.hostname, parts.port, parts.path.strip("/")
    except ValueError:
        return None
    if not host or not database or "," in parts.netloc:
        return None
    if kind in ("postgresql", "postgres"):
        if not schemas:
            given = parse_qs(parts.query)
            if "currentSchema" in given or "options" in given:
                return None
            schemas = ["public"]
        return DatasetName(f"postgres://{host}:{port or 5432}", f"{database}.{schemas[-1]}.{name}")
    if kind in ("mysql", "mariadb") and len(schemas) < 2:
        return DatasetName(f"mysql://{host}:{port or 3306}", f"{[database, *schemas][-1]}.{name}")
    return None


def _names(table: str, *, small: bool) -> list[str] | None:
    """Return the names of which that of a table is made, as the database has them; None of what is no such name.

    Args:
        small: the database takes names without quotes in small letters.
    """
    if _TABLE.fullmatch(table) is None:
        return None
    found = []
    for each in re.findall(_PART, table):
        name = each[1:-1] if each[0] in '"`' else each.lower() if small else each
        if "." in name:
            return None  # it would be taken for two
        found.append(name)
    return found


def _normal(path: str) -> str:
    return os.path.normpath("/" + path.lstrip("/"))


def kafka_datasets(servers: str, topics: tuple[str, ...]) -> tuple[DatasetName, ...]:
    """Return the datasets of Kafka's topics; the namespace is the first server by the alphabet."""
    first = min(server.strip().rpartition("://")[2].lower() for server in servers.split(","))
    return tuple(DatasetName(f"kafka://{first}", topic) for topic in topics)


def is_known(value: object) -> TypeGuard[str]:
    """Whether an option says its value: it is no reference to a secret, and none that each run fills in."""
    return isinstance(value, str) and "${" not in value and parse_secret(value, Path("/")) is None
