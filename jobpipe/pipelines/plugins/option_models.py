"""Options of a plug-in from jobpipe's own definitions: each option is defined once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import Field, create_model

from jobpipe.config.definitions.definition import Definition, Key
from jobpipe.pipelines.file.field_types import of_kind
from jobpipe.pipelines.plugins.api import PluginOptions

CONFIGURATION = "configuration"  # in the schema of a field: it is a key of the configuration


def options_model(
    name: str,
    definitions: Iterable[Definition],
    spell: Callable[[Definition], str],
    *,
    required: Iterable[str] = (),
    **own: Any,
) -> type[PluginOptions]:
    """Return a model with a field for each definition; its value is as ``kind.parse`` returns it, None if not given.

    Args:
        spell: how files name it.
        required: names of definitions.
        own: more fields, as for pydantic's ``create_model``.
    """
    fields: dict[str, Any] = dict(own)
    for about in definitions:
        kind = Annotated[Any, *of_kind(about.value_type)]
        is_key = isinstance(about, Key)
        fields[about.attribute if isinstance(about, Key) else about.name] = (
            kind,
            Field(
                ... if about.name in required else None,
                validation_alias=spell(about),
                description=f"{about.documentation} Default: {about.default_text}.",
                json_schema_extra={CONFIGURATION: True} if is_key else None,
            ),
        )
    return create_model(name, __base__=PluginOptions, **fields)
