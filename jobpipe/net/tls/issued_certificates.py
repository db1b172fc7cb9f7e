"""What a CA has issued: one line each in ``issued.jsonl``, in the folder of its key.

A renewed certificate leaves the one before valid, with the same key; who revokes a name means all of them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from cryptography import x509

from jobpipe.errors import ConfigError

FILE = "issued.jsonl"


def note_issued(directory: Path, name: str, certificate: x509.Certificate) -> None:
    """Add a line, forced to the disk; the folder's lock is held."""
    line = {
        "name": name,
        "serial": f"{certificate.serial_number:x}",
        "not_after": certificate.not_valid_after_utc.isoformat(),
    }
    path = directory / FILE
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})", file=str(path)) from error


def serials_of(directory: Path, name: str) -> list[int]:
    """Return the serial numbers of all that was issued under a name.

    Raises:
        ConfigError: the file is damaged.
    """
    path = directory / FILE
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [int(line["serial"], 16) for line in lines if line["name"] == name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{path}: expected one JSON object a line, with name and serial ({error})"
        raise ConfigError(text, file=str(path)) from error
