"""Values that no option of the source takes, and options that do not go together; with what the error must say.

For the tests without Spark and with it; each is judged on its own, beside what makes the rest right.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import NamedTuple

from jobpipe.config.definitions.source_options import WHICH


class Bad(NamedTuple):
    """A value that is wrong in itself, and a phrase of what is expected instead."""

    value: str
    phrase: str
    beside: dict[str, str] = {}  # noqa: RUF012 - never changed


@dataclass(frozen=True)
class Together:
    """Options that are right each alone, or several that are wrong at once.

    Attributes:
        options: All but ``name``.
        problems: (option, phrase) of each problem that the error lists.
    """

    why: str
    options: dict[str, str]
    problems: list[tuple[str, str]] = field(default_factory=list)


_BY_TIME = {"startingTimestamp": "1600000000000"}
_OFFSETS, _TIMES = {"boundaryType": "OFFSET"}, {"boundaryType": "TIME"}
_PATTERN = {"subscribePattern": "some.*"}
_LATER = {"minRowsPerTrigger": "5"}
_KAFKA = '{"some": {"0": 23, "1": 345}}'  # as Spark's Kafka source has it
_POSITION = {"epoch": 1, "log": "0123456789abcdef", "n": 4, "r": 0}
_ONE = "of at least 1"


def _position(**wrong: object) -> str:
    return json.dumps({"some": {**_POSITION, **wrong}})


def _counts(top: str = _ONE) -> list[Bad]:
    return [Bad(value, top) for value in ("0", "-1", "many", "1.5", "1e3", "0x10", "１", "9" * 25)]


def _switches() -> list[Bad]:
    return [Bad(value, "true or false") for value in ("yes", "1", "", "truee")]


_TIME = [
    Bad("soon", "milliseconds since 1970 UTC"),
    Bad("", "milliseconds since 1970 UTC"),
    Bad("-5", "milliseconds since 1970 UTC"),
    Bad("1.6e12", "milliseconds since 1970 UTC"),
    Bad("9" * 30, "milliseconds since 1970 UTC"),
    Bad("2026-11-21T10:00:00", "a time with its zone"),
    Bad("2026-11-21 10:00", "a time with its zone"),
    Bad("2026-13-01T00:00:00Z", "as 2026-11-21T10:00:00Z"),
    Bad("1969-12-31T23:59:59Z", "milliseconds since 1970 UTC"),
    Bad("earliest", "milliseconds since 1970 UTC"),
]
_TIMES_BY_TOPIC = [
    Bad("1600000000000", "JSON such as"),
    Bad("", "JSON such as"),
    Bad("{}", "JSON such as"),
    Bad('{"some": 5', "JSON such as"),
    Bad(_KAFKA, "one time for a topic"),
    Bad('{"some": -1}', "another value for topic some than -1"),
    Bad('{"some": true}', "another value for topic some than true"),
    Bad('{"some": "2026-11-21T10:00:00"}', "a time with its zone"),
    Bad('{"some": 5, "some": 6}', "'some' is given twice"),
    Bad('{"other": 5}', "some is missing; other is not read"),
    Bad('{"some": 5, "other": 5}', "other is not read"),
]
_OFFSETS_BY_TOPIC = [
    Bad("[1]", "or JSON such as"),
    Bad("", "or JSON such as"),
    Bad("5", "or JSON such as"),
    Bad('{"some": 1', "or JSON such as"),
    Bad("{}", "or JSON such as"),
    Bad('{"some": -3}', "-1 for latest"),
    Bad('{"some": "1"}', 'another value for topic some than "1"'),
    Bad('{"some": 1.5}', "another value for topic some than 1.5"),
    Bad('{"some": true}', "another value for topic some than true"),
    Bad('{"some": 9223372036854775808}', "another value for topic some"),
    Bad('{"some": 1, "some": 2}', "'some' is given twice"),
    Bad(_KAFKA, "not one for each partition as in Kafka"),
    Bad('{"some": {"n": 4}}', "another value for topic some"),
    Bad(_position(log="x"), "a position as progress shows it"),
    Bad(_position(r=-1), "a position as progress shows it"),
    Bad('{"no t": 1}', "names of topics, but 'no t' is not one"),
    Bad('{"other": 1}', "some is missing; other is not read"),
    Bad('{"some": 1, "other": 1}', "other is not read"),
]
_BOUND = [
    Bad("soon", "an offset from 0", _OFFSETS),
    Bad("-3", "an offset from 0", _OFFSETS),
    Bad("1.5", "an offset from 0", _OFFSETS),
    Bad("2026-11-21T10:00:00Z", "an offset from 0", _OFFSETS),
    Bad('{"some": "soon"}', "another value for topic some", _OFFSETS),
    Bad(_KAFKA, "not one for each partition as in Kafka", _OFFSETS),
    Bad('{"other": 1}', "some is missing; other is not read", _OFFSETS),
    Bad("soon", "milliseconds since 1970", _TIMES),
    Bad("-1", "milliseconds since 1970", _TIMES),
    Bad("2026-11-21T10:00:00", "a time with its zone", _TIMES),
    Bad(_position(), "one time for a topic", _TIMES),
    Bad('{"other": 1}', "some is missing; other is not read", _TIMES),
    Bad("", "an offset or a time, as boundaryType says", _TIMES),
]

BAD: dict[str, list[Bad]] = {
    "subscribe": [
        Bad("", "topic, or topic,topic"),
        Bad(" , ", "topic, or topic,topic"),
        Bad("ok,not ok", "'not ok' is not one"),
        Bad("a/b", "letters, digits"),
        Bad("some*", "letters, digits"),
        Bad(".some", "a letter or digit first"),
        Bad("x" * 129, "at most 128"),
    ],
    "subscribePattern": [
        Bad("", "a Python regular expression that must match the whole topic name"),
        Bad("(", "a Python regular expression (missing )"),
        Bad("*", "a Python regular expression (nothing to repeat"),
    ],
    "assign": [
        Bad("some", "JSON such as"),
        Bad("", "JSON such as"),
        Bad("{}", "JSON such as"),
        Bad('["some"]', "JSON such as"),
        Bad('{"some": 1}', "some has 1"),
        Bad('{"some": []}', "some has []"),
        Bad('{"some": [0]}', "from 1"),
        Bad('{"some": [1, 1]}', "each once"),
        Bad('{"some": ["1"]}', 'some has ["1"]'),
        Bad('{"some": [true]}', "some has [true]"),
        Bad('{"some": [1], "some": [2]}', "'some' is given twice"),
        Bad('{"no t": [1]}', "names of topics, but 'no t' is not one"),
    ],
    "maxTopics": [Bad(value, "from 1 to 10000", _PATTERN) for value in ("0", "-1", "many", "10001", "1.5", "")],
    "name": [Bad(value, "letters, digits") for value in ("", " ", "a b", "a/b", ".a", "x" * 129)],
    "startingOffsets": [
        Bad("oldest", "earliest, latest, committed"),
        *_OFFSETS_BY_TOPIC,
        Bad('{"some": -3}', "-2 for earliest"),
    ],
    "startingTimestamp": _TIME,
    "startingOffsetsByTimestamp": _TIMES_BY_TOPIC,
    "startingOffsetsByTimestampStrategy": [Bad(value, "error or latest", _BY_TIME) for value in ("earliest", "", "1")],
    "endingOffsets": [
        Bad("earliest", "latest, or JSON such as"),
        Bad("committed", "latest, or JSON such as"),
        *_OFFSETS_BY_TOPIC,
        Bad('{"some": -2}', "-1 for latest"),
    ],
    "endingTimestamp": _TIME,
    "endingOffsetsByTimestamp": _TIMES_BY_TOPIC,
    "boundaryType": [Bad(value, "TIME or OFFSET") for value in ("DATE", "", "5")],
    "lowerBound": _BOUND,
    "upperBound": [*_BOUND, Bad("-2", "an offset from 0", _OFFSETS)],
    "maxRowsPerTrigger": _counts(),
    "maxBytesPerTrigger": [Bad(value, "a size") for value in ("0", "-1", "lots", "5 parsecs", "0.5", "", "9EB")],
    "minRowsPerTrigger": _counts(),
    "maxTriggerDelay": [Bad(value, "a time", _LATER) for value in ("soon", "-1s", "5 weeks", "", "9999999d")],
    "minPartitions": [*_counts("from 1 to 100000"), Bad("100001", "from 1 to 100000")],
    "maxRowsPerPartition": _counts(),
    "readAhead": _switches(),
    "includeMetadata": _switches(),
    "schemaEvolution": [Bad(value, "compatible or strict") for value in ("lenient", "", "true")],
    "mergeSchema": _switches(),
    "failOnDataLoss": _switches(),
    "config": [Bad("~nobody-of-that-name/x", "a path"), Bad("\0", "a path")],
    "discoveryTimeout": [Bad(value, "a time, at least 100ms") for value in ("soon", "0", "-1s", "1ms", "5 weeks")],
}
"""By option; a test fails where the definition has one that is not here."""

TOGETHER = [
    Together("no topic at all", {}, [("subscribe", "topic, or topic,topic; or else subscribePattern, or assign")]),
    Together(
        "two ways to say which topics",
        {"subscribe": "some", "assign": '{"some": [1]}'},
        [(option, "exactly one of subscribe, subscribePattern, assign") for option in ("subscribe", "assign")],
    ),
    Together(
        "nothing to wait for",
        {"subscribe": "some", "maxTriggerDelay": "5s"},
        [("maxTriggerDelay", "minRowsPerTrigger as well")],
    ),
    *(
        Together("not to be read ahead", {"subscribe": "some", "readAhead": "true", **more}, [("readAhead", phrase)])
        for more, phrase in (
            ({"subscribe": "some,other"}, "subscribe of one topic"),
            ({"minRowsPerTrigger": "5"}, "it without minRowsPerTrigger"),
            ({"minPartitions": "5"}, "it without minPartitions"),
            ({"maxRowsPerPartition": "5"}, "it without maxRowsPerPartition"),
            ({"failOnDataLoss": "false"}, "it without failOnDataLoss=false"),
        )
    ),
    Together(
        "many topics read ahead", {**_PATTERN, "readAhead": "true"}, [("readAhead", "not subscribePattern or assign")]
    ),
    Together("no pattern", {"subscribe": "some", "maxTopics": "5"}, [("maxTopics", "subscribePattern as well")]),
    *(
        Together("no type", {"subscribe": "some", bound: "5"}, [(bound, "boundaryType as well")])
        for bound in ("lowerBound", "upperBound")
    ),
    Together(
        "no time",
        {"subscribe": "some", "startingOffsetsByTimestampStrategy": "latest"},
        [("startingOffsetsByTimestampStrategy", "startingTimestamp or startingOffsetsByTimestamp or boundaryType")],
    ),
    *(
        Together(
            "two ways to say where",
            {"subscribe": "some", "boundaryType": "OFFSET", option: value},
            [("boundaryType", f"it without {option}")],
        )
        for option, value in (
            ("startingOffsets", "earliest"),
            ("startingTimestamp", "5"),
            ("startingOffsetsByTimestamp", '{"some": 5}'),
            ("endingOffsets", "latest"),
            ("endingTimestamp", "5"),
            ("endingOffsetsByTimestamp", '{"some": 5}'),
        )
    ),
    *(
        Together(
            "two names of one option",
            {"subscribe": "some", ours: "5", kafkas: "5"},
            [(kafkas, f"it once; {ours} is the same option")],
        )
        for ours, kafkas in (
            ("maxRowsPerTrigger", "maxOffsetsPerTrigger"),
            ("minRowsPerTrigger", "minOffsetsPerTrigger"),
            ("maxRowsPerPartition", "maxRecordsPerPartition"),
        )
    ),
    Together(
        "more at least than at most",
        {"subscribe": "some", "minRowsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
        [("minRowsPerTrigger", "at most maxRowsPerTrigger, 5")],
    ),
    *(
        Together(
            "the start behind the end",
            {**which, start: later, end: sooner, **more},
            [(end, "an end that is not before the start")],
        )
        for which in ({"subscribe": "some"}, _PATTERN)
        for start, later, end, sooner, more in (
            ("startingTimestamp", "2000", "endingTimestamp", "1000", {}),
            ("startingTimestamp", "2000", "endingOffsetsByTimestamp", '{"some": 1000}', {}),
            ("startingOffsets", '{"some": 5}', "endingOffsets", '{"some": 4}', {}),
            ("lowerBound", "5", "upperBound", "4", _OFFSETS),
            ("lowerBound", "1970-01-01T00:00:02Z", "upperBound", "1999", _TIMES),
        )
    ),
    Together(
        "a topic that the pattern does not match",
        {**_PATTERN, "startingOffsets": '{"other": 5}'},
        [("startingOffsets", "topics that match subscribePattern, and other does not")],
    ),
    Together(
        "all at once",
        {
            "subscribe": "no t",
            "startingOffsets": "oldest",
            "endingTimestamp": "tomorrow",
            "lowerBound": "5",
            "maxRowsPerTrigger": "0",
            "includeMetadata": "maybe",
            "discoveryTimeout": "soon",
        },
        [
            ("subscribe", "letters, digits"),
            ("startingOffsets", "earliest, latest, committed"),
            ("endingTimestamp", "milliseconds since 1970 UTC"),
            ("lowerBound", "boundaryType as well"),
            ("maxRowsPerTrigger", _ONE),
            ("includeMetadata", "true or false"),
            ("discoveryTimeout", "a time, at least 100ms"),
        ],
    ),
]


def beside(option: str, bad: Bad) -> dict[str, str]:
    """Return the options beside a bad one, with which a right value would be right."""
    which = {} if option in WHICH or set(WHICH) & bad.beside.keys() else {"subscribe": "some"}
    return {**which, **bad.beside}
