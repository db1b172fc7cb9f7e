"""Columns whose values are converted from the database's texts, all of a batch at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from jobpipe.cdc.changes import Unconvertible


@dataclass(frozen=True)
class TextType:
    """The text as the database writes it."""

    @property
    def arrow(self) -> pa.DataType:
        """A string."""
        return pa.string()

    @property
    def given(self) -> pa.DataType:
        """A string."""
        return pa.string()

    def convert(self, given: pa.Array[Any]) -> pa.Array[Any]:
        """Return it."""
        return given


@dataclass(frozen=True)
class CastType:
    """A type to which Arrow casts texts; ``why`` says which values it cannot take."""

    arrow: pa.DataType
    why: str

    @property
    def given(self) -> pa.DataType:
        """A string."""
        return pa.string()

    def convert(self, given: pa.Array[Any]) -> pa.Array[Any]:
        """Cast."""
        try:
            return given.cast(self.arrow)
        except pa.ArrowInvalid:  # its text quotes the value
            raise Unconvertible(self.why) from None


@dataclass(frozen=True)
class FunctionType:
    """A type with a function of its own.

    Attributes:
        why: which values it cannot take.
        given: what the database gives: a string, or binary.
    """

    arrow: pa.DataType
    function: Callable[[pa.Array[Any]], pa.Array[Any]]
    why: str = "a value of another form"
    given: pa.DataType = field(default_factory=pa.string)

    def convert(self, given: pa.Array[Any]) -> pa.Array[Any]:
        """Call it."""
        try:
            return self.function(given)
        except pa.ArrowInvalid:  # its text quotes the value
            raise Unconvertible(self.why) from None


TEXT = TextType()
