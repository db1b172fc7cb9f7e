"""What fires schedules: an engine, which an entry point of the group ``jobpipe.engines`` names.

An engine only says "now": what is done then follows from the schedule's state. So it may fire late, twice, or once for
several moments that it missed. It must fire again after each upper bound and the delay, sooner or later.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobpipe.pipelines.file.spec import ScheduleSpec
from jobpipe.pipelines.plugins.api import Plugin

Fire = Callable[[str, datetime], None]
"""What an engine calls, from any thread: the schedule's id, and the upper bound that has become due, in UTC."""


def fires_nothing(id_: str, at: datetime) -> None:
    """Be what an engine calls that is only checked."""


@dataclass(frozen=True)
class Schedule:
    """What an engine knows of a schedule.

    Attributes:
        id: ``PIPELINE.JOB``.
        spec: its section of the file.
    """

    id: str
    spec: ScheduleSpec


class ScheduleEngine(Plugin):
    """What calls :data:`Fire` when an interval of a schedule is due.

    All methods may be called from any thread. ``register``, ``update`` and ``unregister`` also before ``start``.
    """

    def __init__(self, options: Any, fire: Fire) -> None:
        """Keep the options, an instance of this class's ``Options``, and what to call; starts nothing."""
        super().__init__(options)
        self.fire = fire

    @classmethod
    def accept(cls, type_: str) -> bool:
        """Whether this is an engine of that type; one may go by several names."""
        return type_ == cls.type

    @abstractmethod
    def register(self, schedule: Schedule) -> None:
        """Fire for a schedule from now on; one that is known is replaced.

        Raises:
            ConfigError: it cannot be fired.
        """

    @abstractmethod
    def update(self, schedule: Schedule) -> None:
        """Fire by the changed rule of a schedule from now on.

        Raises:
            ConfigError: it cannot be fired; the former rule stays.
        """

    @abstractmethod
    def unregister(self, id_: str) -> None:
        """Fire no longer for a schedule; nothing happens if it is not known. A call that has begun may go on."""

    @abstractmethod
    def start(self) -> None:
        """Begin to fire."""

    @abstractmethod
    def stop(self) -> None:
        """End all that it has started; it is not started again."""
