"""``${…}`` in a pipeline's texts: parameters and names at once, a run's values when it runs.

``$${`` stands for ``${``. Texts in which a run's values may stand keep both as written until :func:`fill`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from jobpipe.config.reading.located_values import FilePlace, Path, Scalar, TreeNode, dotted, find
from jobpipe.config.reading.yaml_reader import scalar_of
from jobpipe.errors import short_repr
from jobpipe.pipelines.file.problems import Problem, ProblemList, nearest

_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_COMPACT = "%Y%m%dT%H%M%SZ"
_DIRECTIVES = re.compile(r"(?:[^%]|%[aAbBdeFGHIjmMpSTuVwyYzZ%])*")
_COMMAND_LINE = "--set"  # where a parameter's value stands that no file has
_LATE = ("source", "sources", "transform", "route", "sink", "sinks", "arguments")
RUN = ("run.id", "run.lower", "run.upper")
Quote = Callable[[str], str]


@dataclass(frozen=True)
class RunValues:
    """What a run's texts may name.

    Attributes:
        id: of the run.
        lower, upper: its bounds, half-open; times with their zone, or offsets; None of a run without bounds.
    """

    id: str
    lower: datetime | int | None = None
    upper: datetime | int | None = None

    def text(self, name: str, shape: str) -> str:
        """Return the text for ``${run.NAME:SHAPE}``; without a shape a time is ``20261121T000000Z``."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"the run has no {name} bound")
        return value.astimezone(UTC).strftime(shape or _COMPACT) if isinstance(value, datetime) else str(value)


def _unquoted(_path: Path) -> Quote | None:
    """Return that values need no quoting."""
    return None


def interpolate(
    tree: TreeNode, given: Mapping[str, str], report: ProblemList, quotes: Callable[[Path], Quote | None] = _unquoted
) -> TreeNode:
    """Return the tree with parameters and names in place of their references; run references are only checked.

    Args:
        given: from the command line; a value is read as YAML, unless the file declares a text.
        quotes: returns, for the path of a text, what makes a value that is put into it a plain name.
    """
    tree, values = _with_given(tree, given, report)
    name = find(tree, ("pipeline", "name")).value
    known = {f"var.{key}": value for key, value in values.items()}
    if isinstance(name, str):
        known["pipeline.name"] = name

    def change(node: TreeNode, path: Path) -> Scalar:
        text = str(node.value)
        if path[:2] == ("pipeline", "parameters"):
            return text if node.place.file == _COMMAND_LINE else _unescaped(text)
        if "$" not in text:
            return text
        single = path[0] != "jobs"
        job = name if single else path[1] if len(path) > 1 else None
        here = {**known, "job.name": job} if path[0] != "pipeline" and isinstance(job, str) else known
        late = _is_late(path[2:] if not single else path)
        return _Text(node, path, here, late=late, report=report, quote=quotes(path) or str).result()

    return _map_texts(tree, (), change)


def _map_texts(node: TreeNode, path: Path, change: Any) -> TreeNode:
    """Return the tree with each text replaced by ``change(node, path)``, a scalar."""
    if isinstance(node.value, dict):
        return replace(node, value={key: _map_texts(each, (*path, key), change) for key, each in node.value.items()})
    if isinstance(node.value, list):
        return replace(node, value=[_map_texts(each, (*path, i), change) for i, each in enumerate(node.value)])
    return replace(node, value=change(node, path)) if isinstance(node.value, str) else node


def _unescaped(text: str) -> str:
    return text.replace("$${", "${")


def _is_late(path: Path) -> bool:
    return bool(path) and path[0] in _LATE


