"""The definition of every option of ``format("jobpipe")``: name, type, default, documentation, what goes with what.

Parsing, ``jobpipe config explain`` and docs/options.md read it from here. Names and meanings are those of Spark's Kafka
source wherever it has them. A new option is added here: a plain value as a field of :class:`PlainOptions`, any other
one in ``SOURCE_OPTIONS`` and in :mod:`jobpipe.spark.options.read_options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from jobpipe.config.definitions.definition import Option
from jobpipe.config.types.source_types import (
    ASSIGN,
    BOUND,
    BOUNDARY,
    ENDING,
    NAME,
    PATTERN,
    STARTING,
    TIME,
    TIMES,
    TOPICS,
)
from jobpipe.config.types.value_types import BOOLEAN, PATH, choice, duration, optional, size, whole

WHICH = ("subscribe", "subscribePattern", "assign")
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

MAX_TOPICS = Option(
    name="maxTopics",
    value_type=whole(1, 10_000),
    default=100,
    documentation="How many topics subscribePattern may match. More are an error, because each topic needs a link of "
    "its own.",
    group="topics",
    needs=("subscribePattern",),
)


def _option(**about: Any) -> Any:
    """Return a dataclass field that carries an option's definition; its default is the parsed ``default``."""
    defined = Option(**about)
    return field(default_factory=lambda: defined.parse(defined.default), metadata={"option": defined})


@dataclass(frozen=True, kw_only=True)
class PlainOptions:
    """The options whose value is used as it is parsed: times in seconds, sizes in bytes."""

    max_rows: int | None = _option(
        name="maxRowsPerTrigger",
        value_type=optional(whole(1)),
        default=None,
        documentation="Maximum number of rows in one micro-batch, shared fairly among the topics. Whole "
        "published batches are taken if at least one fits; otherwise as many record batches of the next one as fit, "
        "and at least one. null = only maxBytesPerTrigger is a limit. Ignored by a batch read. Needs PySpark 4.2.",
        group="how much",
        also=("maxOffsetsPerTrigger",),
    )
    max_bytes: int = _option(
        name="maxBytesPerTrigger",
        value_type=size(1),
        default="4GiB",
        documentation="Maximum number of bytes in one micro-batch, as stored in the spool. A single record batch that "
        "is larger is still taken. Ignored by a batch read. Needs PySpark 4.2: before, the first micro-batch of a run "
        "has no limit.",
        group="how much",
    )
    min_rows: int | None = _option(
        name="minRowsPerTrigger",
        value_type=optional(whole(1)),
        default=None,
        documentation="Start no micro-batch before this many rows are available, unless maxTriggerDelay has passed, a "
        "publisher waits for this subscription, or no more rows will come. Ignored by a batch read. Needs PySpark 4.2.",
        group="how much",
        also=("minOffsetsPerTrigger",),
    )
    max_trigger_delay: float = _option(
        name="maxTriggerDelay",
        value_type=duration(),
        default="15min",
        documentation="How long minRowsPerTrigger may hold rows back.",
        group="how much",
        needs=("minRowsPerTrigger",),
    )
    min_partitions: int | None = _option(
        name="minPartitions",
        value_type=optional(whole(1, 100_000)),
        default=None,
        documentation="Minimum number of tasks that a read is split into, if it has enough record batches. Above the "
        "publisher's parallelism, several tasks share the rows of one partition, whose order then holds only from one "
        "micro-batch to the next.",
        group="how much",
    )
    max_rows_per_partition: int | None = _option(
        name="maxRowsPerPartition",
        value_type=optional(whole(1)),
        default=None,
        documentation="Maximum number of rows of one task, unless a single record batch has more. A larger read is "
        "split, as with minPartitions.",
        group="how much",
        also=("maxRecordsPerPartition",),
    )
    read_ahead: bool = _option(
        name="readAhead",
        value_type=BOOLEAN,
        default=False,
        documentation="Plan each micro-batch before its rows exist. Its tasks start at once and wait, so that rows "
        "are read as soon as they are published. While nothing is published, an empty micro-batch runs each second, "
        "and its tasks hold their cores. Only for one topic, given with subscribe, and with a trigger that keeps "
        "running. Ignored by a batch read. foreachBatch must read each DataFrame (df.isEmpty() is enough): if it "
        "does not, and query and coordinator end together, the restarted query fails with DataLoss. Needs PySpark 4.2.",
        group="how much",
    )
    include_metadata: bool = _option(
        name="includeMetadata",
        value_type=BOOLEAN,
        default=False,
        documentation="Add the column _jobpipe: topic, offset, partition, parallelism, publisher, publish time, and "
        "the row's number, so that order can be rebuilt.",
        group="rows",
    )
    schema_evolution: str = _option(
        name="schemaEvolution",
        value_type=choice("compatible", "strict"),
        default="compatible",
        documentation="How the schema of a batch may differ from that of the query. compatible = columns that only "
        "the batch has are left out, nullable columns that only the query has are null, and numbers are widened; any "
        "other difference ends the query before that batch. strict = there may be no difference. Flow jobs use "
        "schema_evolution=.",
        group="rows",
        recommended=("compatible", "strict"),
    )
    merge_schema: bool = _option(
        name="mergeSchema",
        value_type=BOOLEAN,
        default=False,
        documentation="Read topics with different schemas as one: the result has all their columns, null where a "
        "topic lacks one, and numbers are widened. Without this option, different schemas are an error.",
        group="rows",
    )
    fail_on_data_loss: bool = _option(
        name="failOnDataLoss",
        value_type=BOOLEAN,
        default=True,
        documentation="Fail if batches that were to be read have been removed, and name their offsets. false = skip, "
        "count and log them.",
        group="rows",
    )


