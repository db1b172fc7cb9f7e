"""The options of a capture of MariaDB or MySQL."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import quote, urlencode

from jobpipe.cdc.capture_options import CaptureOptions
from jobpipe.errors import ConfigError
from jobpipe.pipelines.databases.mysql import CA_FILE, MODE, MySqlDatabase

MAX_SERVER_ID = (1 << 32) - 1
# libpq's names; the others are as drivers for Java have them
_MODES = {"allow": "preferred", "prefer": "preferred", "require": "trust"}
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_FIRST_ID, _IDS = 1_000_000_000, 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class MysqlOptions(CaptureOptions):
    """What MariaDB and MySQL need besides.

    Attributes:
        server_id: as which replica the capture reads the log; another one may not have it. Default: made of the name.
        allow_cascades: capture also tables that foreign keys change, which the log does not tell.
    """

    schema_word: ClassVar[str] = "database"
    example: ClassVar[str] = "shop"

    port: int = 3306
    server_id: int = 0
    allow_cascades: bool = False

    def __post_init__(self) -> None:
        """Check number and mode; see :class:`CaptureOptions`."""
        super().__post_init__()
        if self.ssl_mode not in SSL_MODES:
            raise ConfigError(
                f"capture {self.name!r}: ssl-mode {self.ssl_mode!r:.100}, expected one of {', '.join(SSL_MODES)}",
                key="ssl-mode",
            )
        if not 0 <= self.server_id <= MAX_SERVER_ID:
            raise ConfigError(
                f"capture {self.name!r}: server-id {self.server_id}, expected 1 to {MAX_SERVER_ID}", key="server-id"
            )

    @property
    def replica_id(self) -> int:
        """As which replica it reads the log."""
        return self.server_id or _FIRST_ID + zlib.crc32(self.name.encode()) % _IDS

    def database_api(self) -> MySqlDatabase:
        """Return the server; no database of it is chosen."""
        mode = (
            "verify-ca" if self.ssl_mode == "require" and self.ssl_root_cert is not None else self.ssl_mode
        )  # so libpq
        given = {MODE: _MODES.get(mode, mode)}
        if self.ssl_root_cert not in (None, "system"):
            given[CA_FILE] = str(self.ssl_root_cert)
        host = quote(self.hostname, safe=":[]")
        url = f"mysql://{host}:{self.port}/?{urlencode(given, quote_via=quote)}"
        return MySqlDatabase(url, self.username, self.password, self.connect_timeout, 0.0)
