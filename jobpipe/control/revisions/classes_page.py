"""The tables in docs/pipelines.md of what a changed key does.

``python -m jobpipe.control.revisions.classes_page docs/pipelines.md`` makes them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from jobpipe.control.revisions.key_classes import CLASSES, ChangeClass, class_of_option, keeps_state
from jobpipe.pipelines.file.error_messages import field_names
from jobpipe.pipelines.plugins.api import Plugin
from jobpipe.pipelines.plugins.capture_source import CaptureSource
from jobpipe.pipelines.plugins.plugin_discovery import BUILT_IN, PlugInKind, Plugins

BEGIN = "<!-- made from jobpipe/control/revisions by `make docs`; do not edit -->\n"
END = "<!-- end of what is made -->\n"


def classes_page() -> str:
    """Return the tables: the keys, then the options of sources and sinks."""
    keys: dict[ChangeClass, list[str]] = {}
    for key, change in _sections(CLASSES, ""):
        keys.setdefault(change, []).append(f"`{key}`")
    lines = ["| what a change does | keys |", "|---|---|"]
    lines += [f"| {change} | {', '.join(keys[change])} |" for change in ChangeClass]
    lines += ["", "| stage | options whose change needs a new checkpoint |", "|---|---|"]
    lines += _plug_ins()
    return "\n".join([*lines, ""])


def with_classes(page: str) -> str:
    """Return a page with the tables in the place of those that it has."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{classes_page()}\n{END}{after}"


def _sections(classes: Mapping[str, ChangeClass], path: str) -> Iterator[tuple[str, ChangeClass]]:
    """Yield keys with their classes; a section whose keys are all of one class stands for them."""
    inside: dict[str, dict[str, ChangeClass]] = {}
    for key, change in classes.items():
        inside.setdefault(key.partition(".")[0], {})[key.partition(".")[2]] = change
    for name, rest in inside.items():
        whole = f"{path}{name}"
        if len(set(rest.values())) == 1:
            only = next(iter(rest)) if len(rest) == 1 else ""
            yield f"{whole}.{only}" if only else whole, next(iter(rest.values()))
        else:
            yield from _sections(rest, f"{whole}.")


def _plug_ins() -> Iterator[str]:
    """Yield a row for each set of options, with the stages that have it."""
    rows: dict[str, dict[PlugInKind, list[str]]] = {}
    found = Plugins()
    for each in found.all():
        if each.distribution == BUILT_IN and each.kind in (PlugInKind.SOURCE, PlugInKind.TRANSFORM, PlugInKind.SINK):
            options = _options(each.kind, found.find(each.kind, each.type))
            rows.setdefault(options, {}).setdefault(each.kind, []).append(f"`{each.type}`")
    for options, stages in rows.items():
        listed = "; ".join(f"{kind} {', '.join(types)}" for kind, types in stages.items())
        yield f"| {listed} | {options} |"


def _options(kind: PlugInKind, plugin: type[Plugin]) -> str:
    if kind is PlugInKind.TRANSFORM:
        return "all: it keeps state" if keeps_state(plugin) else "none by itself; Spark's plan is compared"
    if plugin.identifying is None:
        return "all but those that are known to tune, such as `maxFilesPerTrigger`"
    own = {name.lower(): name for name in field_names(plugin.Options)}
    named = [own.get(name, name) for name in sorted(plugin.identifying)]
    if issubclass(plugin, CaptureSource):
        listed = ", ".join(f"`{name}`" for name in named)
        return f"none; after a change of {listed}, a capture that has published needs another name"
    told = [name for name in named if class_of_option(kind, plugin, name) is ChangeClass.NEW_CHECKPOINT]
    return ", ".join(f"`{name}`" for name in told) or "none"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_classes(file.read_text(encoding="utf-8")), encoding="utf-8")
