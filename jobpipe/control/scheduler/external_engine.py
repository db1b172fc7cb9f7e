"""The engine ``external``: another scheduler says when, by ``jobpipe schedules trigger`` or REST."""

from __future__ import annotations

from jobpipe.pipelines.plugins.schedule_engine import Schedule, ScheduleEngine


class ExternalEngine(ScheduleEngine):
    """Fires nothing by itself: another scheduler triggers the schedule, by command or REST."""

    type = "external"

    def register(self, schedule: Schedule) -> None:
        """Nothing is to be done: the server knows the schedule."""

    def update(self, schedule: Schedule) -> None:
        """Nothing is to be done."""

    def unregister(self, id_: str) -> None:
        """Nothing is to be done."""

    def start(self) -> None:
        """Nothing is to be done."""

    def stop(self) -> None:
        """Nothing is to be done."""
