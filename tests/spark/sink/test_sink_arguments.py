"""Wrong arguments of the sink: all of them in one error, before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from jobpipe import JobPipeSink
from jobpipe.config.definitions.sink_arguments import SINK_ARGUMENTS
from jobpipe.errors import ConfigError

BAD: dict[str, Any] = {
    "topic": "a b",
    "name": "two\nlines",
    "parallelism": 0,
    "partition_by": [1],
    "partitioner": "random",
    "schema": 5,
    "acks": "some",
    "required_subscribers": "x/y",
    "min_subscribers": -1,
    "write_path": "files",
    "on_new_checkpoint": "ask",
    "replace": "perhaps",
    "config": "/nowhere/jobpipe.yaml",
}


def test_every_argument_has_a_bad_value() -> None:
    assert list(BAD) == [about.name for about in SINK_ARGUMENTS]


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_value_is_told_by_name(name: str) -> None:
    given = {"topic": "orders", name: BAD[name]}
    with pytest.raises(ConfigError) as caught:
        JobPipeSink(**given)
    assert name in caught.value.message or str(BAD[name]) in caught.value.message


def test_all_at_once() -> None:
    given = {name: value for name, value in BAD.items() if name not in ("schema", "config")}
    with pytest.raises(ConfigError) as caught:
        JobPipeSink(**given, retention_tiem="1h")
    problems = caught.value.fields["problems"]
    assert len(problems) == len(given) + 1
    assert "retention_tiem = 1h is unknown; did you mean retention_time?" in caught.value.message
