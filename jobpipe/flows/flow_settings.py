"""The options of a flow, its state and its status."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pyarrow as pa

from jobpipe.config import Config
from jobpipe.store.reading.boundary import Boundary


class FlowState(enum.Enum):
    """Life of a flow."""

    RUNNING = "running"
    ENDING = "ending"
    """It is about to be one of those that follow."""
    ENDED = "ended"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class FlowOptions:
    """What a flow does; see :func:`jobpipe.flow` for the fields."""

    config: Config
    subscribe: str
    name: str
    starting: Boundary
    publish: str | None = None
    schema: pa.Schema | None = None
    partitions: int | None = None
    fail_on_data_loss: bool = True
    schema_evolution: str = "compatible"
    required_subscribers: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartitionStatus:
    """How one partition of the source stands.

    Attributes:
        offset, lag: of the cursor, and how many batches lie beyond it.
        claim: how many tasks have had it.
        error: of its last failure, None if it has moved on since.
    """

    partition: int
    offset: int
    lag: int
    claim: int
    error: str | None


@dataclass(frozen=True)
class FlowStatus:
    """How a flow stands; ``error`` is what ended it."""

    name: str
    state: FlowState
    subscribe: str
    publish: str | None
    partitions: tuple[PartitionStatus, ...]
    error: str | None
