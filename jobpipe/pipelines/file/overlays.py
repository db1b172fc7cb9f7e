"""A pipeline's file to a tree with places, with other files laid over it."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as FilePath

from jobpipe.config.definitions.key_names import closest
from jobpipe.config.reading.file_permissions import why_distrusted
from jobpipe.config.reading.located_values import FilePlace, Path, TreeNode, dotted, find
from jobpipe.config.reading.yaml_reader import MAX_BYTES, read_tree
from jobpipe.pipelines.file.problems import Problem, ProblemList, Severity


def read_files(file: FilePath, overlays: Sequence[FilePath], report: ProblemList) -> TreeNode | None:
    """Return what the file says, with its overlays laid over it in their order; None if one cannot be read at all."""
    contents = ((path, _content(path, report)) for path in (file, *overlays))
    trees = [None if found is None else read_content(found, str(path), report) for path, found in contents]
    merged = trees[0]
    for over in trees[1:]:
        merged = None if merged is None or over is None else _merged(merged, over, report)
    return merged


def _merged(below: TreeNode, above: TreeNode, report: ProblemList) -> TreeNode:
    absent: list[Path] = []
    merged = _merge(below, above, absent)
    for path in absent:
        node = find(above, path)
        jobs = find(merged, ("jobs",)).value
        parts: Path = tuple(dotted(path).split("."))  # no job has a name with a dot
        misses_job = parts[0] == "jobs" and len(parts) > 1 and isinstance(jobs, dict) and parts[1] not in jobs
        upto = parts[:2] if misses_job else path
        section = find(below, upto[:-1]).value
        near = closest(str(upto[-1]), section) if isinstance(section, dict) else None
        remedy = "leave it out" if near is None else f"did you mean {near}?"
        what = "there is no such job to remove" if misses_job else "null removes a key, and there is none to remove"
        severity: Severity = "error" if misses_job else "warning"
        if (nested := _removal(below.value, dotted(path))) is not None:  # what is meant stays as it is
            remedy, severity = f"write {nested}", "error"
        place = node.shown_at
        report.add(Problem(place.file, place.line, dotted(path), what, remedy, severity))
    return merged


def _removal(section: object, key: str) -> str | None:
    """Return how the key of a section is removed that a dotted name may mean; None if it means none."""
    if isinstance(section, dict) and key in section:
        return f"{key}: null"
    head, _, rest = key.partition(".")
    inside = _removal(section[head].value, rest) if isinstance(section, dict) and head in section else None
    return None if inside is None else f"{head}: {{{inside}}}"


def _merge(below: TreeNode, above: TreeNode, absent: list[Path], path: Path = ()) -> TreeNode:
    """Return ``below`` with what ``above`` says: sections are merged, all else is replaced, null removes.

    Args:
        absent: is given the keys that ``above`` removes and ``below`` does not have.
        path: of both.
    """
    if not isinstance(above.value, dict):
        return above
    merged = dict(below.value) if isinstance(below.value, dict) else {}
    for key, each in above.value.items():
        if each.value is None:
            if merged.pop(key, None) is None:
                absent.append((*path, key))
            continue
        inside = _merge(merged.get(key, TreeNode(None, each.place)), each, absent, (*path, key))
        if key in merged or inside.value != {} or each.value == {}:  # a section of nulls alone adds none
            merged[key] = inside
    return replace(below if isinstance(below.value, dict) else above, value=merged)


def _content(path: FilePath, report: ProblemList) -> bytes | None:
    def problem(what: str, remedy: str) -> None:
        report.add(Problem(str(path), None, "", what, remedy))

    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                problem("this is not a file", "name a YAML file")
            elif (why := why_distrusted(found, any_owner=True)) is not None:
                problem(f"others could have changed it: {why}", f"chmod go-w {shlex.quote(str(path))}")
            else:
                return opened.read(MAX_BYTES + 1)
    except OSError as error:
        problem(f"it cannot be read ({error.strerror})", "name a YAML file that is there and readable")
    return None


def read_content(content: bytes, file: str, report: ProblemList) -> TreeNode | None:
    """Return the tree of a file's content; None, with problems, if it is none."""

    def tell(place: FilePlace, path: Path, what: str, remedy: str) -> None:
        report.add(Problem(place.file, place.line, dotted(path), what, remedy))

    tree = read_tree(content, file, tell)
    if tree is None or isinstance(tree.value, dict):
        return tree
    if tree.value is None:
        tell(tree.place, (), "it is empty", "`jobpipe pipeline init` writes an example")
    else:
        tell(tree.place, (), "a pipeline's file is a section with keys", "begin with pipeline: and jobs:")
    return None
