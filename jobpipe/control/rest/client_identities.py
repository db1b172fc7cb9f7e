"""Who may use a control server beyond loopback: people's certificates, and an access list.

view: [ben.jobpipe, carla.jobpipe]
operate: [anna.jobpipe]
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers

from jobpipe.config.reading.file_permissions import read_own_file
from jobpipe.config.reading.located_values import FilePlace, plain
from jobpipe.config.reading.yaml_reader import MAX_BYTES, read_tree
from jobpipe.control.permissions import Caller, Right
from jobpipe.errors import ConfigError
from jobpipe.net.tls.trusted_files import TrustedFiles


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
    wrong: list[str] = []

    def tell(place: FilePlace, _: object, what: str, remedy: str) -> None:
        wrong.append(f"line {place.line or 1}: {what}; {remedy}")

    try:
        content, why = read_own_file(path, MAX_BYTES + 1)
        if why is not None:
            raise ConfigError(f"{path}: expected a file that others cannot change: {why}", file=str(path))
        tree = read_tree(content, str(path), tell)
        if wrong or tree is None:
            raise ConfigError(f"{path}: {'. '.join(wrong)}", file=str(path))
        return AccessFile.model_validate(plain(tree) or {})
    except OSError as error:
        raise ConfigError(f"{path}: expected a readable file ({error.strerror})", file=str(path)) from error
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        expected = "expected view: [NAME, …] and operate: [NAME, …], names of certificates"
        raise ConfigError(f"{path}: {expected} ({found})", file=str(path)) from error


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
