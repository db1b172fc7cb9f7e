"""pydantic's errors as problems: with the key's line, in plain English, with the nearest name of an unknown key."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from jobpipe.config.definitions.definition import HIDDEN
from jobpipe.config.definitions.key_names import closest
from jobpipe.config.reading.located_values import Path, TreeNode, dotted, find
from jobpipe.config.types.secrets import EXPECTED as SECRET_EXPECTED
from jobpipe.errors import short_repr
from jobpipe.pipelines.file.field_types import whole_key
from jobpipe.pipelines.file.problems import Problem, Severity, nearest
from jobpipe.pipelines.file.secret_keys import holds_secret, is_secret
from jobpipe.pipelines.file.spec import (
    ErrorsSpec,
    JobSpec,
    PipelineSpec,
    SinkSpec,
    SourceSpec,
    StageSpec,
    TransformSpec,
)

_PLAIN_NAME = re.compile(r"[\w-]{1,64}")
NAMES_MOST = 5  # in the form of what is to be written
_UDF = "give the function to a transform, as {type: python, function: module:name}"
_NO_OPERATORS = "leave it out: a checkpoint belongs to a job by its name"
MEANT: dict[type[BaseModel], dict[str, str]] = {
    PipelineSpec: {
        "parallelism": "give a topic's partitions by parallelism of the sink, Spark's by "
        "configuration: {spark.sql.shuffle.partitions: N}",
        "local-time-zone": "give it as configuration: {spark.sql.session.timeZone: ZONE}",
        "schema.change.behavior": "give schemaEvolution to the source of the job that reads",
        "execution": "give execution: {runtime-mode: ...} to each job",
        "operator.uid.prefix": _NO_OPERATORS,
        "schema.operator.uid": _NO_OPERATORS,
        "schema-operator.rpc-timeout": "leave it out: no operator is asked for a schema",
        "route-mode": "leave it out: rows go to the topics of all routes that match",
        "user-defined-function": _UDF,
        "model": _UDF,
        "schema": "give it to the source or sink; only a flow has one of its own",
        "checkpointLocation": "give storage: each job has a folder there",
    },
    JobSpec: {
        "name": "the job's name is its key under jobs:, and its subscription is PIPELINE.JOB",
        "parallelism": "give a topic's partitions by parallelism of the sink, Spark's by "
        "configuration: {spark.sql.shuffle.partitions: N}",
        "checkpointLocation": "give pipeline.storage: each job has a folder there",
        "depends-on": "jobs are chained by topics; a schedule waits by self-depend",
        "steps": "give them as transform:",
        "transforms": "give them as transform:",
    },
    ErrorsSpec: {"deadletterqueue": "give dead-letters: TOPIC"},
    SourceSpec: {
        "name": "leave it out: the job has a name, and its subscription is PIPELINE.JOB",
        "checkpointLocation": "give pipeline.storage: each job has a folder there",
    },
    TransformSpec: {
        "predicate": "Filter, InsertField and MaskField take one: all rows of a job have the same columns",
        "primary-keys": "give keys to a sink that replaces rows by them, as jdbc-upsert does",
        "partition-keys": "give partition-by to the sink",
        "table-options": "give them to the sink, as its options",
        "converter-after-transform": "leave it out: what the transforms return is what the sink gets",
    },
    SinkSpec: {
        "name": "leave it out: a sink has none",
        "checkpointLocation": "give pipeline.storage: each job has a folder there",
        "include.schema.changes": "give schemaEvolution to the source of the job that reads",
        "exclude.schema.changes": "give schemaEvolution to the source of the job that reads",
    },
}
"""What other systems call it, or put elsewhere, by section; a name stands for dotted keys that begin with it, too."""
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


_BOUNDS = {
    "greater_than": "greater than",
    "greater_than_equal": "of at least",
    "less_than": "less than",
    "less_than_equal": "of at most",
    "multiple_of": "that is a multiple of",
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
    stage: type[StageSpec] | None = None,
) -> Iterator[Problem]:
    """Yield a problem for each key that is wrong.

    Args:
        above: where in the file the model's section is.
        stage: of the options of a plug-in, what may stand there in addition to them.
    """
    found: dict[Path, Problem] = {}
    for path, problem in _each_problem(error, model, root, above, stage):
        same = found.setdefault(path, problem)
        if same is not problem and same.what == problem.what:  # a value that fits none of several types
            found[path] = replace(same, remedy=f"{same.remedy} or {problem.remedy.removeprefix('give ')}")
        elif same is not problem:
            yield problem
    yield from found.values()


def _each_problem(
    error: ValidationError, model: type[BaseModel], root: TreeNode, above: Path, stage: type[StageSpec] | None
) -> Iterator[tuple[Path, Problem]]:
    for each in error.errors(include_url=False):
        if each["type"] == "too_short" and len(each["input"]) >= (each.get("ctx") or {})["min_length"]:
            continue  # pydantic has left out the wrong ones, which have problems of their own
        loc = _written(model, tuple(part for part in each["loc"] if part != "[key]"))
        context = each.get("ctx") or {}
        path: Path = (*above, *loc)
        section = _section_at(model, loc)
        names = {} if section is None else field_names(section)
        if stage is not None and len(loc) == 1:
            names |= field_names(stage)
        if each["type"] == "extra_forbidden":
            key, kind, of_plugin = str(path[-1]), section or model, stage is not None and len(loc) == 1
            meant = MEANT.get(stage if stage is not None and of_plugin else kind, {})
            if stage is not None and of_plugin and key.partition(".")[0] in field_names(stage):
                kind = stage
            remedy = _meant(key, each["input"], names, meant, kind, nearest_first=of_plugin)
            yield path, problem_at(root, path, "there is no such key", _in_section(remedy, key, find(root, path[:-1])))
            continue
        yield path, _problem(each["type"], each["msg"], path, each["input"], context, names, root)


def _meant(
    key: str, value: Any, names: Mapping[str, str], meant: Mapping[str, str], kind: Any, *, nearest_first: bool
) -> str:
    """Return what was probably meant by an unknown key.

    Args:
        kind: the type of the section that has it.
        nearest_first: a plug-in may have options of its own that are named nearly so.
    """
    if isinstance(value, dict) and value and (whole := whole_key(key, value)) in names:
        return f"write {whole}: ..."
    head, dot, _ = key.partition(".")
    if dot and key not in meant and (written := nested(kind, key)) is not None:
        return f"write {written}"
    known = meant.get(key) or meant.get(head)
    if known is None and nearest_first and "options" in names and closest(key, names) is None:
        return f"write options: {{{key}: ...}}"
    if known is None or (nearest_first and closest(key, names) is not None):
        return nearest(key, names)
    return known


def _in_section(remedy: str, key: str, above: TreeNode) -> str:
    """Return a remedy that writes a dotted key nested, for a section that the file has already."""
    head, begin = key.partition(".")[0], f"write {key.partition('.')[0]}: {{"
    there = above.value.get(head) if isinstance(above.value, dict) else None
    if there is None or not isinstance(there.value, dict) or not remedy.startswith(begin):
        return remedy
    inner = remedy.removeprefix(begin).removesuffix("}")
    return f"write {inner} in section {head}, line {there.shown_at.line}"


def nested(kind: Any, key: str) -> str | None:
    """Return how a dotted key is written in the sections of a type, down to free keys; None if there are none.

    >>> nested(JobSpec, "execution.runtime-mode")
    'execution: {runtime-mode: ...}'
    """
    here = _bare(kind)
    head, dot, rest = key.partition(".")
    if not all(key.split(".")):
        return None
    inside = _bare(_inside(here, head))
    if inside is None and _is_model(here, StageSpec):  # an option of some plug-in
        return f"options: {{{rest}: ...}}" if dot and head == "options" else f"{key}: ..."
    if (get_origin(here) is dict and not _is_model(inside)) or (not dot and inside is not None):
        return f"{key}: ..."
    if get_origin(inside) is tuple and _is_model(each := _bare(get_args(inside)[0])):
        written = nested(each, rest.removeprefix("0."))
        return None if written is None else f"{head}: [{{{written}}}]"
    written = nested(inside, rest) if _is_model(inside) or get_origin(inside) is dict else None
    return None if written is None else f"{head}: {{{written}}}"


def _problem(
    kind: str, said: str, path: Path, value: Any, context: Mapping[str, Any], names: Mapping[str, str], root: TreeNode
) -> Problem:
    key = str(path[-1]) if path else ""
    if isinstance(value, dict) and value and (whole := whole_key(key, value)) in names:
        return problem_at(root, path, "it is a section, and this key has none", f"write {whole}: ...")
    if kind == "missing":
        about = names.get(key, "").removesuffix(" Default: null.")  # what must be given has none
        return problem_at(root, path, "it is missing", f"give it: {about}" if about else "give it")
    if kind == "wrong_key":
        return problem_at(root, path, context["what"], context["remedy"])
    if kind in ("value_error", "assertion_error"):
        what, _, remedy = said.removeprefix("Value error, ").removeprefix("Assertion failed, ").partition("; ")
        return problem_at(root, path, what, remedy)
    if key == "sources" and kind == "dict_type" and isinstance(value, (list, tuple)):
        return problem_at(root, path, "it is a list", by_name(key, value))
    if key == "sinks" and kind == "tuple_type" and isinstance(value, dict):
        forms = ", ".join(["{...}"] * min(len(value), NAMES_MOST) or ["{...}"])
        return problem_at(root, path, "it is a section", f"give a list, without names: sinks: [{forms}]")
    phrase = _phrase(kind, said, context)
    inner = getattr(value, "raw", value)
    hidden = is_secret(key) or phrase == SECRET_EXPECTED or (isinstance(inner, str) and holds_secret(inner))
    return problem_at(root, path, f"{HIDDEN if hidden else short_repr(inner)} is not valid", f"give {phrase}")


def by_name(key: str, listed: Sequence[Any]) -> str:
    """Return how a list is written as the section that it should be, with the names that the list gives."""
    given = [each.get("name") if isinstance(each, dict) else None for each in listed]
    names = [
        name if isinstance(name, str) and _PLAIN_NAME.fullmatch(name) else f"NAME{number}"
        for number, name in enumerate(given, 1)
    ]
    most = ", ..." if len(names) > NAMES_MOST else ""
    return f"give them by name: {key}: {{{', '.join(f'{name}: {{...}}' for name in names[:NAMES_MOST])}{most}}}"


def _phrase(kind: str, said: str, context: Mapping[str, Any]) -> str:
    if kind == "expected":
        return str(context["expected"])
    if kind in ("literal_error", "enum"):
        return str(context["expected"]).replace("'", "")
    if kind in _SHAPES:
        return _SHAPES[kind]
    if kind == "string_pattern_mismatch":
        return f"a text of the form {context['pattern']}"
    if kind == "too_long":
        return f"at most {context['max_length']}"
    if kind in ("too_short", "string_too_short"):
        return f"at least {context['min_length']}"
    if kind == "string_too_long":
        return f"at most {context['max_length']} characters"
    if kind in _BOUNDS:
        return f"a number {_BOUNDS[kind]} {next(iter(context.values()))}"
    if said.startswith("Input should be "):
        return said.removeprefix("Input should be ")
    return f"another value: {said[:1].lower()}{said[1:]}"


def field_names(model: type[BaseModel]) -> dict[str, str]:
    """Return the names that a file may give in a model's section, with what each means."""
    return {
        field.validation_alias if isinstance(field.validation_alias, str) else name: field.description or ""
        for name, field in model.model_fields.items()
    }


