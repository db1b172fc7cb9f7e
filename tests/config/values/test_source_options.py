"""From the texts of options to what one load() reads: precedence and defaults."""

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
    ("options", "told"),
    [
        (
            {"maxRowsPerTrigger": "5", "MAXOFFSETSPERTRIGGER": "6"},
            "maxOffsetsPerTrigger = 6: expected it once; maxRowsPerTrigger is the same option",
        ),
        ({"kafka.group.id": "x"}, r"did you mean name\?"),
    ],
)
def test_names_that_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse(**options)


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
