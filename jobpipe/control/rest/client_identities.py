"""Who may use a control server beyond loopback: people's certificates, and an access list.

view: [ben.jobpipe, carla.jobpipe]
operate: [anna.jobpipe]
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers

from jobpipe.config.reading.file_permissions import read_own_file
from jobpipe.control.permissions import Caller, Right
from jobpipe.errors import ConfigError
from jobpipe.net.tls.trusted_files import TrustedFiles

MAX_BYTES = 1 << 20


class AccessFile(BaseModel):
    """What the file says: exact DNS names of certificates."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    view: frozenset[str] = Field(default=frozenset(), max_length=10_000)
    operate: frozenset[str] = Field(default=frozenset(), max_length=10_000)


def read_access_file(path: Path) -> AccessFile:
    """Return the list in a file.

    Raises:
        ConfigError: it cannot be read, others could have changed it, or something in it is not understood.
    """
    try:
        content, why = read_own_file(path, MAX_BYTES + 1)
        if why is not None:
            raise ConfigError(f"{path}: expected a file that others cannot change: {why}", file=str(path))
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: expected a file of at most {MAX_BYTES} bytes", file=str(path))
        return AccessFile.model_validate(yaml.safe_load(content.decode()) or {})
    except OSError as error:
        raise ConfigError(f"{path}: expected a readable file ({error.strerror})", file=str(path)) from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        expected = "expected view: [NAME, …] and operate: [NAME, …], names of certificates"
        raise ConfigError(f"{path}: {expected} ({wrong})", file=str(path)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected valid YAML in UTF-8 ({type(error).__name__})", file=str(path)) from error


class Certificates:
    """Identity beyond loopback: TLS has verified the certificate; the list says what its names may do."""

    def __init__(self, files: TrustedFiles[AccessFile]) -> None:
        self._files = files

    def caller(self, headers: Headers, peer_names: Collection[str]) -> Caller | None:
        """Return who has a certificate, by its names in the list; the same names as the server's own may operate."""
        names, listed = frozenset(peer_names), self._files.listed
        if not names:
            return None
        if operate := names & listed.operate:
            return Caller(Right.OPERATE, f"certificate {min(operate)}")
        if names == self._files.own:
            return Caller(Right.OPERATE, f"certificate {min(names)}")
        view = names & listed.view
        return Caller(Right.VIEW, f"certificate {min(view)}") if view else None
