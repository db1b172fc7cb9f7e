"""The columns of a job's rows at one place of the job, and of which columns of datasets each is made.

Nothing is guessed: a column of which that is not certain has no origins, and a frame whose columns are not known says
so. Knows no SQL, and no OpenLineage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from jobpipe.control.lineage.dataset_names import DatasetName


class Use(StrEnum):
    """How a column is used; the names are those of OpenLineage's subtypes."""

    IDENTITY = "IDENTITY"
    TRANSFORMATION = "TRANSFORMATION"
    AGGREGATION = "AGGREGATION"
    CONDITIONAL = "CONDITIONAL"
    FILTER = "FILTER"
    GROUP_BY = "GROUP_BY"
    JOIN = "JOIN"
    SORT = "SORT"
    WINDOW = "WINDOW"
    FUNCTION = ""  # an argument of a function that is not known: it may aggregate, or not

    @property
    def is_direct(self) -> bool:
        """Whether values come from it; else it decides which, or which rows there are."""
        return self in (Use.IDENTITY, Use.TRANSFORMATION, Use.AGGREGATION, Use.FUNCTION)


@dataclass(frozen=True, order=True)
class Origin:
    """A column of a dataset that is used.

    Attributes:
        masked: its values cannot be seen in what is made of it.
    """

    dataset: DatasetName
    column: str
    use: Use = Use.IDENTITY
    masked: bool = False

    def used(self, use: Use, *, masked: bool = False) -> Origin:
        """Return it as it is after one more use; what was once aggregated stays so, and an identity changes nothing."""
        masked = masked or self.masked
        if use is Use.IDENTITY or not self.use.is_direct:
            return replace(self, masked=masked)
        if use is Use.TRANSFORMATION and self.use in (Use.AGGREGATION, Use.FUNCTION):
            return replace(self, masked=masked)
        return replace(self, use=use, masked=masked)


Origins = frozenset[Origin]


def used(origins: Origins | None, use: Use, *, masked: bool = False) -> Origins | None:
    """Return origins after one more use; None stays None."""
    return None if origins is None else frozenset(each.used(use, masked=masked) for each in origins)


@dataclass(frozen=True)
class FrameColumn:
    """A column.

    Attributes:
        type: as Spark writes it; None: not known.
        origins: empty of a fixed value; None: not certain.
    """

    name: str
    type: str | None = None
    origins: Origins | None = None


@dataclass(frozen=True)
class Frame:
    """Columns.

    Attributes:
        columns: those that are known, in order.
        is_complete: there are no others.
        rest: the dataset of whose columns of the same names all others are; None: that is not certain.
        hidden: names, in small letters, that none of the others has.
        influences: what decides which rows there are.
    """

    columns: tuple[FrameColumn, ...] = ()
    is_complete: bool = False
    rest: DatasetName | None = None
    hidden: frozenset[str] = frozenset()
    influences: Origins = frozenset()

    def find(self, name: str) -> FrameColumn | None:
        """Return a column by its name, in whatever case; None if it is not certain which one that is."""
        known = self.known(name)
        if known or self.is_complete or self.rest is None or name.lower() in self.hidden:
            return known[0] if len(known) == 1 else None
        return FrameColumn(name, None, frozenset({Origin(self.rest, name)}))

    def known(self, name: str) -> list[FrameColumn]:
        """Return the known columns of a name, in whatever case."""
        return [each for each in self.columns if each.name.lower() == name.lower()]

    def with_columns(self, columns: Iterable[FrameColumn]) -> Frame:
        """Return it with these columns in the place of those of their names, new ones last."""
        new = {each.name.lower(): each for each in columns}
        kept = tuple(new.pop(each.name.lower(), each) for each in self.columns)
        return replace(self, columns=(*kept, *new.values()))

    def without(self, names: Collection[str]) -> Frame:
        """Return it without some columns."""
        gone = frozenset(name.lower() for name in names)
        kept = tuple(each for each in self.columns if each.name.lower() not in gone)
        return replace(self, columns=kept, hidden=self.hidden | gone)

    def only(self, names: Collection[str]) -> Frame:
        """Return these columns alone."""
        if self.is_complete:
            wanted = {name.lower() for name in names}
            return replace(self, columns=tuple(each for each in self.columns if each.name.lower() in wanted))
        found = tuple(self.find(name) or FrameColumn(name) for name in names)
        return replace(self, columns=found, is_complete=True, rest=None, hidden=frozenset())

    def renamed(self, names: Mapping[str, str]) -> Frame:
        """Return it with other names, by the present ones."""
        moved = [replace(self.find(old) or FrameColumn(old), name=new) for old, new in names.items()]
        if not self.is_complete:
            rest = self.without(names)
            return replace(rest, columns=(*rest.columns, *moved))
        new = {old.lower(): column for old, column in zip(names, moved, strict=True)}
        return replace(self, columns=tuple(new.get(each.name.lower(), each) for each in self.columns))

    def influenced(self, more: Iterable[Origin]) -> Frame:
        """Return it with more of what decides which rows there are."""
        return replace(self, influences=self.influences | frozenset(more))


UNKNOWN = Frame()
METADATA = frozenset({"_jobpipe", "_metadata"})
"""Columns that sources add to those of their datasets."""


def dataset_frame(dataset: DatasetName | None, columns: Mapping[str, str | None] | None) -> Frame:
    """Return the rows of a dataset.

    Args:
        dataset: None: it has no name, and so no column has an origin.
        columns: their types, by name; None: not known.
    """
    if columns is None:
        return Frame(rest=dataset, hidden=METADATA)

    def origins(name: str) -> Origins:
        return frozenset() if dataset is None else frozenset({Origin(dataset, name)})

    return Frame(tuple(FrameColumn(name, kind, origins(name)) for name, kind in columns.items()), is_complete=True)
