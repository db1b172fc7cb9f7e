"""What is wrong with a pipeline's file: all of it at once, each with its place and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from jobpipe.config.definitions.key_names import closest
from jobpipe.errors import PipelineError

Severity = Literal["error", "warning"]
LISTED = 12  # names in a remedy


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, or, as a warning, probably not meant.

    Attributes:
        file: as the user named it; ``--set`` for a value from the command line.
        line: from 1; None where there is no line.
        key: dotted, as ``jobs.delays.source.subscribe``; empty for the file as a whole.
        what: what is wrong.
        remedy: what to do about it; empty if ``what`` says it.
    """

    file: str
    line: int | None
    key: str
    what: str
    remedy: str
    severity: Severity = "error"

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        warning = "warning: " if self.severity == "warning" else ""
        said = f"{self.what}; {self.remedy}" if self.remedy else self.what
        return _one_line(f"{place}: {warning}{self.key}: {said}" if self.key else f"{place}: {warning}{said}")


def _one_line(text: str) -> str:
    """Return a text without line breaks and control characters, which may come from a file or a plug-in."""
    line = re.sub(r"\s*[\r\n]\s*", " ", text)
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)


@dataclass(frozen=True)
class OptionError:
    """What a plug-in says of its own options; ``key`` is one of them, or empty for the stage as a whole."""

    key: str
    what: str
    remedy: str
    severity: Severity = "error"


class ProblemList:
    """Collects problems; the order is that of file and line, each problem once."""

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}

    def add(self, problem: Problem) -> None:
        """Take one in."""
        self._found.setdefault(problem)

    @property
    def problems(self) -> list[Problem]:
        """All of them, warnings too."""
        return sorted(self._found, key=lambda problem: (problem.file, problem.line or 0))

    @property
    def warnings(self) -> list[Problem]:
        """Those that are no errors."""
        return [problem for problem in self.problems if problem.severity == "warning"]

    @property
    def failed(self) -> bool:
        """Whether there is an error."""
        return any(problem.severity == "error" for problem in self._found)


def pipeline_error(problems: Iterable[Problem]) -> PipelineError:
    """Return the one error that names all ``problems``, one line for each."""
    listed = list(problems)
    errors = sum(problem.severity == "error" for problem in listed)
    message = f"pipeline: {errors} problem{'s' * (errors != 1)}"
    warnings = len(listed) - errors
    if warnings:
        message += f", {warnings} warning{'s' * (warnings != 1)}"
    lines = "".join(f"\n  {problem}" for problem in listed)
    return PipelineError(message + lines, problems=[asdict(problem) for problem in listed])


def nearest(name: str, known: Iterable[str], *, spell: Callable[[str], str] = str) -> str:
    """Return the remedy for an unknown name: the nearest known one, or what is possible."""
    names = sorted(set(known))
    if (found := closest(name, names)) is not None:
        return f"did you mean {spell(found)}?"
    if not names:
        return "no name is possible there"
    rest = len(names) - LISTED
    more = f" and {rest} more" if rest > 0 else ""
    return f"possible names: {', '.join(map(spell, names[:LISTED]))}{more}"
