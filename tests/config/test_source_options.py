"""From the texts of options to what one load() reads: precedence, defaults, and what does not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobpipe.errors import ConfigError
from jobpipe.spark.options.read_options import SourceOptions
from jobpipe.store.catalog.position import Position
from jobpipe.store.reading.boundary import COMMITTED, EARLIEST, LATEST, Boundary

POSITION = '{"epoch": 1, "log": "0123456789abcdef", "n": 4, "r": 2}'


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def parse(**options: str) -> SourceOptions:
    """Topics a and b, unless the options say others."""
    which = {} if {"subscribePattern", "assign"} & set(options) else {"subscribe": "a,b"}
    return SourceOptions.parse({**which, **options}, credentials=False)


def refused(**options: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(**options)
    return caught.value.message


def since(ms: int, otherwise: str = "error") -> Boundary:
    return Boundary("time", ms, otherwise)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "start", "end"),
    [
        ({}, None, None),
        ({"startingOffsets": "earliest"}, EARLIEST, None),
        ({"startingOffsets": "committed", "endingOffsets": "latest"}, COMMITTED, LATEST),
        ({"startingOffsets": '{"a": -2, "b": 1}', "endingOffsets": '{"a": -1, "b": 9}'}, EARLIEST, LATEST),
        ({"startingOffsets": '{"a": 7, "b": -1}'}, Boundary("offset", 7), None),
        (
            {"startingOffsets": f'{{"a": {POSITION}, "b": -1}}'},
            Boundary("position", Position("0123456789abcdef", 1, 4, 2)),
            None,
        ),
        ({"startingTimestamp": "5", "endingTimestamp": "9"}, since(5), since(9, "latest")),
        (
            {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"},
            since(5, "latest"),
            None,
        ),
        ({"startingOffsetsByTimestamp": '{"a": 5, "b": 6}', "startingOffsets": "latest"}, since(5), None),
        ({"startingTimestamp": "4", "startingOffsetsByTimestamp": '{"a": 5, "b": 6}'}, since(4), None),
        ({"endingTimestamp": "4", "endingOffsetsByTimestamp": '{"a": 5, "b": 6}'}, None, since(4, "latest")),
        ({"endingOffsetsByTimestamp": '{"a": 5, "b": 6}', "endingOffsets": "latest"}, None, since(5, "latest")),
        (
            {"boundaryType": "OFFSET", "lowerBound": "3", "upperBound": "8"},
            Boundary("offset", 3),
            Boundary("offset", 8),
        ),
        ({"boundaryType": "OFFSET", "lowerBound": '{"a": 3, "b": -2}'}, Boundary("offset", 3), None),
        ({"boundaryType": "OFFSET", "upperBound": "-1"}, None, LATEST),
        ({"boundaryType": "TIME", "lowerBound": "1970-01-01T00:00:01Z"}, since(1000), None),
        ({"boundaryType": "TIME", "lowerBound": '{"a": 7, "b": 8}', "upperBound": "9"}, since(7), since(9, "latest")),
        ({"subscribePattern": "a|b", "startingOffsets": '{"b": 3}'}, EARLIEST, None),
    ],
)
def test_where_a_topic_begins_and_ends(options: dict[str, str], start: Boundary, end: Boundary) -> None:
    """Of topic a."""
    parsed = parse(**options)
    assert parsed.starts.of("a") == start
    assert parsed.ends.of("a") == end


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        ({"startingOffsets": '{"a": 1}'}, ["startingOffsets = ", "b is missing"]),
        ({"startingOffsets": '{"a": 1, "b": 1, "c": 1}'}, ["c is not read"]),
        ({"startingOffsetsByTimestamp": '{"c": 1}'}, ["a, b is missing; c is not read"]),
        ({"assign": '{"a": [1]}', "endingOffsets": '{"b": 1}'}, ["endingOffsets = ", "a is missing; b is not read"]),
        (
            {"subscribePattern": "a.*", "endingOffsets": '{"b": 1}'},
            ["topics that match subscribePattern, and b does not"],
        ),
        ({"startingTimestamp": "9", "endingTimestamp": "5"}, ["endingTimestamp = 5", "not before the start"]),
        (
            {"subscribePattern": "a", "boundaryType": "OFFSET", "lowerBound": "5", "upperBound": "3"},
            ["upperBound = 3", "not before the start"],
        ),
        (
            {"startingOffsets": '{"a": 1, "b": 5}', "endingOffsets": '{"a": 1, "b": 4}'},
            ["not before the start (topic b)"],
        ),
        ({"boundaryType": "OFFSET", "lowerBound": "1", "endingOffsets": "latest"}, ["it without endingOffsets"]),
        ({"boundaryType": "KEY", "lowerBound": "1"}, ["boundaryType = KEY: expected TIME or OFFSET"]),
        ({"boundaryType": "OFFSET", "lowerBound": "soon"}, ["lowerBound = soon: expected an offset"]),
        ({"boundaryType": "TIME", "upperBound": "2026-11-21T10:00:00"}, ["upperBound = ", "with its zone"]),
        ({"boundaryType": "OFFSET", "upperBound": "-2"}, ["upperBound = -2"]),
        ({"lowerBound": "1"}, ["lowerBound = 1: expected boundaryType as well"]),
        ({"maxTriggerDelay": "5m"}, ["maxTriggerDelay = 5m: expected minRowsPerTrigger as well"]),
        ({"startingOffsetsByTimestampStrategy": "latest"}, ["startingTimestamp or startingOffsetsByTimestamp or"]),
        (
            {"maxRowsPerTrigger": "5", "MAXOFFSETSPERTRIGGER": "6"},
            ["maxOffsetsPerTrigger = 6: expected it once; maxRowsPerTrigger is the same option"],
        ),
        (
            {"minOffsetsPerTrigger": "5", "maxRowsPerTrigger": "4"},
            ["minOffsetsPerTrigger = 5: expected at most", ", 4"],
        ),
        ({"kafka.group.id": "x"}, ["did you mean name?"]),
        ({"startingOffsets": '{"a": {"0": 5}, "b": 1}'}, ["not one for each partition as in Kafka"]),
        (
            {"startingOffsets": '{{"a": {}, "b": 1}}'.format(POSITION.replace("0123", "zzzz"))},
            ["a position as progress shows it"],
        ),
    ],
)
def test_what_does_not_go_together(options: dict[str, str], phrases: list[str]) -> None:
    message = refused(**options)
    for phrase in phrases:
        assert phrase in message, message


def test_other_names_and_units() -> None:
    parsed = parse(
        maxOffsetsPerTrigger="7",
        minoffsetspertrigger="3",
        maxTriggerDelay="15m",
        maxBytesPerTrigger="1MiB",
        maxRecordsPerPartition="11",
        minPartitions="4",
        discoveryTimeout="3s",
    )
    assert (parsed.max_rows, parsed.min_rows, parsed.max_trigger_delay) == (7, 3, 900.0)
    assert (parsed.max_bytes, parsed.max_rows_per_partition, parsed.min_partitions) == (1 << 20, 11, 4)
    assert parsed.config.discovery_timeout == 3.0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets = latest: expected another start than latest"),
        ({"startingOffsets": '{"a": 1, "b": -1}'}, 'startingOffsets = {"a": 1, "b": -1}: expected another start'),
        ({"boundaryType": "OFFSET", "lowerBound": "-1"}, "lowerBound = -1: expected another start than latest"),
        ({"startingOffsets": "committed"}, "startingOffsets = committed: expected an option 'name' as well"),
    ],
)
def test_a_batch_read_starts_where_it_can(options: dict[str, str], told: str) -> None:
    parsed = parse(**options)
    with pytest.raises(ConfigError, match="1 wrong option") as caught:
        parsed.require_batch()
    assert told in caught.value.message
    parse(startingOffsets="committed", name="x").require_batch()
