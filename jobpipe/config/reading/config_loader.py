"""Reads all sources of the configuration, checks every value, and merges them by precedence.

Options, then ``spark.jobpipe.*``, then the environment, then the file, then the defaults. A wrong value is reported
even if a source above hides it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobpipe.config.definitions.config_model import KEYS, Config
from jobpipe.config.definitions.definition import (
    ConfigProblem,
    Key,
    config_error,
    masked_repr,
    masked_repr_by_name,
    unknown,
)
from jobpipe.config.definitions.key_names import by_exact_name, by_loose_name, is_section, suggest
from jobpipe.config.reading.config_checks import check_together
from jobpipe.config.reading.yaml_document import Entry, read_document
from jobpipe.config.types.value_types import BadValueError

log = logging.getLogger(__name__)

ENVIRONMENT_FILE = "JOBPIPE_CONFIG"
ENVIRONMENT_PREFIX = "JOBPIPE__"
SPARK_PREFIX = "spark.jobpipe."
WORKING_FILE = Path("conf/jobpipe.yaml")
USER_FILE = Path("~/.config/jobpipe/jobpipe.yaml")
SYSTEM_FILE = Path("/etc/jobpipe/jobpipe.yaml")
DEFAULT = "default"


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration and where it came from: the source of each key by its full name, and the file, if any.

    Attributes:
        in_working_folder: the file was not named, it lies in the working folder.
    """

    config: Config
    sources: Mapping[str, str]
    file: Path | None
    in_working_folder: bool = False


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    spark: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    caller: Callable[..., object] | None = None,
) -> Config:
    """Return the configuration of this process.

    Args:
        path: the configuration file; None looks for one, see :func:`find_file`.
        overrides: options, by attribute (``retention_time``) or dotted key (``retention.time``), with or without
            ``jobpipe.``; None as a value means "not given".
        spark: Spark's properties; only ``spark.jobpipe.*`` are looked at.
        environ: the environment, default ``os.environ``; ``JOBPIPE__SPOOL__MAX_BYTES`` sets ``spool.max_bytes``.
        caller: the function whose keywords the overrides are; its own arguments are suggested for unknown ones too.

    Raises:
        ConfigError: with every problem of every source in ``fields["problems"]``, each a dict with ``source``
            (``file:line``, ``option``, ``spark``, ``environment``, ``default``), ``key``, ``value``, ``expected``,
            ``unknown`` (there is no such key).
    """
    return resolve(path, overrides=overrides, spark=spark, environ=environ, caller=caller).config


def load_given(
    config: str | os.PathLike[str] | Config | None,
    overrides: Mapping[str, Any],
    *,
    caller: Callable[..., object],
    spark: Mapping[str, str] | None = None,
) -> Config:
    """Return the configuration that a caller of ours was given: loaded already, or a file, or found as always.

    Raises:
        ConfigError: as :func:`load`; or it is none of these; or it is loaded, and ``overrides`` would have no effect.
    """
    of = f"jobpipe.{caller.__name__}"
    if isinstance(config, Config):
        expected = "no settings besides a loaded configuration: change that"
        unusable = [
            ConfigProblem("option", key, masked_repr_by_name(key, value), expected) for key, value in overrides.items()
        ]
        if unusable:
            raise config_error(unusable, of=of, what="wrong argument")
        return config
    given: object = config
    if not isinstance(given, (str, os.PathLike, type(None))):
        problem = ConfigProblem("option", "config", masked_repr(given), "a file, or a loaded configuration")
        raise config_error([problem], of=of, what="wrong argument")
    return load(config, overrides=overrides, spark=spark, caller=caller)


def resolve(
    path: str | os.PathLike[str] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    spark: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    caller: Callable[..., object] | None = None,
) -> ResolvedConfig:
    """Do as :func:`load`, and tell where each value came from."""
    environ = os.environ if environ is None else environ
    merge = _Merge(() if caller is None else _arguments(caller))
    merge.add_loose(_from_options(overrides or {}))
    merge.add_loose(_from_spark(spark or {}))
    merge.add_loose(_from_environment(environ))
    file = merge.add_file(path, environ)
    config = merge.finish(pin_file=path is not None)
    found = file is not None and find_file(path, environ)[1] == str(_absolute(WORKING_FILE))
    if found:
        _log_source_once(file)
    return ResolvedConfig(config, merge.sources, file, in_working_folder=found)


@functools.cache
def _log_source_once(file: Path | None) -> None:
    """Log that the working folder's file is in force, which no option asked for."""
    log.info("%s of the working folder is in use, with its registry, certificates and handler", file)


def node_settings(attributes: Iterable[str]) -> dict[str, Any]:
    """Return those of ``attributes`` that this process's own environment and file set, and nothing else.

    For a process that was given the configuration of another host's. Values are checked one by one, not together.

    Raises:
        ConfigError: as :func:`load`.
    """
    merge = _Merge()
    merge.add_loose(_from_environment(os.environ))
    merge.add_file(None, os.environ)
    return merge.values(attributes)


def config_from_dict(mapping: Mapping[str, str]) -> Config:
    """Return the settings that :meth:`Config.to_dict` wrote; keys that are missing have their defaults.

    Raises:
        ConfigError: as :func:`load`.
    """
    merge = _Merge()
    merge.add_exact(Entry(name, raw, "option", Path.cwd()) for name, raw in mapping.items())
    return merge.finish()


