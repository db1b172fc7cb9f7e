"""The data process's operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jobpipe.net.access import PUBLISH, READ
from jobpipe.operations.fields import MAX_PARTITION, At, Count, Fields, FileName, Flag, Secret, Whole
from jobpipe.operations.table import EVERYBODY, Operation, table

__all__ = ["DATA", "FetchRequest", "PutRequest", "ServedRequest"]


@dataclass(frozen=True)
class FetchRequest(Fields):
    """Stream a partition's part of a range; ``skip`` record batches of it were read before."""

    start: At
    end: At
    partition: Annotated[int, Whole(0, MAX_PARTITION)]
    skip: Count = 0


@dataclass(frozen=True)
class PutRequest(Fields):
    """Take a segment file of ``length`` bytes, which follow.

    ``ticket`` shows that the sender is a task of the job that publishes (:mod:`jobpipe.net.capability`); without
    ``fsync`` the file need not be on the disk when it is answered.
    """

    file: FileName
    length: Count
    ticket: Secret = ""
    fsync: Flag = True


@dataclass(frozen=True)
class ServedRequest(Fields):
    """How many bytes of the topic were served."""


DATA = table(
    Operation("fetch", FetchRequest, EVERYBODY, READ),
    Operation("put", PutRequest, frozenset({"publisher"}), PUBLISH),
    Operation("served", ServedRequest, EVERYBODY),
)
