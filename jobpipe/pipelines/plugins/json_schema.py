"""The JSON Schema of a pipeline file, for editors: ``python -m jobpipe.pipelines.plugins.json_schema`` prints it.

It takes whatever ``jobpipe pipeline validate`` takes, and more: a plug-in of another distribution passes unchecked, and
so does a text with a reference (``${...}``).
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, PydanticUserError

from jobpipe.pipelines.file.error_messages import field_names
from jobpipe.pipelines.file.spec import (
    EngineSpec,
    JobSpec,
    PipelineFile,
    SinkSpec,
    SourceSpec,
    StageSpec,
    TransformSpec,
)
from jobpipe.pipelines.plugins.plugin_discovery import BUILT_IN, PlugInKind, Plugins

_SPECS: dict[PlugInKind, type[StageSpec]] = {
    PlugInKind.SOURCE: SourceSpec,
    PlugInKind.TRANSFORM: TransformSpec,
    PlugInKind.SINK: SinkSpec,
    PlugInKind.LAUNCHER: StageSpec,
    PlugInKind.ENGINE: EngineSpec,
}
_DEFAULT_TYPES: dict[type[StageSpec], str] = {TransformSpec: "sql", EngineSpec: "builtin"}
_Schema = dict[str, Any]


def options_schema(model: type[BaseModel]) -> _Schema:
    """Return the schema of a plug-in's options; names and descriptions alone if a type of its own has no schema."""
    try:
        return model.model_json_schema(mode="validation")
    except PydanticUserError:
        return {"properties": {name: {"description": about} for name, about in field_names(model).items()}}


def file_schema() -> _Schema:
    """Return the schema of a whole file: with ``jobs``, or of one job."""
    schema = PipelineFile.model_json_schema(mode="validation")
    definitions: dict[str, _Schema] = schema["$defs"]
    plugins = Plugins([each for each in Plugins().all() if each.distribution == BUILT_IN])
    for kind, spec in _SPECS.items():
        definitions[spec.__name__] = _stage(kind, spec, plugins, definitions)
    job = definitions[JobSpec.__name__]
    for name, about in job["properties"].items():
        job["properties"][name] = _or(about, {"type": "null"})  # as if it were not there
    one_job = {
        **job,
        "title": "A pipeline of one job",
        "properties": {"pipeline": schema["properties"]["pipeline"], **job["properties"]},
        "required": ["pipeline"],
        "not": {"required": ["jobs"]},
    }
    several = {key: value for key, value in schema.items() if key != "$defs"}
    loose = {name: _loose(about, definitions) for name, about in definitions.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A pipeline of jobpipe",
        "anyOf": [_loose(several, definitions), _loose(one_job, definitions)],
        "$defs": {**loose, "reference": {"type": "string", "pattern": r"\$\{"}},
    }


def _stage(kind: PlugInKind, spec: type[StageSpec], plugins: Plugins, definitions: dict[str, _Schema]) -> _Schema:
    """Return the schema of a stage: for each type its options, and, for other types, anything."""
    common = spec.model_json_schema(mode="validation")["properties"]
    known = plugins.types(kind)
    choices: list[_Schema] = []
    for type_ in known:
        plugin = plugins.find(kind, type_)
        options = options_schema(plugin.Options)
        definitions.update(options.pop("$defs", {}))
        own = _shared(options.get("properties", {}), definitions)
        choice = {
            "title": type_,
            "description": _first_line(plugin),
            "type": "object",
            "properties": {**common, **own},
            "required": [
                *(["type"] if type_ != _DEFAULT_TYPES.get(spec) else []),
                *options.get("required", []),
            ],
            "additionalProperties": False,
        }
        loose = _loose(choice, definitions)
        loose["properties"]["type"] = {"const": type_}
        choices.append(loose)
    other = {"type": "object", "properties": {"type": {"type": "string", "not": {"enum": known}}}, "required": ["type"]}
    return {"anyOf": [*choices, other]}


def _shared(properties: dict[str, _Schema], definitions: dict[str, _Schema]) -> dict[str, _Schema]:
    """Return the properties with keys of the configuration as references: sources and sinks have the same."""
    found = {}
    for name, about in properties.items():
        if about.pop("configuration", False):
            definitions[f"configuration/{name}"] = about
            found[name] = {"$ref": f"#/$defs/configuration~1{name}"}
        else:
            found[name] = about
    return found


def _loose(section: _Schema, definitions: dict[str, _Schema]) -> _Schema:
    """Return the schema of a section that takes references."""
    properties = {name: _or_reference(about, definitions) for name, about in section.get("properties", {}).items()}
    return {**section, "properties": properties} if properties else section


def _named(about: _Schema) -> _Schema:
    """Return the schema of sections by name with no other names; any other as it is."""
    return {**about, "additionalProperties": False} if "patternProperties" in about else about


def _or_reference(about: _Schema, definitions: dict[str, _Schema]) -> _Schema:
    """Return the schema of a value that may be a reference to a parameter, or a number in quotes, instead."""
    if "items" in about:
        about = {**about, "items": _or_reference(about["items"], definitions)}
    if "anyOf" in about:
        about = {**about, "anyOf": [_named(each) for each in about["anyOf"]]}
    about = _named(about)
    if (type_ := about.get("type")) in ("boolean", "integer", "number"):
        return {**about, "type": sorted({str(type_), "number", "string"})}  # as pydantic reads them
    kinds = [about, *about.get("anyOf", ())]
    targets = (definitions.get(kind.get("$ref", "").removeprefix("#/$defs/"), {}) for kind in kinds)
    closed = any({"enum", "const", "pattern"} & kind.keys() for kind in (*kinds, *targets))
    return _or(about, {"$ref": "#/$defs/reference"}) if closed else about


def _or(about: _Schema, other: _Schema) -> _Schema:
    """Return the schema of a value that may be another one."""
    if "anyOf" in about:
        return about if other in about["anyOf"] else {**about, "anyOf": [*about["anyOf"], other]}
    said: _Schema = {key: about[key] for key in ("title", "description", "default") if key in about}
    return {**said, "anyOf": [{key: value for key, value in about.items() if key not in said}, other]}


def _first_line(plugin: type) -> str:
    return (plugin.__doc__ or "").strip().splitlines()[0]


def schema_text() -> str:
    """Return the file's text."""
    return json.dumps(file_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")  # noqa: T201 - a program
