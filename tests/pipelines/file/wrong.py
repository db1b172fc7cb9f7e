"""What a wrong file is: its text, and every problem that it must give; the cases are in corpus/*.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

from jobpipe.pipelines.file.problems import Problem

CORPUS = Path(__file__).parent / "corpus"
PLACE = re.compile("( *)CASE")


@dataclass(frozen=True)
class Expected:
    """A problem: its place, and words of what is wrong and of what to do."""

    line: int
    what: str
    remedy: str
    key: str = ""
    severity: str = "error"

    def fits(self, found: Problem) -> bool:
        place = (found.line, found.key, found.severity) == (self.line, self.key, self.severity)
        return place and self.what in found.what and self.remedy in found.remedy


@dataclass(frozen=True)
class Wrong:
    """A file, and its problems; severity ``warning`` is of what is probably not meant."""

    name: str
    text: str
    problems: tuple[Expected, ...]


def read_corpus() -> Iterator[Wrong]:
    """Yield the cases of all its files."""
    for path in sorted(CORPUS.glob("*.yaml")):
        corpus = yaml.safe_load(path.read_text())
        for case in corpus["cases"]:
            yield _read_case(**case, template=corpus.get("template"), below=corpus.get("below"))


def _read_case(
    case: str, text: str, problems: list[dict[str, Any]], *, template: str | None, below: str | None
) -> Wrong:
    if template is not None:
        text = PLACE.sub(lambda place: indent(text.rstrip("\n"), place[1]), template)
    expected = []
    for problem in problems:
        key = ".".join(filter(None, (below, problem.get("key"))))
        expected.append(Expected(**{**problem, "key": key}))
    return Wrong(case, text, tuple(expected))
