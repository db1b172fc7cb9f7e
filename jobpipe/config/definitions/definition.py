"""What a configuration key is, and what a problem with one is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jobpipe.config.types.value_types import NoHomeError, ValueType
from jobpipe.errors import ConfigError

HIDDEN = "***"
_SECRET = re.compile(r"pas|psw|pwd|secret|token|auth|cred|key", re.IGNORECASE)
_URL_USER = re.compile(r"(?<=://)\S*(?=@)")  # up to the last @, since a password may have any character
_URL_QUERY = re.compile(r"(://[^?\s]*\?).*", re.DOTALL)
_SHOWN = 200  # characters of a wrong value that a message repeats


@dataclass(frozen=True, kw_only=True)
class Definition:
    """Everything that is known about one setting: a key of the configuration, or an option of source or sink.

    ``default`` is the value as it would stand in YAML, ``recommended`` are values worth offering (not the only ones
    allowed). The value of a ``secret`` one is never shown.
    """

    name: str
    value_type: ValueType
    default: Any
    documentation: str
    group: str
    recommended: tuple[str, ...] = ()
    secret: bool = False

    @property
    def expected(self) -> str:
        """What a value must look like, as a phrase."""
        return self.value_type.expected

    @property
    def default_text(self) -> str:
        """The default as it stands in conf/jobpipe.yaml."""
        if self.default is None:
            return "null"
        if isinstance(self.default, bool):
            return "true" if self.default else "false"
        return str(self.default)

    def parse(self, raw: object, base: Path | None = None) -> Any:
        """Return the value of ``raw``; relative paths start from ``base`` (default: the working folder).

        Raises:
            BadValueError: it is not of this type.
        """
        return self.value_type.parse(raw, base if base is not None else Path.cwd())

    def format(self, value: Any) -> str:
        """Return ``value`` as text that :meth:`parse` reads back."""
        return self.value_type.format(value)

    def show(self, value: Any) -> str:
        """Return ``value`` for people: a secret is hidden."""
        return HIDDEN if self.secret and value is not None else self.format(value)


@dataclass(frozen=True, kw_only=True)
class Key(Definition):
    """A key of the configuration.

    ``name`` is the full dotted name, ``attribute`` the field of :class:`jobpipe.config.Config` it fills.
    """

    attribute: str

    @property
    def short(self) -> str:
        """The name without the leading ``jobpipe.``, as options give it."""
        return self.name.removeprefix("jobpipe.")

    @property
    def environment(self) -> str:
        """The environment variable that sets the key."""
        return _variable(self.name)

    @property
    def spark(self) -> str:
        """The Spark property that sets the key."""
        return "spark.jobpipe." + self.short


@dataclass(frozen=True, kw_only=True)
class Option(Definition):
    """An option of ``format("jobpipe")``, or an argument of the sink.

    Attributes:
        also: Other names of it, those of Spark's Kafka source.
        needs: It has a meaning only together with one of these.
        excludes: It may not be given together with any of these.
    """

    also: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


def key(
    name: str,
    value_type: ValueType,
    default: Any,
    documentation: str,
    *,
    group: str,
    recommended: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """Return a dataclass field that carries a key's definition; its default is the parsed ``default``."""
    about = {"name": name, "value_type": value_type, "default": default, "documentation": documentation, "group": group}
    return field(
        default_factory=lambda: _parsed_default(name, value_type, default),
        repr=not secret,
        metadata={"key": about | {"recommended": recommended, "secret": secret}},
    )


def _variable(name: str) -> str:
    return "JOBPIPE__" + name.removeprefix("jobpipe.").replace(".", "__").upper()


def _parsed_default(name: str, value_type: ValueType, default: Any) -> Any:
    try:
        return value_type.parse(default, Path.cwd())
    except NoHomeError as error:
        raise ConfigError(
            f"{name} is {default} by default, and {error.reason}. Set HOME, or {name} ({_variable(name)}), to a folder "
            "of this user",
            key=name,
        ) from error


@dataclass(frozen=True)
class ConfigProblem:
    """One wrong value: where it stands, which key, the value as text, and what was expected instead.

    ``source`` is ``file:line``, ``option``, ``spark``, ``environment`` or ``default``; ``value`` is None where there
    is none to show. With ``unknown`` there is no such key, and ``expected`` says which one may have been meant.
    """

    source: str
    key: str
    value: str | None
    expected: str
    unknown: bool = False

    def __str__(self) -> str:
        value = "" if self.value is None else f" = {self.value}"
        fault = f" is unknown; {self.expected}" if self.unknown else f": expected {self.expected}"
        return f"{self.source}: {self.key}{value}{fault}"


def masked_repr(raw: object, about: Key | None = None) -> str:
    """Return a wrong value for a message: short, on one line, hidden if the key is secret.

    Of a URL, user and query are hidden: they may be secrets.

    >>> masked_repr("https://ann:secret@host/path?key=secret")
    'https://***@host/path?***'
    """
    if about is not None and about.secret:
        return HIDDEN
    text = "null" if raw is None else str(raw).lower() if isinstance(raw, bool) else str(raw)
    text = _URL_QUERY.sub(rf"\1{HIDDEN}", _URL_USER.sub(HIDDEN, text))
    text = text if text.isprintable() and text.strip() == text != "" else repr(text)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def masked_repr_by_name(name: str, raw: object) -> str:
    """Return :func:`masked_repr`; the value of what sounds like a secret is hidden."""
    return HIDDEN if _SECRET.search(name) else masked_repr(raw)


def unknown(source: str, name: str, raw: object, expected: str) -> ConfigProblem:
    """Return the problem of a name that is none of ours; the value of what sounds like a secret is hidden."""
    return ConfigProblem(source, name, masked_repr_by_name(name, raw), expected, unknown=True)


def config_error(problems: Iterable[ConfigProblem], *, of: str = "configuration", what: str = "problem") -> ConfigError:
    """Return the one error that names all ``problems``, one line for each."""
    listed = list(problems)
    lines = "\n".join(f"  {problem}" for problem in listed)
    message = f"{of}: {len(listed)} {what}{'s' * (len(listed) > 1)}\n{lines}"
    return ConfigError(message, problems=[asdict(problem) for problem in listed])
