"""The keys of the control server, ``jobpipe server``."""

# ruff: noqa: RUF009  key() returns a new dataclass field for each attribute

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobpipe.config.definitions.definition import key
from jobpipe.config.types.list_types import COLUMNS, PATHS, VARIABLES
from jobpipe.config.types.network_types import HOST, HTTP_URL, PORT_RANGE
from jobpipe.config.types.secrets import Secret
from jobpipe.config.types.value_types import PATH, SECRET, TEXT, optional


@dataclass(frozen=True, kw_only=True)
class ServerKeys:
    """Where the control server listens, who may use it, and what it and its jobs may reach."""

    server_host: str = key(
        "jobpipe.server.host",
        HOST,
        "127.0.0.1",
        "Address that the control server listens on. Except on loopback, it accepts only TLS with client "
        "certificates, and its own certificate must carry the host name that clients use (jobpipe certs issue NAME "
        "--host HOST).",
        group="server",
    )
    server_port: tuple[int, int] = key(
        "jobpipe.server.port",
        PORT_RANGE,
        8998,
        "Port that the control server listens on, or a range from which it takes any free port.",
        group="server",
    )
    server_access: Path | None = key(
        "jobpipe.server.access",
        optional(PATH),
        None,
        "Access list of the control server beyond loopback (YAML): the names of certificates under view and operate. "
        "It is read again when it changes. null = only holders of the server's own certificate.",
        group="server",
    )
    server_roots: tuple[Path, ...] | None = key(
        "jobpipe.server.roots",
        optional(PATHS),
        None,
        "Folders that must contain a submitted pipeline's folder, libraries, application, and storage with file:, "
        "after links are resolved; only the server's user, root, and the owner of the folder given here may be able to "
        "change them. null = the home folder of the server's user, and jobpipe.home.",
        group="server",
    )
    server_environment: tuple[str, ...] | None = key(
        "jobpipe.server.environment",
        optional(VARIABLES),
        None,
        "Environment variables that jobs get from the control server, in addition to those of the system, Java, "
        "Python, Spark, Hadoop and jobpipe. Each is a name, or the start of names followed by *. A job's secret "
        "env:NAME needs an entry here. null = none.",
        group="server",
    )
    server_masked_columns: tuple[str, ...] | None = key(
        "jobpipe.server.masked_columns",
        optional(COLUMNS),
        None,
        "Columns of topics that the control server's page never shows: name, a field as name.field, or either after a "
        "topic's name and a dot. They are missing in exports, and a condition cannot use them. Letter case does not "
        "count. Dead letters hold whole rows as JSON: mask their column row as well. null = none.",
        group="server",
    )
    server_lineage_url: str | None = key(
        "jobpipe.server.lineage.url",
        optional(HTTP_URL),
        None,
        "Where the control server sends OpenLineage events of its jobs: https, or http of loopback. Without a path it "
        "is /api/v1/lineage. Needs pip install 'openlineage-python>=1.54' 'sqlglot>=30,<31'. null = nowhere.",
        group="server",
    )
    server_lineage_api_key: Secret | None = key(
        "jobpipe.server.lineage.api_key",
        optional(SECRET),
        None,
        "API key for server.lineage.url, sent as a bearer token. It is read for each event. null = none.",
        group="server",
        secret=True,
    )
    server_lineage_file: Path | None = key(
        "jobpipe.server.lineage.file",
        optional(PATH),
        None,
        "File to which OpenLineage events go instead, one on each line. At 64 MiB it is renamed, with .1 at its end, "
        "in the place of the one before. null = none.",
        group="server",
    )
    server_lineage_namespace: str = key(
        "jobpipe.server.lineage.namespace",
        TEXT,
        "default",
        "Namespace of the jobs in OpenLineage events.",
        group="server",
    )
