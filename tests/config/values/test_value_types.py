"""Kinds of values: what they accept, what they refuse, and that text and value are inverse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobpipe.config.types.network_types import CONNECT, HANDLER, HOST, PORT_RANGE, SUBNET, ZNODE
from jobpipe.config.types.value_types import (
    BOOLEAN,
    DURATION_MAX,
    PATH,
    SIZE_MAX,
    BadValueError,
    ValueType,
    choice,
    duration,
    optional,
    size,
    whole,
)

BASE = Path("/base")


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (duration(), "60s", 60.0),
        (duration(), "10min", 600.0),
        (duration(), "5m", 300.0),
        (duration(), "500ms", 0.5),
        (duration(), "24h", 86400.0),
        (duration(), "1.5h", 5400.0),
        (duration(), "7 d", 604800.0),
        (duration(), "90", 90.0),
        (duration(), 90, 90.0),
        (duration(), 0.25, 0.25),
        (duration(), 0, 0.0),
        (size(), "8GiB", 8 * 2**30),
        (size(), "64MiB", 64 * 2**20),
        (size(), "1GB", 10**9),
        (size(), "1.5KiB", 1536),
        (size(), "10 kb", 10_000),
        (size(), "4096", 4096),
        (size(), 4096, 4096),
        (size(), str(2**60), 2**60),
        (whole(1, 9), "7", 7),
        (whole(1, 9), 7, 7),
        (BOOLEAN, "TRUE", True),
        (BOOLEAN, False, False),
        (PATH, "a/../b", Path("/base/b")),
        (PATH, "/x", Path("/x")),
        (PATH, Path("c"), Path("/base/c")),
        (PORT_RANGE, "28444-28943", (28444, 28943)),
        (PORT_RANGE, " 10 - 20 ", (10, 20)),
        (PORT_RANGE, "443", (443, 443)),
        (PORT_RANGE, 443, (443, 443)),
        (PORT_RANGE, (5, 6), (5, 6)),
        (SUBNET, "10.162.222.7/24", "10.162.222.0/24"),
        (SUBNET, "fd00::/64", "fd00::/64"),
        (HOST, "spark-1.example.org", "spark-1.example.org"),
        (HOST, "10.0.0.1", "10.0.0.1"),
        (HOST, "fd00::1", "fd00::1"),
        (CONNECT, "embedded", "embedded"),
        (CONNECT, "zk1:2181, zk2:2181", "zk1:2181,zk2:2181"),
        (CONNECT, "[::1]:2181/chroot/a", "[::1]:2181/chroot/a"),
        (HANDLER, "zookeeper", "zookeeper"),
        (HANDLER, "my.package:Handler", "my.package:Handler"),
        (ZNODE, "/jobpipe/topics", "/jobpipe/topics"),
        (choice("a", "b"), " b ", "b"),
        (optional(SUBNET), None, None),
        (optional(SUBNET), "null", None),
        (optional(SUBNET), "", None),
        (optional(whole(1, 9)), 3, 3),
    ],
)
def test_accepted(kind: ValueType, raw: object, value: Any) -> None:
    got = kind.parse(raw, BASE)
    assert (got, type(got)) == (value, type(value))
    assert kind.parse(kind.format(got), BASE) == got


@pytest.mark.parametrize(
    ("kind", "raws"),
    [
        (duration(), ["", "fast", "10 years", "-1s", "1s2", "S", "1S", -1, True, None, [1], "nan", "inf", "9" * 400]),
        (duration(), [float("nan"), float("inf"), 10**400, "4000d", "1e400"]),
        (duration(1.0), ["999ms", 0, "0"]),
        (size(), ["", "big", "1.5", "0.3B", "-1", -1, True, None, [1], "8g", "1e400", 1.5, 10**400, "2000000TiB"]),
        (size(1024), ["1023", 0]),
        (whole(1, 9), [0, 10, "x", "1.0", 1.0, True, None, "-1", "9" * 400, "²"]),
        (BOOLEAN, ["yes", "1", 1, 0, None, ""]),
        (PATH, ["", " ", 5, None, True, "a\0b", "~nobody-of-this-name/x"]),
        (PORT_RANGE, ["0", "0-5", "5-4", "1-65536", "1-2-3", "-", "a-b", "", 0, True, None, 1.5, (1, 2, 3), ()]),
        (SUBNET, ["10.0.0.0/33", "here", "", 10, None]),
        (HOST, ["a:1", "a b", "-a", "", None, 5, "[::1]", "http://x"]),
        (CONNECT, ["zk1", "zk1:", "zk1:0", "zk1:2181,", "::1:2181", "zk1:2181/", "zk1:2181//a", "/a", "", None, 2181]),
        (HANDLER, ["kafka", "a.b", "a:b:c", ":b", "a:", "1a:b", "a b:c", None]),
        (ZNODE, ["topics", "/", "/a/", "//a", "/a/../b", "/./a", "/zookeeper", "/zookeeper/x", "/a b", None]),
        (choice("a", "b"), ["c", "A", "", None, True]),
        (optional(SUBNET), ["none", 0, False]),
    ],
)
def test_refused(kind: ValueType, raws: list[object]) -> None:
    for raw in raws:
        with pytest.raises(BadValueError):
            kind.parse(raw, BASE)


@settings(deadline=None)  # the machine may be busy
@given(st.floats(0, DURATION_MAX))
def test_every_duration_survives_its_text(seconds: float) -> None:
    kind = duration()
    assert kind.parse(kind.format(seconds), BASE) == seconds


@settings(deadline=None)  # the machine may be busy
@given(st.integers(0, SIZE_MAX))
def test_every_size_survives_its_text(count: int) -> None:
    kind = size()
    assert kind.parse(kind.format(count), BASE) == count


@settings(deadline=None)  # the machine may be busy
@given(st.text() | st.floats() | st.integers() | st.booleans() | st.none() | st.binary())
def test_garbage_raises_nothing_else(raw: object) -> None:
    for kind in (duration(), size(), whole(0, 5), PORT_RANGE, SUBNET, HOST, CONNECT, HANDLER, ZNODE, PATH, BOOLEAN):
        try:
            value = kind.parse(raw, BASE)
        except BadValueError:
            continue
        assert kind.parse(kind.format(value), BASE) == value


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(600.0, "10min"), (86400.0, "24h"), (60.0, "60s"), (0.5, "500ms"), (0.0, "0s"), (90.0, "90s"), (1.25, "1.25s")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration().format(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(8 * 2**30, "8GiB"), (10**9, "1GB"), (0, "0"), (1025, "1025")])
def test_sizes_read_well(count: int, text: str) -> None:
    assert size().format(count) == text
