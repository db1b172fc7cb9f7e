"""The contestants that link two Spark jobs, by name."""

from __future__ import annotations

from benchmarks.side_by_side.contestants.contestant import Contestant, Told
from benchmarks.side_by_side.contestants.files import Files
from benchmarks.side_by_side.contestants.floor import Floor, FloorCollect
from benchmarks.side_by_side.contestants.jobpipe import JobPipe, JobPipeAhead, JobPipePlain
from benchmarks.side_by_side.contestants.kafka import KafkaArrow, KafkaJson

__all__ = ["CONTESTANTS", "Contestant", "Told"]

CONTESTANTS: dict[str, type[Contestant]] = {
    each.name: each for each in (Floor, FloorCollect, JobPipe, JobPipeAhead, JobPipePlain, KafkaJson, KafkaArrow, Files)
}
