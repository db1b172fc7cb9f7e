"""What the nodes of jobs hold. As all records: checked wherever they come from."""

from __future__ import annotations

from dataclasses import dataclass

from jobpipe_registry.host.process_identity import PidScope
from jobpipe_registry.registry_errors import BadRecord
from jobpipe_registry.topic_records import Record, require_integer, require_seconds, require_text

WANTS = ("run", "stop")
ENDS = ("FINISHED", "FAILED", "STOPPED", "CANCELED")
MAX_ATTEMPT = 10**9
MAX_COUNT = 2**53 - 1


def _one_of(record: object, field: str, allowed: tuple[str, ...]) -> None:
    if getattr(record, field) not in allowed:
        raise BadRecord(field, " or ".join(allowed))


@dataclass(frozen=True)
class Order(Record):
    """What should be: the attempt that may run, and whether it should run or stop.

    Attributes:
        run: The run's id.
        attempt: From 1; a restart makes the next.
        want: ``run`` or ``stop``.

    Raises:
        BadRecord: a field breaks its rule.
    """

    run: str
    attempt: int
    want: str

    def __post_init__(self) -> None:
        require_text(self, "run", 128)
        require_integer(self, "attempt", 1, MAX_ATTEMPT)
        _one_of(self, "want", WANTS)


@dataclass(frozen=True)
class Lease(Record):
    """Who runs. Place, pid and start time prove that a process is dead, as in :class:`.topic_records.OwnerRecord`.

    Attributes:
        run, attempt: as in the order.
        application: Spark's id of it; "" while there is none.
        instance: random, one for each process.

    Raises:
        BadRecord: a field breaks its rule.
    """

    run: str
    attempt: int
    host: str
    pid: int
    started: float
    instance: str
    application: str = ""
    boot: str = ""
    pid_namespace: int = 0
    ticks: int = 0

    @property
    def place(self) -> PidScope:
        return PidScope(self.host, self.boot, self.pid_namespace)

    def __post_init__(self) -> None:
        require_text(self, "run", 128)
        require_integer(self, "attempt", 1, MAX_ATTEMPT)
        require_text(self, "host")
        require_integer(self, "pid", 1, 2**31 - 1)
        require_seconds(self, "started")
        require_text(self, "instance", 128)
        require_text(self, "application", 255, least=0)
        require_text(self, "boot", 64, least=0)
        require_integer(self, "pid_namespace", 0, 2**63 - 1)
        require_integer(self, "ticks", 0, 2**63 - 1)


@dataclass(frozen=True)
class EndRecord(Record):
    """How an attempt ended. It holds no value of any row.

    Attributes:
        run, attempt: as in the order.
        state: One of :data:`ENDS`.
        at: When, in seconds since 1970.
        error: Its class, at most 128 characters; "" if there was none.
        place: Where it happened (stage, topic, offset), at most 300 characters; "" if unknown.
        batches, rows: What the attempt did.

    Raises:
        BadRecord: a field breaks its rule.
    """

    run: str
    attempt: int
    state: str
    at: float
    error: str = ""
    place: str = ""
    batches: int = 0
    rows: int = 0

    def __post_init__(self) -> None:
        require_text(self, "run", 128)
        require_integer(self, "attempt", 1, MAX_ATTEMPT)
        _one_of(self, "state", ENDS)
        require_seconds(self, "at")
        require_text(self, "error", 128, least=0)
        require_text(self, "place", 300, least=0)
        require_integer(self, "batches", 0, MAX_COUNT)
        require_integer(self, "rows", 0, MAX_COUNT)
