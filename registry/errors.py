"""Every error the registry raises, in one tree.

    RegistryError
    ├── Unavailable    the registry does not answer within the deadline, or refuses us
    ├── TopicOwned     another live session has the topic, or one of its registrations
    ├── BadRecord      a record breaks its rules: a field, its type, its size
    ├── BadOption      an option of start(), or a file that it names, is wrong
    ├── InvalidName    a topic, a subscription or a namespace has a name that is not allowed
    └── NotStarted     the handler was not started, was shut down, or belongs to another process

All of them can be pickled: they pass between processes with their fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from registry.records import OwnerRecord, RegisterRecord

__all__ = ["BadOption", "BadRecord", "InvalidName", "NotStarted", "RegistryError", "TopicOwned", "Unavailable"]


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

    def __init__(self, topic: str, owner: OwnerRecord | None, rival: RegisterRecord | None = None) -> None:
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


class NotStarted(RegistryError):
    """The handler cannot be used: never started, shut down, or inherited through a fork."""
