"""The contract of what a registry keeps of jobs: the order, the lease, the end record.

The **order** says which attempt of a job may run, and whether it should run or stop. It is persistent. A **lease** is
what a running attempt holds, as long as its session lives: one attempt at a time, and only the one that the order
names. The **end record** is what an attempt leaves when it ends. It is persistent, and removed once it was read.

Each change of an order or a lease moves the version of the order. So who changes an order with the version that it read
knows that neither has changed since.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from jobpipe_registry.job_records import EndRecord, Lease, Order
from jobpipe_registry.node_watch import Watch


@dataclass(frozen=True)
class JobRecords:
    """What the registry has of a job. ``version`` is that of the order, -1 without one."""

    order: Order | None
    lease: Lease | None
    end: EndRecord | None
    version: int = -1


StateCallback = Callable[[JobRecords], None]
LeaseLost = Callable[[str], None]
"""Called once with the reason, from a thread of the registry."""


class Jobs(ABC):
    """The jobs of a namespace, through one session. Methods may be called from any thread.

    All raise ``InvalidName`` for a name that is not allowed, ``Unavailable`` if the registry does not answer, and
    ``NotStarted`` as the handler's methods do. A record that cannot be read passes for missing (logged).
    """

    @abstractmethod
    def names(self) -> list[tuple[str, str]]:
        """Return (pipeline, job) of each order, sorted."""

    @abstractmethod
    def state(self, pipeline: str, job: str) -> JobRecords:
        """Return what there is of a job."""

    @abstractmethod
    def watch(self, pipeline: str, job: str, callback: StateCallback) -> Watch:
        """Call ``callback`` with the state soon, and after each change; as ``RegisterServerHandler.watch``."""

    @abstractmethod
    def set_order(self, pipeline: str, job: str, order: Order, version: int) -> int:
        """Replace the order; return its new version.

        Args:
            version: of the order that is replaced; -1: there is none yet.

        Raises:
            OrderChanged: order or lease are not as they were; nothing is changed.
        """

    @abstractmethod
    def remove_order(self, pipeline: str, job: str, version: int) -> None:
        """Remove a job: its order and its end record.

        Raises:
            OrderChanged: as :meth:`set_order`.
            LeaseHeld: an attempt lives; nothing is changed.
        """

    @abstractmethod
    def take_lease(self, pipeline: str, job: str, lease: Lease, on_lost: LeaseLost) -> None:
        """Hold the lease of a job until it is released, or lost. A lease of the same instance is replaced.

        A session that ends although the process lives is no loss by itself: the lease is taken again, unless the order
        names another attempt by then, or another one has it.

        Args:
            on_lost: told when that is so; the attempt must not do anything more. Not called before this returns.

        Raises:
            NotOrdered: the order names another attempt, or there is none.
            LeaseHeld: another instance has it; ``lease`` of the error is its record.
            Unavailable: nothing is taken then, not even later.
        """

    @abstractmethod
    def release_lease(self, pipeline: str, job: str, end: EndRecord | None = None) -> None:
        """Let our lease go, and leave an end record in the same step; nothing happens if we have no lease.

        Raises:
            NotOrdered: it is not ours any more; no end record is left.
            Unavailable: it may be gone or not. Calling again is safe; with the session it goes in any case.
        """

    @abstractmethod
    def evict_lease(self, pipeline: str, job: str, instance: str) -> None:
        """Remove the lease of an instance that the caller has proved to be dead; any other one stays."""

    @abstractmethod
    def remove_end(self, pipeline: str, job: str, end: EndRecord) -> None:
        """Remove an end record that was read; another one stays."""
