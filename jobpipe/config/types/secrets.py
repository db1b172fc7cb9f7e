"""Secrets: the configuration holds where one is, or its encrypted form; the secret itself is read when it is used.

So whatever holds a configuration (Spark's options, pickled readers, orders to other processes, logs) holds none. Three
forms: ``file:PATH``, ``env:NAME``, and ``enc:...`` as ``jobpipe config encrypt`` writes it, whose key is found by the
environment's ``JOBPIPE_SECRET_KEY``, itself a ``file:`` or ``env:`` reference.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobpipe.errors import ConfigError

if TYPE_CHECKING:  # loaded where it is used: Spark workers without enc: values have no use for it
    from cryptography.fernet import Fernet

EXPECTED = (
    "a reference to a secret, never the secret itself: file:PATH (readable by its owner only), env:NAME, or enc:... as "
    "`jobpipe config encrypt` writes it"
)
KEY_VARIABLE = "JOBPIPE_SECRET_KEY"
KEY_DEFAULT = "file:~/.config/jobpipe/secret.key"
MAX_BYTES = 64 * 1024
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"[A-Za-z0-9_=-]{60,100000}")


@dataclass(frozen=True)
class Secret:
    """A reference to a secret; what it shows of itself is no secret."""

    reference: str

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __str__(self) -> str:
        return "enc:***" if self.reference.startswith("enc:") else self.reference

    def reveal(self, environ: Mapping[str, str] | None = None) -> str:
        """Return the secret. Keep it no longer than it is needed, and never show it.

        Args:
            environ: the environment, default ``os.environ``.

        Raises:
            ConfigError: there is none: no file, one that others may read, no such variable, another key.
        """
        environ = os.environ if environ is None else environ
        kind, _, rest = self.reference.partition(":")
        if kind == "file":
            return _from_file(Path(rest))
        if kind == "env":
            return _from_environment(rest, environ)
        return _decrypt(rest, environ)


def parse_secret(text: str, base: Path) -> Secret | None:
    """Return the secret that ``text`` refers to, None when it is no reference; relative paths start from ``base``."""
    kind, _, rest = text.strip().partition(":")
    if kind == "file" and rest and "\0" not in rest:
        try:
            return Secret(f"file:{os.path.abspath(base / Path(rest).expanduser())}")
        except RuntimeError:  # ~user, and there is no such user
            return None
    if (kind == "env" and _NAME.fullmatch(rest)) or (kind == "enc" and _TOKEN.fullmatch(rest)):
        return Secret(f"{kind}:{rest}")
    return None


def key_reference(environ: Mapping[str, str] | None = None) -> Secret:
    """Return where the key of ``enc:`` values is.

    Raises:
        ConfigError: ``JOBPIPE_SECRET_KEY`` is no reference.
    """
    environ = os.environ if environ is None else environ
    found = parse_secret(environ.get(KEY_VARIABLE, "").strip() or KEY_DEFAULT, Path.cwd())
    if found is None or found.reference.startswith("enc:"):
        raise ConfigError(f"{KEY_VARIABLE}: expected file:PATH or env:NAME, not the key itself", key=KEY_VARIABLE)
    return found


def make_key(reference: Secret) -> Path:
    """Make a new key in the file that is referred to, which must not exist yet.

    Raises:
        ConfigError: it is no file, or exists, or cannot be made.
    """
    from cryptography.fernet import Fernet

    if not reference.reference.startswith("file:"):
        raise ConfigError(f"a new key is made in a file; {KEY_VARIABLE} is {reference}", key=KEY_VARIABLE)
    path = Path(reference.reference.removeprefix("file:"))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(Fernet.generate_key() + b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: a key cannot be made there ({error.strerror})", file=str(path)) from error
    return path


def encrypt(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the ``enc:`` value of a secret (Fernet: AES-128-CBC and HMAC-SHA256).

    Raises:
        ConfigError: there is no key.
    """
    return "enc:" + _fernet(os.environ if environ is None else environ).encrypt(text.encode()).decode()


def _decrypt(token: str, environ: Mapping[str, str]) -> str:
    from cryptography.fernet import InvalidToken

    try:
        return _fernet(environ).decrypt(token).decode()
    except InvalidToken:
        raise ConfigError(
            f"an enc: value cannot be decrypted with the key at {key_reference(environ)}: it was made with another "
            "one, or is damaged",
            key=KEY_VARIABLE,
        ) from None


def _fernet(environ: Mapping[str, str]) -> Fernet:
    from cryptography.fernet import Fernet

    reference = key_reference(environ)
    try:
        key = reference.reveal(environ)
    except ConfigError as error:
        raise ConfigError(
            f"the key of enc: values is missing: {error.message}; make one with `jobpipe config encrypt --new-key`, or "
            f"set {KEY_VARIABLE} to file:PATH or env:NAME",
            key=KEY_VARIABLE,
        ) from error
    try:
        return Fernet(key)
    except ValueError:
        raise ConfigError(f"{reference} does not hold a key of `jobpipe config encrypt`", key=KEY_VARIABLE) from None


def _from_file(path: Path) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_BYTES:
                raise _bad_file(path, f"a file of at most {MAX_BYTES} bytes")
            if stat.S_IMODE(info.st_mode) & 0o077:
                mode = f"{stat.S_IMODE(info.st_mode):04o}"
                raise _bad_file(path, f"a secret that only its owner may read (chmod 600), not mode {mode}")
            text = file.read(MAX_BYTES).decode()
    except OSError as error:
        raise _bad_file(path, f"a readable file ({error.strerror})") from error
    except UnicodeDecodeError:
        raise _bad_file(path, "text in UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise _bad_file(path, "a secret in it; it is empty")
    return text


def _bad_file(path: Path, expected: str) -> ConfigError:
    return ConfigError(f"{path}: expected {expected}", file=str(path), expected=expected)


def _from_environment(name: str, environ: Mapping[str, str]) -> str:
    if not environ.get(name):
        raise ConfigError(f"the environment has no {name}, which a secret refers to", variable=name)
    return environ[name]
