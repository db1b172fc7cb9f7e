"""What the command line shows."""

from __future__ import annotations

import pytest

from jobpipe.config import explain, find_key, keys, render, resolve
from jobpipe.errors import ConfigError


def test_rows() -> None:
    resolved = resolve(overrides={"retention.time": "90min", "subnet": "10.0.0.0/8"}, environ={})
    rows = {row.key: row for row in render(resolved.config, resolved.sources)}
    assert list(rows) == [about.name for about in keys()]
    row = rows["jobpipe.retention.time"]
    assert (row.value, row.source, row.default, row.group) == ("90min", "option", "10min", "retention")
    assert (rows["jobpipe.acks"].value, rows["jobpipe.acks"].source) == ("stored", "default")
    assert (rows["jobpipe.sinkserver.subnet"].value, rows["jobpipe.sinkserver.subnet"].default) == (
        "10.0.0.0/8",
        "null",
    )


def test_explanation_has_all_that_is_known() -> None:
    for about in keys():
        text = explain(about.short)
        for part in (about.name, about.documentation, about.expected, about.default_text, about.spark):
            assert part in text
        assert about.environment in text


def test_an_unknown_key_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        find_key("sinkserver.port.rnage")
    (problem,) = caught.value.fields["problems"]
    assert problem["expected"] == "did you mean jobpipe.sinkserver.port.range?"
