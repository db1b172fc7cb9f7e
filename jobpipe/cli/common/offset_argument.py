"""Where in a topic to begin, as an argument: a word, an offset, or a time."""

from __future__ import annotations

import click

from jobpipe.config.types.value_types import BadValueError
from jobpipe.store.reading.boundary import Boundary


class PlaceType(click.ParamType[Boundary]):
    """Makes a boundary of one of some words, an offset, or a time: ISO 8601 with its zone, or ms since 1970."""

    name = "place"

    def __init__(self, *words: str) -> None:
        self._words = words

    def convert(self, value: str | Boundary, param: click.Parameter | None, ctx: click.Context | None) -> Boundary:
        """Return the boundary; a wrong text is a usage error."""
        if isinstance(value, Boundary):
            return value
        try:
            return Boundary.read(value, self._words)
        except BadValueError:
            expected = f"{', '.join(self._words)}, an offset, or a time such as 2026-11-21T10:00:00Z"
            self.fail(f"{value!r} is not one of {expected}", param, ctx)