def find_file(path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> tuple[Path | None, str]:
    """Return the configuration file and the source that names it.

    A file named by ``path`` or by ``JOBPIPE_CONFIG`` is returned whether it exists or not; of the usual places the
    first one that exists.
    """
    if path is not None:
        return _absolute(path), "option"
    if named := environ.get(ENVIRONMENT_FILE, "").strip():
        return _absolute(named), "environment"
    for candidate in (WORKING_FILE, Path(os.path.expanduser(USER_FILE)), SYSTEM_FILE):
        if candidate.parts[0] != "~" and _absolute(candidate).exists():  # a user without home has no file there
            return _absolute(candidate), str(_absolute(candidate))
    return None, DEFAULT


def settled_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that set keys, such that they say the same in any working folder.

    Raises:
        BadValueError: a value is wrong; where :func:`load` has passed, none is.
    """
    found = {}
    for entry in _from_environment(environ):
        about = by_loose_name(entry.name)
        if about is not None:
            found[entry.given] = about.format(about.parse(entry.raw, entry.base))
    return found


def _absolute(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))


def _from_options(overrides: Mapping[str, Any]) -> Iterable[Entry]:
    return [Entry(name, raw, "option", Path.cwd()) for name, raw in overrides.items() if raw is not None]


def _from_spark(properties: Mapping[str, str]) -> Iterable[Entry]:
    return [
        Entry(name.removeprefix("spark."), raw, "spark", Path.cwd(), name)
        for name, raw in properties.items()
        if name.startswith(SPARK_PREFIX)
    ]


def _from_environment(environ: Mapping[str, str]) -> Iterable[Entry]:
    return [
        Entry(name[len(ENVIRONMENT_PREFIX) :].lower().replace("__", "."), raw, "environment", Path.cwd(), name)
        for name, raw in environ.items()
        if name.upper().startswith(ENVIRONMENT_PREFIX)
    ]


def _arguments(function: Callable[..., object]) -> list[str]:
    """Return the names that a call may give; of a class, those of its ``__init__``."""
    return [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]


def _spell(entry: Entry, about: Key) -> str:
    """Return the key's name as the source of ``entry`` would write it."""
    if entry.source in ("environment", "spark"):
        return about.environment if entry.source == "environment" else about.spark
    if entry.source != "option" or entry.name.startswith("jobpipe."):
        return about.name
    return about.short if "." in entry.name else about.attribute


class _Merge:
    """Collects values, the highest source first, and every problem on the way."""

    def __init__(self, others: Iterable[str] = ()) -> None:
        self._others = tuple(others)  # names that may be given as options, and are no keys
        self.problems: list[ConfigProblem] = []
        self.sources: dict[str, str] = {about.name: DEFAULT for about in KEYS}
        self._values: dict[str, Any] = {}
        self._bad: set[str] = set()

    def add_loose(self, entries: Iterable[Entry]) -> None:
        """Add a source whose names may leave ``jobpipe.`` out or be attributes."""
        self._add(entries, loose=True)

    def add_exact(self, entries: Iterable[Entry]) -> None:
        """Add a source that gives full names."""
        self._add(entries, loose=False)

    def add_file(self, path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path | None:
        """Add the configuration file, see :func:`find_file`; return it."""
        file, named_by = find_file(path, environ)
        if file is not None:
            entries, problems = read_document(file, named_by)
            self.problems += problems
            self.add_exact(entries)
        return file

    def _add(self, entries: Iterable[Entry], *, loose: bool) -> None:
        given: set[str] = set()
        for entry in entries:
            about = by_loose_name(entry.name) if loose else by_exact_name(entry.name)
            if about is None:
                if entry.raw is not None or not is_section(entry.name):  # "jobpipe:" with nothing below is no mistake
                    self._unknown(entry)
                continue
            if about.attribute in given:
                self._problem(entry, about.name, None, f"the key once; {about.short} is given under another name too")
                continue
            given.add(about.attribute)
            try:
                value = about.parse(entry.raw, entry.base)
            except BadValueError as error:
                self._bad.add(about.attribute)
                self._problem(entry, about.name, masked_repr(entry.raw, about), str(error) or about.expected)
                continue
            if about.attribute not in self._values:
                self._values[about.attribute] = value
                self.sources[about.name] = entry.source

    def _unknown(self, entry: Entry) -> None:
        others = self._others if entry.source == "option" else ()
        expected = suggest(entry.name, lambda about: _spell(entry, about), others=others)
        self.problems.append(unknown(entry.source, entry.given or entry.name, entry.raw, expected))

    def _problem(self, entry: Entry, name: str, value: str | None, expected: str) -> None:
        self.problems.append(ConfigProblem(entry.source, name, value, expected))

    def values(self, attributes: Iterable[str]) -> dict[str, Any]:
        """Return what is set of ``attributes``.

        Raises:
            ConfigError: there are problems, with whatever value.
        """
        if self.problems:
            raise config_error(self.problems)
        return {name: self._values[name] for name in attributes if name in self._values}

    def finish(self, *, pin_file: bool = False) -> Config:
        """Return the checked configuration.

        Args:
            pin_file: an option named the file: what it sets holds for the application, as options do.

        Raises:
            ConfigError: there are problems.
        """
        pinned = frozenset(
            about.attribute
            for about in KEYS
            if (source := self.sources[about.name]) in ("option", "spark") or (pin_file and ":" in source)
        )
        config = Config(**self._values, pinned=pinned)
        self.problems += check_together(config, self.sources, ignore=self._bad)
        if self.problems:
            raise config_error(self.problems)
        return config
