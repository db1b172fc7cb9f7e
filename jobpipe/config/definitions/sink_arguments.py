"""The definition of every argument of ``JobPipeSink`` that is no key of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jobpipe.config.definitions.config_model import KEYS
from jobpipe.config.definitions.definition import ConfigProblem, Option, masked_repr
from jobpipe.config.types.source_types import NAME
from jobpipe.config.types.value_types import BOOLEAN, PATH, TEXT, BadValueError, ValueType, choice, optional, whole


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


_TYPES = {about.attribute: about.value_type for about in KEYS}
_COLUMNS = ValueType("columns", "a column's name, or a list of them", _each(_column))
_NAMES = ValueType("names", f"a name, or a list of them: {NAME.expected}", _each(NAME.parse))
_SCHEMA = ValueType("schema", "a StructType, or columns as in 'id bigint, name string'", lambda raw, _base: raw)
_PARTITIONER = ValueType("partitioner", "hash, fixed, round-robin, or a function", _partitioner)

SINK_ARGUMENTS: tuple[Option, ...] = (
    Option(
        name="topic",
        value_type=NAME,
        default=None,
        documentation="Name of the topic. This is the only argument that must be given.",
        group="sink",
    ),
    Option(
        name="name",
        value_type=optional(TEXT),
        default=None,
        documentation="Name of the publisher in listings and errors. null = topic and host.",
        group="sink",
    ),
    Option(
        name="parallelism",
        value_type=_TYPES["parallelism"],
        default=None,
        documentation="Number of the topic's partitions. null = jobpipe.parallelism, or else Spark's default "
        "parallelism.",
        group="sink",
    ),
    Option(
        name="partition_by",
        value_type=optional(_COLUMNS),
        default=None,
        documentation="Columns whose hash chooses the partition: pmod(hash(columns), parallelism), as Spark hashes.",
        group="sink",
    ),
    Option(
        name="partitioner",
        value_type=optional(_PARTITIONER),
        default=None,
        documentation="How rows are assigned to the partitions: hash = by partition_by; fixed = by the DataFrame's "
        "partitions as they come, modulo the parallelism; round-robin = in turn; or a function of a "
        "pyarrow.RecordBatch and the parallelism that returns a partition, counted from 0, for each row. null = hash "
        "with partition_by, otherwise fixed.",
        group="sink",
        recommended=("hash", "fixed", "round-robin"),
    ),
    Option(
        name="schema",
        value_type=optional(_SCHEMA),
        default=None,
        documentation="Columns of the topic. Subscribers know them before the first batch, and every batch must have "
        "them. null = the columns of the first batch.",
        group="sink",
    ),
    Option(
        name="acks",
        value_type=_TYPES["acks"],
        default=None,
        documentation="What the sink waits for before Spark continues. null = jobpipe.acks.",
        group="sink",
    ),
    Option(
        name="required_subscribers",
        value_type=optional(_NAMES),
        default=None,
        documentation="Subscriptions that exist from the start of the log. Batches that they have not read are kept, "
        "and acks=all waits for them.",
        group="sink",
    ),
    Option(
        name="min_subscribers",
        value_type=optional(whole(0, 10_000)),
        default=None,
        documentation="Number of subscriptions that acks=all waits for. Nothing is removed before they exist.",
        group="sink",
    ),
    Option(
        name="write_path",
        value_type=_TYPES["write_path"],
        default=None,
        documentation="How a batch reaches the spool: through the driver, or from the executors. null = "
        "jobpipe.write_path.",
        group="sink",
    ),
    Option(
        name="on_new_checkpoint",
        value_type=choice("publish", "refuse"),
        default="publish",
        documentation="What happens if a new query publishes to a topic that another query has published to, for "
        "example because the checkpoint was deleted: publish = continue, and log it; refuse = fail before anything is "
        "published.",
        group="sink",
    ),
    Option(
        name="replace",
        value_type=BOOLEAN,
        default=False,
        documentation="First close this process's own sink of the topic, if there is one, and stop its queries. For a "
        "notebook cell that is run again.",
        group="sink",
    ),
    Option(
        name="config",
        value_type=optional(PATH),
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
        if about.name in _TYPES or about.name not in given:
            continue
        raw = given[about.name]
        try:
            values[about.name] = about.parse(raw)
        except BadValueError as error:
            problems.append(ConfigProblem("option", about.name, masked_repr(raw), str(error) or about.expected))
    return values, problems
