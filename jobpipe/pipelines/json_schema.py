"""The JSON Schema of a pipeline file, for editors: ``python -m jobpipe.pipelines.json_schema`` prints it.

It knows the built-in plug-ins with their options. A plug-in of another distribution passes unchecked, and so does a
dotted key below a known one; ``jobpipe pipeline validate`` checks both.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, PydanticUserError

from jobpipe.pipelines.installed import BUILT_IN, PlugInKind, Plugins
from jobpipe.pipelines.spec import JobSpec, PipelineFile, SinkSpec, SourceSpec, StageSpec, TransformSpec
from jobpipe.pipelines.wording import field_names

_SPECS: dict[PlugInKind, type[StageSpec]] = {
    PlugInKind.SOURCE: SourceSpec,
    PlugInKind.TRANSFORM: TransformSpec,
    PlugInKind.SINK: SinkSpec,
    PlugInKind.LAUNCHER: StageSpec,
}
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
    for definition in list(definitions.values()):
        _allow_dotted(definition)
    job = definitions[JobSpec.__name__]
    one_job = {
        **job,
        "title": "A pipeline of one job",
        "properties": {"pipeline": schema["properties"]["pipeline"], **job["properties"]},
        "required": ["pipeline"],
        "not": {"required": ["jobs"]},
    }
    several = {key: value for key, value in schema.items() if key != "$defs"}
    _allow_dotted(several)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A pipeline of jobpipe",
        "anyOf": [several, one_job],
        "$defs": definitions,
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
        choices.append(
            {
                "title": type_,
                "description": _first_line(plugin),
                "type": "object",
                "properties": {**common, "type": {"const": type_}, **_shared(options["properties"], definitions)}
                if "properties" in options
                else {**common, "type": {"const": type_}},
                "required": [
                    *(["type"] if spec is not TransformSpec or type_ != "sql" else []),
                    *options.get("required", []),
                ],
                "additionalProperties": False,
                "patternProperties": {r"\.": {}},
            }
        )
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


def _allow_dotted(definition: _Schema) -> None:
    if definition.get("additionalProperties") is False and definition.get("properties"):
        names = "|".join(sorted(definition["properties"]))
        definition.setdefault("patternProperties", {rf"^({names})\.": {}})


def _first_line(plugin: type) -> str:
    return (plugin.__doc__ or "").strip().splitlines()[0]


def schema_text() -> str:
    """Return the file's text."""
    return json.dumps(file_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")  # noqa: T201 - a program