PLAIN: Mapping[str, Option] = {each.name: each.metadata["option"] for each in fields(PlainOptions)}
"""By the attribute of :class:`PlainOptions` that an option fills."""

SOURCE_OPTIONS: tuple[Option, ...] = (
    Option(
        name="subscribe",
        value_type=TOPICS,
        default=None,
        documentation="Topics to read, separated by commas. Give exactly one of subscribe, subscribePattern and "
        "assign.",
        group="topics",
        excludes=("subscribePattern", "assign"),
    ),
    Option(
        name="subscribePattern",
        value_type=PATTERN,
        default=None,
        documentation="Read all topics whose whole name matches. Topics that appear while a stream runs are added, "
        "and begin at earliest. Needs PySpark 4.2.",
        group="topics",
        excludes=("subscribe", "assign"),
    ),
    Option(
        name="assign",
        value_type=ASSIGN,
        default=None,
        documentation="Topics to read, and which of the publisher's partitions to read of each.",
        group="topics",
        excludes=("subscribe", "subscribePattern"),
    ),
    MAX_TOPICS,
    Option(
        name="name",
        value_type=NAME,
        default=None,
        documentation="Name of the subscription: the position that the publishers keep for this query. A stream must "
        "have a name, and each load() needs its own. A batch read needs one only for startingOffsets=committed.",
        group="topics",
    ),
    Option(
        name="startingOffsets",
        value_type=STARTING,
        default=None,
        documentation="Where a batch read begins, or a query with a new checkpoint. An existing checkpoint takes "
        "precedence. Give one word for all topics, or JSON that names every topic. committed = at the position of the "
        "subscription. null = earliest for a batch read; for a stream committed, or latest if the name is new. "
        "With subscribePattern, topics that the JSON does not name begin at earliest. A value may also be a whole "
        "position, as a query's progress shows it.",
        group="where to start and end",
        recommended=("earliest", "latest", "committed"),
    ),
    Option(
        name="startingTimestamp",
        value_type=TIME,
        default=None,
        documentation="Begin with the first batch published then or later. Takes precedence over "
        "startingOffsetsByTimestamp, which takes precedence over startingOffsets.",
        group="where to start and end",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        value_type=TIMES,
        default=None,
        documentation="Like startingTimestamp, with one time per topic.",
        group="where to start and end",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        value_type=choice("error", "latest"),
        default="error",
        documentation="What happens if nothing was published since the starting time: the query fails, or begins at "
        "latest.",
        group="where to start and end",
        recommended=("error", "latest"),
        needs=("startingTimestamp", "startingOffsetsByTimestamp", "boundaryType"),
    ),
    Option(
        name="endingOffsets",
        value_type=ENDING,
        default=None,
        documentation="Where to end. The end itself is not read. latest = the end of the topic when the query starts. "
        "null = latest for a batch read, no end for a stream. A stream that has reached its end waits there, and "
        "jobpipe.await_end(query) stops it.",
        group="where to start and end",
        recommended=("latest",),
    ),
    Option(
        name="endingTimestamp",
        value_type=TIME,
        default=None,
        documentation="End before the first batch published then or later. If there is none, a batch read ends at "
        "latest, and a stream continues until that time has come. Takes precedence over endingOffsetsByTimestamp, "
        "which takes precedence over endingOffsets.",
        group="where to start and end",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        value_type=TIMES,
        default=None,
        documentation="Like endingTimestamp, with one time per topic.",
        group="where to start and end",
    ),
    Option(
        name="boundaryType",
        value_type=BOUNDARY,
        default=None,
        documentation="Whether lowerBound and upperBound are times or offsets. These two replace the other "
        "starting… and ending… options, except startingOffsetsByTimestampStrategy.",
        group="where to start and end",
        recommended=("TIME", "OFFSET"),
        excludes=(*_STARTS, *_ENDS),
    ),
    Option(
        name="lowerBound",
        value_type=BOUND,
        default=None,
        documentation="Where to start; the bound is included. An offset or a time for all topics, or JSON with one "
        "for each. null = the default of startingOffsets.",
        group="where to start and end",
        needs=("boundaryType",),
    ),
    Option(
        name="upperBound",
        value_type=BOUND,
        default=None,
        documentation="Where to end; the bound is excluded. An offset or a time for all topics, or JSON with one for "
        "each. null = the default of endingOffsets.",
        group="where to start and end",
        needs=("boundaryType",),
    ),
    *PLAIN.values(),
    Option(
        name="config",
        value_type=optional(PATH),
        default=None,
        documentation="Configuration file, instead of the one found by the usual search.",
        group="general",
    ),
    Option(
        name="discoveryTimeout",
        value_type=optional(duration(0.1)),
        default=None,
        documentation="How long load() waits for a topic's publisher, and how long a stream waits at its start for a "
        "topic that was never published. null = jobpipe.discovery.timeout.",
        group="general",
    ),
)
"""Every option, in the order of docs/options.md."""

MEANT = {
    "topic": "subscribe",
    "topics": "subscribe",
    "path": "subscribe",  # the argument of load()
    "topicpattern": "subscribePattern",
    "topicspattern": "subscribePattern",
    "pattern": "subscribePattern",
    "starting": "startingOffsets",
    "subscription": "name",
    "group": "name",
    "group.id": "name",
    "kafka.group.id": "name",
    "groupidprefix": "name",
    "includeheaders": "includeMetadata",
    "allowdifferenttopicschemas": "mergeSchema",
    "kafka.bootstrap.servers": "jobpipe.registerserver.connect",
    "kafkaconsumer.polltimeoutms": "jobpipe.read.timeout",
    "fetchoffset.numretries": "jobpipe.read.timeout",
    "fetchoffset.retryintervalms": "jobpipe.read.timeout",
    "waitfornonexistedtopic": "discoveryTimeout",
}
"""What other sources or parts of jobpipe call an option, in lower case, and the option or key that is meant."""
