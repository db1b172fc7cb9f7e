"""pydantic's errors as problems: with the key's line, in plain English, with the nearest name of an unknown key."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, ValidationError

from jobpipe.config.definition import HIDDEN
from jobpipe.config.secrets import EXPECTED as SECRET_EXPECTED
from jobpipe.errors import shown
from jobpipe.pipelines.kinds import is_secret
from jobpipe.pipelines.problems import Problem, Severity, nearest
from jobpipe.pipelines.tree import Path, TreeNode, dotted, find

MEANT = {
    "predicate": "Filter, InsertField and MaskField take one: all rows of a job have the same columns",
    "name": "the job's name is its key under jobs:, and its subscription is PIPELINE.JOB",
    "parallelism": "give a topic's partitions by parallelism of the sink, Spark's by "
    "configuration: {spark.sql.shuffle.partitions: N}",
    "local-time-zone": "give it as configuration: {spark.sql.session.timeZone: ZONE}",
    "schema.change.behavior": "give schemaEvolution to the source of the job that reads",
    "schema": "give it to the source or sink; only a flow has one of its own",
    "source-table": "a transform is for all rows of its job; give `filter: CONDITION`, or make another job",
    "checkpointLocation": "give pipeline.storage: each job has a folder there",
    "depends-on": "jobs are chained by topics; a schedule waits by self-depend",
    "steps": "give them as transform:",
    "transforms": "give them as transform:",
}
"""What other systems call it, or put elsewhere."""
_SHAPES = {
    "model_type": "a section with keys",
    "model_attributes_type": "a section with keys",
    "dict_type": "a section with keys",
    "mapping_type": "a section with keys",
    "tuple_type": "a list",
    "list_type": "a list",
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}


def problem_at(
    root: TreeNode, path: Path, what: str, remedy: str, severity: Severity = "error", *, at: Path | None = None
) -> Problem:
    """Return a problem of the key at ``path``, told in the line of ``at`` or of itself, or of what holds it."""
    place = find(root, path if at is None else at).shown_at
    return Problem(place.file, place.line, dotted(path), what, remedy, severity)


def problems_of(
    error: ValidationError,
    model: type[BaseModel],
    root: TreeNode,
    above: Path = (),
    *,
    more: Mapping[str, str] | None = None,
) -> Iterator[Problem]:
    """Yield a problem for each error.

    Args:
        above: where in the file the model's section is.
        more: names that may stand in that section, in addition to the model's.
    """
    for each in error.errors(include_url=False):
        if each["type"] == "too_short" and len(each["input"]) >= (each.get("ctx") or {})["min_length"]:
            continue  # pydantic has left out the wrong ones, which are told by themselves
        loc = tuple(part for part in each["loc"] if part != "[key]")
        context = each.get("ctx") or {}
        path: Path = (*above, *loc)
        if inner := context.get("key"):
            path = (*path, str(inner))
        names = {**_names_at(model, loc), **((more or {}) if len(loc) == 1 else {})}
        yield _problem(each["type"], each["msg"], path, each["input"], context, names, root)


def _problem(
    kind: str, said: str, path: Path, value: Any, context: Mapping[str, Any], names: Mapping[str, str], root: TreeNode
) -> Problem:
    key = str(path[-1]) if path else ""
    if kind == "extra_forbidden":
        return problem_at(root, path, "there is no such key", _meant(key, names))
    if kind == "missing":
        about = names.get(key, "")
        return problem_at(root, path, "it is missing", f"give it: {about}" if about else "give it")
    if kind == "wrong_key":
        return problem_at(root, path, context["what"], context["remedy"])
    if kind == "value_error":
        what, _, remedy = said.removeprefix("Value error, ").partition("; ")
        return problem_at(root, path, what, remedy)
    phrase = _phrase(kind, said, context)
    inner = (
        value.get(context["key"]) if context.get("key") and isinstance(value, dict) else getattr(value, "raw", value)
    )
    hidden = is_secret(key) or phrase == SECRET_EXPECTED
    return problem_at(root, path, f"{HIDDEN if hidden else shown(inner)} does not fit", f"give {phrase}")


def _phrase(kind: str, said: str, context: Mapping[str, Any]) -> str:
    if kind in ("expected", "literal_error", "enum"):
        return str(context["expected"]).replace("'", "")
    if kind in _SHAPES:
        return _SHAPES[kind]
    if kind == "string_pattern_mismatch":
        return f"a text of the form {context['pattern']}"
    if kind == "too_long":
        return f"at most {context['max_length']}"
    if kind in ("too_short", "string_too_short"):
        return f"at least {context['min_length']}"
    return said[:1].lower() + said[1:]


def _meant(key: str, names: Mapping[str, str]) -> str:
    if key in MEANT:
        return MEANT[key]
    return nearest(key, names)


def field_names(model: type[BaseModel]) -> dict[str, str]:
    """Return the names that a file may give in a model's section, with what each means."""
    found = {}
    for name, field in model.model_fields.items():
        about = field.description or ""
        alias = field.validation_alias
        if isinstance(alias, AliasChoices):
            found.update({each: about for each in alias.choices if isinstance(each, str)})
        else:
            found[alias if isinstance(alias, str) else name] = about
    return found


def _names_at(model: type[BaseModel], loc: Path) -> dict[str, str]:
    """Return the names of the section that holds the last key of ``loc``."""
    here: Any = model
    for key in loc[:-1]:
        here = _inside(here, key)
        if here is None:
            return {}
    here = _bare(here)
    return field_names(here) if isinstance(here, type) and issubclass(here, BaseModel) else {}


def _inside(kind: Any, key: str | int) -> Any:
    kind = _bare(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            if key in (name, field.alias, field.validation_alias):
                return field.annotation
        return None
    arguments = get_args(kind)
    if get_origin(kind) is dict:
        return arguments[1]
    return arguments[0] if get_origin(kind) in (tuple, list) else None


def _bare(kind: Any) -> Any:
    """Return the type without Annotated and None."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, types.UnionType):
            kind = next((each for each in get_args(kind) if each is not type(None)), None)
        else:
            return kind