def _section_at(model: type[BaseModel], loc: Path) -> type[BaseModel] | None:
    """Return the model of the section that holds the last key of ``loc``."""
    here: Any = model
    for key in loc[:-1]:
        here = _inside(here, key)
        if here is None:
            return None
    here = _bare(here)
    return here if _is_model(here) else None


def _written(model: type[BaseModel], loc: Path) -> Path:
    """Return a place as the file has it: without pydantic's names of the types of a union."""
    here: Any = model
    found: list[str | int] = []
    for key in loc:
        if len(_choices(here)) > 1:
            here = None
            continue
        found.append(key)
        here = _inside(here, key)
    return tuple(found)


def _inside(kind: Any, key: str | int) -> Any:
    kind = _bare(kind)
    if _is_model(kind):
        for name, field in kind.model_fields.items():
            if key in (name, field.alias, field.validation_alias):
                return field.annotation
        return None
    arguments = get_args(kind)
    if get_origin(kind) is dict:
        return arguments[1]
    return arguments[0] if get_origin(kind) in (tuple, list) else None


def _is_model(kind: Any, model: type[BaseModel] = BaseModel) -> bool:
    return isinstance(kind, type) and issubclass(kind, model)


def _bare(kind: Any) -> Any:
    """Return the type without Annotated and None."""
    return next(iter(_choices(kind)), None)


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the types that a value may have, without Annotated and None."""
    if get_origin(kind) is Annotated:
        return _choices(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(choice for each in get_args(kind) for choice in _choices(each))
    return () if kind in (None, type(None)) else (kind,)