def _with_given(tree: TreeNode, given: Mapping[str, str], report: ProblemList) -> tuple[TreeNode, dict[str, Scalar]]:
    """Return the tree with the command line's values in its parameters, and all of them."""
    pipeline = find(tree, ("pipeline",))
    section = find(tree, ("pipeline", "parameters"))
    declared = section.value if section is not pipeline and isinstance(section.value, dict) else {}
    nodes = dict(declared)
    for key, text in given.items():
        if key not in declared:
            remedy = nearest(key, declared) if declared else "pipeline.parameters declares none"
            report.add(Problem(_COMMAND_LINE, None, key, "the file declares no such parameter", remedy))
            continue
        value = text if isinstance(declared[key].value, str) else scalar_of(text)
        nodes[key] = TreeNode(value, FilePlace(_COMMAND_LINE))
    values: dict[str, Scalar] = {}
    for key, node in nodes.items():
        if isinstance(node.value, (dict, list)):
            continue  # the spec complains
        if key in given or not isinstance(node.value, str):
            values[key] = node.value
            continue
        values[key] = _unescaped(node.value)
        if any(match[0] != "$${" for match in _REFERENCE.finditer(node.value)):
            place = node.shown_at
            what = "a parameter's value cannot name others"
            remedy = "write it out, or $${ for the characters"
            report.add(Problem(place.file, place.line, f"pipeline.parameters.{key}", what, remedy))
    if not given or not isinstance(tree.value, dict) or not isinstance(pipeline.value, dict) or not declared:
        return tree, values
    below = replace(pipeline, value={**pipeline.value, "parameters": replace(section, value=nodes)})
    return replace(tree, value={**tree.value, "pipeline": below}), values


class _Text:
    """One text with references."""

    def __init__(
        self,
        node: TreeNode,
        path: Path,
        known: Mapping[str, Scalar],
        *,
        late: bool,
        report: ProblemList,
        quote: Quote,
    ) -> None:
        self._node = node
        self._text = str(node.value)
        self._path = path
        self._known = known
        self._late = late
        self._report = report
        self._quote = quote

    def result(self) -> Scalar:
        """Return the text, or, if it is one reference and nothing else, the value with its type."""
        whole = _REFERENCE.fullmatch(self._text)
        if whole is not None and whole[1] in self._known:
            value = self._known[whole[1]]
            return self._escaped(value) if isinstance(value, str) else value
        return _REFERENCE.sub(self._replaced, self._text)

    def _replaced(self, match: re.Match[str]) -> str:
        written, name = match[0], match[1]
        if written == "$${":
            return written if self._late else "${"
        if name is None:
            self._problem(f"${{ has no }} in {short_repr(self._text)}", "write ${var.NAME}, or $${ for the characters")
        elif name in self._known:
            value = self._known[name]
            text = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
            return self._escaped(text)
        elif name.partition(":")[0] in RUN:
            self._check_run(name)
        else:
            self._problem(f"there is no ${{{name[:100]}}}", nearest(name, (*self._known, *RUN), spell=_as_reference))
        return written

    def _escaped(self, text: str) -> str:
        """Return a value's text such that :func:`fill`, and what takes the text, leave it as it is."""
        text = self._quote(text)
        return text.replace("${", "$${") if self._late else text

    def _check_run(self, name: str) -> None:
        short, colon, shape = name.partition(":")
        if not self._late:
            self._problem(f"${{{short}}} has no value here", f"a run's values may stand in {', '.join(_LATE)} of a job")
        elif colon and short == "run.id":
            self._problem("${run.id} has no format", "write ${run.id}")
        elif colon and (_DIRECTIVES.fullmatch(shape) is None or "%" not in shape):
            what = f"{short_repr(shape)} is not a time format"
            self._problem(what, f"write it as strftime does: ${{{short}:%Y-%m-%d}}")

    def _problem(self, what: str, remedy: str) -> None:
        place = self._node.shown_at
        self._report.add(Problem(place.file, place.line, dotted(self._path), what, remedy))


def _as_reference(name: str) -> str:
    return f"${{{name}}}"


def fill(value: Any, run: RunValues | None = None) -> Any:
    """Return a value as a job takes it: ``$${`` as ``${``, and the run's values, if there is a run, put in.

    Raises:
        ValueError: it names a bound, and the run has none.
    """

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name, _, shape = (match[1] or "").partition(":")
        if run is None or name not in RUN:
            return match[0]
        return run.text(name.removeprefix("run."), shape)

    if isinstance(value, dict):
        return {key: fill(each, run) for key, each in value.items()}
    if isinstance(value, list):
        return [fill(each, run) for each in value]
    return _REFERENCE.sub(replaced, value) if isinstance(value, str) else value


def run_references(value: Any) -> Iterator[str]:
    """Yield the names of a run's values that a value names: ``run.lower``."""
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from run_references(each)
    elif isinstance(value, str):
        for match in _REFERENCE.finditer(value):
            name = (match[1] or "").partition(":")[0]
            if name in RUN:
                yield name
