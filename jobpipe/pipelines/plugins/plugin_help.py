"""What is known of a plug-in, for people: its docstring, what it promises, and its options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from jobpipe.pipelines.file.error_messages import field_names
from jobpipe.pipelines.file.field_types import EXPECTED
from jobpipe.pipelines.file.problems import nearest
from jobpipe.pipelines.file.spec import SinkSpec, SourceSpec, StageSpec
from jobpipe.pipelines.plugins.api import Launcher, Sink, Source
from jobpipe.pipelines.plugins.json_schema import options_schema
from jobpipe.pipelines.plugins.option_models import CONFIGURATION
from jobpipe.pipelines.plugins.plugin_discovery import InstalledPlugin, PlugInError, Plugins, plug_in_error


def about(each: InstalledPlugin) -> str:
    """Return the first sentence of a plug-in, or why it cannot be had."""
    try:
        return (inspect.getdoc(each.load()) or "").splitlines()[0]
    except PlugInError as error:
        return str(error)


def explain(plugins: Plugins, type_: str) -> str:
    """Return all that is known of the plug-ins of that type, as lines of text.

    Raises:
        PlugInError: there is none, or two of one kind, or it cannot be loaded.
    """
    kinds = list(dict.fromkeys(each.kind for each in plugins.all() if each.type == type_))
    if not kinds:
        what = f"there is no plug-in of type {type_!r:.120}"
        raise plug_in_error(what, nearest(type_, {each.type for each in plugins.all()}))
    parts = []
    for kind in kinds:
        found = plugins.find(kind, type_)
        whose = next(each.distribution for each in plugins.all() if (each.kind, each.type) == (kind, type_))
        parts.append("\n".join([f"{type_} ({kind} of {whose})", *_lines(found)]))
    return "\n\n".join(parts)


def _lines(found: Any) -> Iterator[str]:
    for line in (inspect.getdoc(found) or "").splitlines():
        yield f"  {line}".rstrip()
    if issubclass(found, Sink):
        yield f"  promise: {found.promise}"
        yield f"  jobs:    {', '.join(sorted(found.modes))}"
    if issubclass(found, Source) and found.takes_bounds:
        yield "  bounds:  those of a scheduled run are applied by themselves"
    if issubclass(found, Launcher) and found.cluster:
        yield "  driver:  may run on any host of a cluster"
    schema = options_schema(found.Options)
    required = schema.get("required", [])
    keys = 0
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    for name, field in properties.items():
        if field.get(CONFIGURATION):
            keys += 1
            continue
        yield f"  {name}{' (required)' if name in required else ''}"
        if field.get("description"):
            yield f"      {field['description']}"
        if (phrase := _expected(field)) not in ("", "a text", "a plain value"):
            yield f"      expected: {phrase}"
        if "default" in field and field["default"] not in (None, {}, []):
            yield f"      default:  {_short_repr(field['default'])}"
    if not properties:
        yield "  no options"
    if keys:
        yield f"  and {keys} keys of the configuration, without jobpipe.: `jobpipe config show` lists them"
    common = field_names(
        SourceSpec if issubclass(found, Source) else SinkSpec if issubclass(found, Sink) else StageSpec
    )
    if more := [name for name in common if name != "type"]:
        yield f"  and {', '.join(more)}, as every {'source' if issubclass(found, Source) else 'sink'}"


def _expected(field: dict[str, Any]) -> str:
    """Return what a value must look like; empty if its type says no more than text or number."""
    parts = (field, *field.get("anyOf", ()))
    choices = [str(value) for each in parts for value in each.get("enum", ())]
    return ", ".join(choices) or next((str(each[EXPECTED]) for each in parts if EXPECTED in each), "")


def _short_repr(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
