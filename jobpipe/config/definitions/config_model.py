"""Every configuration key in one class: each is defined once, in the modules of the base classes.

Parsing, validation, ``config show`` and the check of ``conf/jobpipe.yaml`` read the definitions from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import cast

from jobpipe.config.definitions.definition import Key
from jobpipe.config.definitions.job_keys import JobKeys
from jobpipe.config.definitions.registry_keys import RegistryKeys
from jobpipe.config.definitions.security_keys import SecurityKeys
from jobpipe.config.definitions.server_keys import ServerKeys


# The last base class comes first: a dataclass takes the fields of its bases from the end.
@dataclass(frozen=True, kw_only=True)
class Config(SecurityKeys, ServerKeys, JobKeys, RegistryKeys):
    """The settings of one process: times in seconds, sizes in bytes, absolute paths.

    Made by :func:`jobpipe.config.load`, which checks it. ``Config()`` holds the defaults and reads no source;
    values given to the constructor are not checked.
    """

    pinned: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Attributes set by options, a file they name, or ``spark.jobpipe.*``: they hold on each node of an application."""

    def __post_init__(self) -> None:
        if cast("Path | None", self.spool_dir) is None:  # its own default, until home is known
            object.__setattr__(self, "spool_dir", self.home / "spool")
        if cast("Path | None", self.hostserver_dir) is None:
            object.__setattr__(self, "hostserver_dir", self.home / "hostserver")

    @property
    def tls(self) -> bool:
        """Whether links are encrypted: both switches are on."""
        return self.ssl_enabled and self.platform_ssl

    @property
    def embedded(self) -> bool:
        """Whether the registry is the embedded ZooKeeper of ``home``."""
        return self.registry_connect == "embedded"

    def to_dict(self) -> dict[str, str]:
        """Return every key with its value as text, for another process; of secrets where they are."""
        return {about.name: about.format(getattr(self, about.attribute)) for about in KEYS}


KEYS: tuple[Key, ...] = tuple(
    Key(attribute=each.name, **each.metadata["key"]) for each in fields(Config) if "key" in each.metadata
)
"""Every key, in the order of conf/jobpipe.yaml."""
