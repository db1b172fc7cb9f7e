"""Values that no option of the source takes, and options that do not go together; they are in bad_options.yaml.

For the tests without Spark and with it; each is judged on its own, next to what makes the rest right.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from jobpipe.config.definitions.source_options import WHICH


class Bad(NamedTuple):
    """A value that is wrong in itself, and a phrase of what is expected instead."""

    value: str
    phrase: str
    beside: dict[str, str]


class Together(NamedTuple):
    """Options that are right each alone, or several that are wrong at once.

    Attributes:
        options: All but ``name``.
        problems: A phrase of each problem that the error lists, by option.
    """

    why: str
    options: dict[str, str]
    problems: dict[str, str]


def _values(groups: list[Any]) -> Iterator[Bad]:
    for group in groups:
        if isinstance(group, list):  # of values that several options share
            yield from _values(group)
        else:
            yield from (Bad(value, group["expected"], group.get("with", {})) for value in group["values"])


_OPTIONS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
BAD = {option: list(_values(groups)) for option, groups in _OPTIONS["values"].items()}
TOGETHER = [
    Together(why, each["options"], each["expected"]) for why, cases in _OPTIONS["together"].items() for each in cases
]


def beside(option: str, bad: Bad) -> dict[str, str]:
    """Return the options next to a bad one, with which a right value would be right."""
    which = {} if option in WHICH or set(WHICH) & bad.beside.keys() else {"subscribe": "some"}
    return {**which, **bad.beside}
