"""The options of a capture of PostgreSQL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from jobpipe.cdc.capture_options import CaptureOptions
from jobpipe.errors import ConfigError
from jobpipe.pipelines.databases.postgres import PostgresDatabase

_SLOT = re.compile(r"[a-z0-9_]{1,63}")


@dataclass(frozen=True, kw_only=True)
class PostgresOptions(CaptureOptions):
    """What PostgreSQL needs besides.

    Attributes:
        slot_name, publication_name: in the database; by default made from the name.
    """

    port: int = 5432
    database: str
    slot_name: str = ""
    publication_name: str = ""

    def __post_init__(self) -> None:
        """Check the names; see :class:`CaptureOptions`."""
        super().__post_init__()
        if _SLOT.fullmatch(self.slot) is None:
            raise ConfigError(
                f"capture {self.name!r}: slot-name {self.slot!r}, expected 1 to 63 of a-z 0-9 _", key="slot-name"
            )

    @property
    def slot(self) -> str:
        """The name of the slot."""
        return self.slot_name or "jobpipe_" + re.sub(r"[^a-z0-9_]", "_", self.name.lower())[:55]

    @property
    def publication(self) -> str:
        """The name of the publication."""
        return self.publication_name or self.slot

    def database_api(self) -> PostgresDatabase:
        """Return the database."""
        given = {"sslmode": self.ssl_mode} | ({"sslrootcert": self.ssl_root_cert} if self.ssl_root_cert else {})
        host = quote(self.hostname, safe=":[]")
        url = f"postgresql://{host}:{self.port}/{quote(self.database, safe='')}?{urlencode(given, quote_via=quote)}"
        return PostgresDatabase(url, self.username, self.password, self.connect_timeout, 0.0)
