"""The contestants that link two Spark jobs, by name."""

from __future__ import annotations

from benchmarks.side_by_side.contestants.chains import JobFlow, PlainClient, PlainFlow, PlainFlow8, PlainFlows
from benchmarks.side_by_side.contestants.contestant import Contestant, Told
from benchmarks.side_by_side.contestants.files import Files
from benchmarks.side_by_side.contestants.floor import Floor, FloorCollect
from benchmarks.side_by_side.contestants.jobpipe import JobPipe, JobPipeAhead, JobPipeFormat, JobPipePlain
from benchmarks.side_by_side.contestants.kafka import KafkaArrow, KafkaJson
from benchmarks.side_by_side.contestants.kafka_chains import KafkaPlain, KafkaRealTime

__all__ = ["CHAINS", "CONTESTANTS", "JOBS", "Contestant", "Told", "kind_of"]

JOBS: tuple[type[Contestant], ...] = (
    Floor, FloorCollect, JobPipe, JobPipeAhead, JobPipeFormat, JobPipePlain, KafkaJson, KafkaArrow, Files
)  # fmt: skip
CHAINS: tuple[type[Contestant], ...] = (
    JobFlow, PlainFlow, PlainFlow8, PlainFlows, PlainClient, KafkaPlain, KafkaRealTime
)  # fmt: skip
CONTESTANTS = {each.name: each for each in (*JOBS, *CHAINS)}


def kind_of(name: str) -> type[Contestant]:
    """Return a contestant's class; ``jobpipe:KEY=VALUE+KEY=VALUE`` is jobpipe with other settings.

    They are Spark's (``spark.…``), options of the source (``source.…``), arguments of the sink (``sink.…``), or keys of
    the configuration.

    Raises:
        ValueError: there is none of that name.
    """
    plain, _, changes = name.partition(":")
    kind = CONTESTANTS.get(plain)
    if kind is None or (changes and not issubclass(kind, JobPipe)):
        raise ValueError(f"no contestant {name!r}; there are {', '.join(CONTESTANTS)}, and jobpipe:KEY=VALUE")
    if not changes:
        return kind
    settings = dict(change.split("=", 1) for change in changes.split("+"))
    return type(kind.__name__, (kind,), {"name": name, "settings": {**kind.settings, **settings}})
