"""The plug-ins that are installed: found by their entry points, loaded when a file names them, checked for their shape.

The built-in ones are declared as a stranger's are, in pyproject.toml.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from jobpipe.config.definitions.key_names import closest
from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.problems import nearest
from jobpipe.pipelines.file.spec import is_capture
from jobpipe.pipelines.plugins.api import DeliveryGuarantee, Launcher, Plugin, PluginOptions, Sink, Source, Transform
from jobpipe.pipelines.plugins.capture_source import CaptureSource
from jobpipe.pipelines.plugins.schedule_engine import ScheduleEngine

log = logging.getLogger(__name__)

BUILT_IN = "jobpipe"  # the distribution
PlugInClass = type[Any]


class PlugInKind(StrEnum):
    """What a plug-in is."""

    SOURCE = "source"
    TRANSFORM = "transform"
    SINK = "sink"
    LAUNCHER = "launcher"
    ENGINE = "engine"

    @property
    def group(self) -> str:
        """The group of its entry points."""
        return f"jobpipe.{self}s"

    @property
    def base(self) -> type[Plugin]:
        """The class it is made of."""
        return _BASES[self]


_BASES: dict[PlugInKind, type[Plugin]] = {
    PlugInKind.SOURCE: Source,
    PlugInKind.TRANSFORM: Transform,
    PlugInKind.SINK: Sink,
    PlugInKind.LAUNCHER: Launcher,
    PlugInKind.ENGINE: ScheduleEngine,
}


class PlugInError(ConfigError):
    """A plug-in cannot be had; ``fields`` hold what is wrong, and what to do."""

    @property
    def what(self) -> str:
        """What is wrong."""
        return str(self.fields["what"])

    @property
    def remedy(self) -> str:
        """What to do."""
        return str(self.fields["remedy"])


def plug_in_error(what: str, remedy: str) -> PlugInError:
    """Return the error."""
    return PlugInError(f"{what}; {remedy}", what=what, remedy=remedy)


@dataclass(frozen=True)
class InstalledPlugin:
    """A plug-in as its distribution declares it; it is not loaded yet."""

    kind: PlugInKind
    type: str
    distribution: str
    entry: EntryPoint

    def load(self) -> PlugInClass:
        """Return the class.

        Raises:
            PlugInError: it cannot be imported, or is no plug-in of its kind.
        """
        try:
            with redirect_stdout(sys.stderr):  # what a module prints is no part of a command's output
                found = self.entry.load()
        except (Exception, SystemExit) as error:
            what = f"plug-in {self.type} of {self.distribution} cannot be imported: {type(error).__name__}: {error}"
            raise plug_in_error(what[:500], f"install or correct {self.distribution}") from error
        if (wrong := _wrong_shape(found, self)) is not None:
            what = f"plug-in {self.type} of {self.distribution} ({self.entry.value}) {wrong}"
            raise plug_in_error(
                what, f"correct {self.distribution}; jobpipe.pipelines.plugins.api says what a plug-in is"
            )
        return found  # type: ignore[no-any-return]


def _wrong_shape(found: object, about: InstalledPlugin) -> str | None:
    """Return what keeps it from being a plug-in, as a phrase."""
    base = about.kind.base
    if not inspect.isclass(found) or not issubclass(found, base):
        return f"is not a subclass of {base.__name__}"
    if getattr(found, "type", None) != about.type:
        return f"says that its type is {getattr(found, 'type', None)!r}"
    model: object = getattr(found, "Options", None)
    if not (inspect.isclass(model) and issubclass(model, PluginOptions)):
        return "has Options that are not a subclass of PluginOptions"
    if model.model_config.get("extra") != "forbid":
        return "has Options that take unknown keys: its model_config must keep extra='forbid'"
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        return f"lacks {', '.join(missing)}"
    if not (found.__doc__ or "").strip():
        return "has no docstring, which is its description"
    if issubclass(found, Source) and issubclass(found, CaptureSource) is not is_capture(about.type):
        return "is a CaptureSource or has a type that ends with -cdc, and not both"
    if issubclass(found, Sink) and not isinstance(getattr(found, "promise", None), DeliveryGuarantee):
        return "does not say what it promises"
    return None


class Plugins:
    """All that is installed, by kind and type."""

    def __init__(self, found: Iterable[InstalledPlugin] | None = None) -> None:
        self._found: dict[tuple[PlugInKind, str], list[InstalledPlugin]] = {}
        self._loaded: dict[tuple[PlugInKind, str], type[Any]] = {}
        for each in _all_installed() if found is None else found:
            same = self._found.setdefault((each.kind, each.type), [])
            if all((each.distribution, each.entry.value) != (one.distribution, one.entry.value) for one in same):
                same.append(each)

    def all(self) -> list[InstalledPlugin]:
        """Return every plug-in, by kind and type."""
        order = list(PlugInKind)
        every = (each for same in self._found.values() for each in same)
        return sorted(every, key=lambda each: (order.index(each.kind), each.type.lower(), each.distribution))

    def types(self, kind: PlugInKind) -> list[str]:
        """Return the types of a kind."""
        return sorted({type_ for found, type_ in self._found if found is kind})

    def find(self, kind: PlugInKind, type_: str) -> type[Any]:
        """Return the class of a plug-in, a subclass of ``kind.base``.

        Raises:
            PlugInError: there is none of that type, or there are two, or it is none.
        """
        key = (kind, type_)
        if key not in self._loaded:
            accepting = self._accepting(type_) if kind is PlugInKind.ENGINE else None
            self._loaded[key] = self._only(kind, type_).load() if accepting is None else accepting
        return self._loaded[key]

    def _accepting(self, type_: str) -> type[ScheduleEngine] | None:
        """Return the engine that goes by that name too, if none has it as its type."""
        others = [] if type_ in self.types(PlugInKind.ENGINE) else self.types(PlugInKind.ENGINE)
        for name in others:
            try:
                found: type[ScheduleEngine] = self.find(PlugInKind.ENGINE, name)
            except PlugInError as error:
                log.warning("%s", error)
                continue
            try:
                if found.accept(type_):
                    return found
            except Exception:  # a stranger's plug-in
                log.exception("whether engine %s accepts type %s is not to be had", name, type_)
        return None

    def _only(self, kind: PlugInKind, type_: str) -> InstalledPlugin:
        same = self._found.get((kind, type_), [])
        if len(same) > 1:
            whose = " and ".join(f"{each.distribution} ({each.entry.value})" for each in same)
            raise plug_in_error(f"there are two {kind}s of type {type_}, of {whose}", "uninstall one of them")
        if not same:
            others = [f"it is the type of a {other}" for other in PlugInKind if (other, type_) in self._found]
            what = f"there is no {kind} of type {type_!r:.120}" + "".join(f": {each}" for each in others[:1])
            remedy = nearest(type_, self.types(kind))
            if kind in (PlugInKind.SOURCE, PlugInKind.SINK) and closest(type_, self.types(kind)) is None:
                remedy += "; any other format that Spark knows is type: spark, with its name as format"
            raise plug_in_error(what, remedy)
        return same[0]


def _all_installed() -> Iterable[InstalledPlugin]:
    """Yield all of them; to ask for the name of a distribution is to parse its metadata, so it is asked once."""
    every = entry_points()
    names: dict[int, str] = {}
    for kind in PlugInKind:
        for entry in every.select(group=kind.group):
            if id(entry.dist) not in names:
                names[id(entry.dist)] = entry.dist.name if entry.dist is not None else "?"
            yield InstalledPlugin(kind, entry.name, names[id(entry.dist)], entry)
