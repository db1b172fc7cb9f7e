"""The definition of every option of ``writeStream.format("jobpipe")`` and ``write.format("jobpipe")``: text only.

They are the sink's arguments, read from text. Spark does not keep the case of an option's name, so ``partition_by`` may
also be written ``partitionBy``.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from jobpipe.config.definitions.definition import Option
from jobpipe.config.definitions.sink_arguments import SINK_ARGUMENTS
from jobpipe.config.types.source_types import NAME
from jobpipe.config.types.value_types import BOOLEAN, BadValueError, ValueType, choice, optional, whole

MAX_BATCH_ID = 2**63 - 1
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
"""What Spark adds to the options of a writer."""


def _listed(one: ValueType) -> ValueType:
    """Read names from text: separated by commas, or a JSON list."""
    expected = f"{one.expected}; as text, separated by commas, or as a JSON list"

    def parse(raw: object, base: Path) -> Any:
        if not isinstance(raw, str):
            raise BadValueError
        if not raw.lstrip().startswith("["):
            return one.parse([part.strip() for part in raw.split(",") if part.strip()], base)
        try:
            names = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise BadValueError(expected) from error
        return one.parse(names, base)

    return ValueType(one.name, expected, parse)


def _json_schema(raw: object, _base: Path) -> str:
    """Take the JSON of a schema; whether Spark knows its types is seen where Spark is."""
    if not isinstance(raw, str) or not raw.lstrip().startswith("{"):
        raise BadValueError("the JSON of a StructType, which schema.json() returns")
    return raw


def _function(raw: object, _base: Path) -> str:
    if not isinstance(raw, str):
        raise BadValueError
    module, colon, name = raw.partition(":")
    if raw in ("hash", "fixed", "round-robin") or (colon and all(p.isidentifier() for p in (*module.split("."), name))):
        return raw
    raise BadValueError


_ABOUT = {about.name: about for about in SINK_ARGUMENTS}
_TYPES = {
    "partition_by": optional(_listed(_ABOUT["partition_by"].value_type)),
    "required_subscribers": optional(_listed(_ABOUT["required_subscribers"].value_type)),
    "schema": optional(ValueType("schema", "the JSON of a StructType, which schema.json() returns", _json_schema)),
    "partitioner": optional(
        ValueType("partitioner", "hash, fixed, round-robin, or a function as module:name", _function)
    ),
    "write_path": optional(choice("auto", "tasks")),
}
_UNFIT = frozenset({"replace"})
_SAID = {
    "parallelism": "Number of the topic's partitions. null = jobpipe.parallelism, or else Spark's default parallelism "
    "as far as it was known when Spark started (spark.default.parallelism, local[N], spark.cores.max, or instances "
    "times cores of executors), or else 2.",
    "write_path": "A writer always writes from the executors; jobpipe.write_path is not looked at.",
}

WRITER_OPTIONS: tuple[Option, ...] = (
    *(
        dataclasses.replace(
            about,
            value_type=_TYPES.get(about.name, about.value_type),
            documentation=_SAID.get(about.name, about.documentation),
        )
        for about in SINK_ARGUMENTS
        if about.name not in _UNFIT
    ),
    Option(
        name="series",
        value_type=optional(NAME),
        default=None,
        documentation="Of a batch write: the sequence that batch_id belongs to. With both, a batch that is written "
        "again, as after a failure, is published once. Without them each save() appends.",
        group="writer",
        needs=("batch_id",),
    ),
    Option(
        name="batch_id",
        value_type=optional(whole(0, MAX_BATCH_ID)),
        default=None,
        documentation="Of a batch write: rises with each batch of the series.",
        group="writer",
        needs=("series",),
    ),
    Option(
        name="final",
        value_type=BOOLEAN,
        default=False,
        documentation="Of a batch write: nothing follows. After the batch, subscribers get an end mark, and the topic "
        "is closed, as by sink.close(final=True).",
        group="writer",
    ),
)
"""Every option, in its order; the others are keys of the configuration."""

REFUSED = {
    "replace": "a query that is started again has the topic: all queries of one application share it",
    "path": "the topic as .option('topic', ...)",
    "subscribe": "topic: subscribe is for reading",
}
"""What is no option, with what is said of it."""
