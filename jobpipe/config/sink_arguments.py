"""The definition of every argument of ``JobPipeSink`` that is no key of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jobpipe.config.definition import ConfigProblem, Option, shown
from jobpipe.config.model import KEYS
from jobpipe.config.source_kinds import NAME
from jobpipe.config.values import BOOLEAN, PATH, TEXT, BadValueError, ValueKind, choice, optional, whole


def _each(one: Callable[[object, Path], Any]) -> Callable[[object, Path], tuple[Any, ...]]:
    """Read one value, or a sequence of them."""

    def parse(raw: object, base: Path) -> tuple[Any, ...]:
        if isinstance(raw, str):
            return (one(raw, base),)
        if not isinstance(raw, (list, tuple, set, frozenset)):
            raise BadValueError
        return tuple(one(each, base) for each in raw)

    return parse


def _column(raw: object, _base: Path) -> str:
    if not isinstance(raw, str) or not raw:
        raise BadValueError
    return raw


def _partitioner(raw: object, _base: Path) -> Any:
    if callable(raw) or raw in ("hash", "fixed", "round-robin"):
        return raw
    raise BadValueError


_KINDS = {about.attribute: about.kind for about in KEYS}
_COLUMNS = ValueKind("columns", "a column's name, or a list of them", _each(_column))
_NAMES = ValueKind("names", f"a name, or a list of them: {NAME.expected}", _each(NAME.parse))
_SCHEMA = ValueKind("schema", "a StructType, or columns as in 'id bigint, name string'", lambda raw, _base: raw)
_PARTITIONER = ValueKind("partitioner", "hash, fixed, round-robin, or a function", _partitioner)

SINK_ARGUMENTS: tuple[Option, ...] = (
    Option(
        name="topic",
        kind=NAME,
        default=None,
        documentation="Name of the topic; the one argument that must be given.",
        group="sink",
    ),
    Option(
        name="name",
        kind=optional(TEXT),
        default=None,
        documentation="Who publishes, for listings and errors. null = topic and host.",
        group="sink",
    ),
    Option(
        name="parallelism",
        kind=_KINDS["parallelism"],
        default=None,
        documentation="Number of the topic's partitions. null = jobpipe.parallelism, or else Spark's default "
        "parallelism.",
        group="sink",
    ),
    Option(
        name="partition_by",
        kind=optional(_COLUMNS),
        default=None,
        documentation="Columns whose hash chooses the partition: pmod(hash(columns), parallelism), as Spark hashes.",
        group="sink",
    ),
    Option(
        name="partitioner",
        kind=optional(_PARTITIONER),
        default=None,
        documentation="How rows are dealt out to the partitions: hash = by partition_by; fixed = the DataFrame's "
        "partitions as they come, modulo the parallelism; round-robin = in turn; or a function of a "
        "pyarrow.RecordBatch and the parallelism that returns a partition from 0 for each row. null = hash with "
        "partition_by, fixed without.",
        group="sink",
        recommended=("hash", "fixed", "round-robin"),
    ),
    Option(
        name="schema",
        kind=optional(_SCHEMA),
        default=None,
        documentation="Columns, told to subscribers before the first batch, and required of every batch. null = those "
        "of the first batch.",
        group="sink",
    ),
    Option(
        name="acks",
        kind=_KINDS["acks"],
        default=None,
        documentation="How far a batch must have got before Spark goes on. null = jobpipe.acks.",
        group="sink",
    ),
    Option(
        name="required_subscribers",
        kind=optional(_NAMES),
        default=None,
        documentation="Subscriptions that exist from the log's start, keep what they have not read, and that acks=all "
        "waits for.",
        group="sink",
    ),
    Option(
        name="min_subscribers",
        kind=optional(whole(0, 10_000)),
        default=None,
        documentation="How many subscriptions acks=all waits for; nothing is removed before they exist.",
        group="sink",
    ),
    Option(
        name="write_path",
        kind=_KINDS["write_path"],
        default=None,
        documentation="Through the driver, or from the executors. null = jobpipe.write_path.",
        group="sink",
    ),
    Option(
        name="on_new_checkpoint",
        kind=choice("publish", "refuse"),
        default="publish",
        documentation="What a query may do that is new to a topic to which another query published, as after its "
        "checkpoint was deleted: publish = go on, and say so in the log; refuse = fail before anything is published.",
        group="sink",
    ),
    Option(
        name="replace",
        kind=BOOLEAN,
        default=False,
        documentation="Close this process's own sink of the topic first, if there is one, and stop its queries: for a "
        "notebook's cell that is run again.",
        group="sink",
    ),
    Option(
        name="config",
        kind=optional(PATH),
        default=None,
        documentation="Configuration file, instead of the one found by the usual search.",
        group="sink",
    ),
)
"""Every argument, in its order; the others are keys of the configuration."""


def read_arguments(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[ConfigProblem]]:
    """Return the values of arguments that are no keys of the configuration, and what is wrong with the others."""
    values: dict[str, Any] = {}
    problems: list[ConfigProblem] = []
    for about in SINK_ARGUMENTS:
        if about.name in _KINDS or about.name not in given:
            continue
        raw = given[about.name]
        try:
            values[about.name] = about.parse(raw)
        except BadValueError as error:
            problems.append(ConfigProblem("option", about.name, shown(raw), str(error) or about.expected))
    return values, problems
