"""Every error the registry raises, in one tree.

    RegistryError
    ├── Unavailable    the registry does not answer within the deadline, or refuses us
    ├── TopicOwned     another live session has the topic, or one of its registrations
    ├── BadRecord      a record breaks its rules: a field, its type, its size
    ├── BadOption      an option of start(), or a file that it names, is wrong
    ├── InvalidName    a topic, a subscription, a job or a namespace has a name that is not allowed
    ├── TooManyTopics  one session would hold more topics than ZooKeeper can end it with
    ├── NotStarted     the handler was not started, was shut down, or belongs to another process
    ├── OrderChanged   the order of a job, or its lease, is not as it was when it was read
    ├── NotOrdered     the order of a job names another attempt
    └── LeaseHeld      another attempt of the job lives

All of them can be pickled: they pass between processes with their fields.
"""

from __future__ import annotations

from typing import Any, Protocol


class Claim(Protocol):
    """What an error tells of a :class:`.topic_records.OwnerRecord`, which knows these errors."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def endpoint(self) -> str: ...
    @property
    def epoch(self) -> int: ...


class RivalRegistration(Protocol):
    """The same of a :class:`.topic_records.RegisterRecord`."""

    @property
    def coordinator(self) -> str: ...
    @property
    def epoch(self) -> int: ...


class RunningAttempt(Protocol):
    """The same of a :class:`.job_records.Lease`."""

    @property
    def run(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def pid(self) -> int: ...


class RegistryError(Exception):
    """Root of all errors of the registry."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[RegistryError], args: tuple[Any, ...], fields: dict[str, Any]) -> RegistryError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class Unavailable(RegistryError):
    """The registry does not answer within the deadline, or refuses us. Another attempt may work."""

    def __init__(self, hosts: str, reason: str) -> None:
        super().__init__(f"registry {hosts} is not available: {reason}")
        self.hosts = hosts
        self.reason = reason


class TopicOwned(RegistryError):
    """Another session has the topic.

    ``owner`` is the claim that is in the way, ``rival`` the registration; both are None only where the node in the
    way cannot be read.
    """

    def __init__(self, topic: str, owner: Claim | None, rival: RivalRegistration | None = None) -> None:
        if owner is not None:
            who = f"{owner.name!r} (process {owner.pid} on {owner.host}, {owner.endpoint}, epoch {owner.epoch})"
        elif rival is not None:
            who = f"the publisher at {rival.coordinator} (epoch {rival.epoch})"
        else:
            who = "a publisher whose record cannot be read"
        super().__init__(f"topic {topic!r} belongs to {who}")
        self.topic = topic
        self.owner = owner
        self.rival = rival


class BadRecord(RegistryError):
    """A record breaks its rules. ``field`` is the name of the field, or "" for the record as a whole."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"record: {field}: expected {expected}" if field else f"record: expected {expected}")
        self.field = field
        self.expected = expected


class BadOption(RegistryError):
    """An option of ``start()``, or a file that it names, is wrong. ``option`` is its name; no value is repeated."""

    def __init__(self, option: str, expected: str) -> None:
        super().__init__(f"option {option}: expected {expected}")
        self.option = option
        self.expected = expected


class InvalidName(RegistryError):
    """A name is not allowed."""

    def __init__(self, name: str, expected: str) -> None:
        super().__init__(f"{name[:200]!r} is not allowed: expected {expected}")
        self.name = name
        self.expected = expected


class TooManyTopics(RegistryError):
    """One session would hold more topics, or longer paths, than its end in ZooKeeper's log may say."""

    def __init__(self, topic: str, held: str) -> None:
        super().__init__(
            f"topic {topic!r} is one too many for one job: with it the job's registry session would hold {held}. "
            "Publish some of its topics from another job: the end of a session is one record in ZooKeeper's log, and "
            "ZooKeeper does not start again after a record that is too long"
        )
        self.topic = topic
        self.held = held


class NotStarted(RegistryError):
    """The handler cannot be used: never started, shut down, or inherited through a fork."""


class OrderChanged(RegistryError):
    """The order of a job, or its lease, is not as it was when it was read. Read again, and decide again."""

    def __init__(self, pipeline: str, job: str) -> None:
        super().__init__(f"job {pipeline}/{job}: another one changed its order, or its lease, meanwhile")
        self.pipeline = pipeline
        self.job = job


class NotOrdered(RegistryError):
    """The order of a job does not name this attempt: it must not run, and touch nothing."""

    def __init__(self, pipeline: str, job: str, ordered: str) -> None:
        super().__init__(f"job {pipeline}/{job}: this attempt is not the one that may run: {ordered}")
        self.pipeline = pipeline
        self.job = job
        self.ordered = ordered


class LeaseHeld(RegistryError):
    """Another attempt of the job lives; ``lease`` is its record, None only where that cannot be read."""

    def __init__(self, pipeline: str, job: str, lease: RunningAttempt | None) -> None:
        who = "an attempt whose record cannot be read"
        if lease is not None:
            who = f"attempt {lease.attempt} of run {lease.run}, process {lease.pid} on {lease.host}"
        super().__init__(f"job {pipeline}/{job} has the lease of {who}")
        self.pipeline = pipeline
        self.job = job
        self.lease = lease
