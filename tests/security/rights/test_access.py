"""Case 68: the access list: what it says, what it does not, and what is wrong with it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobpipe.errors import ConfigError
from jobpipe.net.servers.access_list import ADMIN, PUBLISH, READ, RIGHTS, AccessList, Glob, read_access

LIST = """
orders:
  publish: [orders.topic.jobpipe, next.topic.jobpipe]
  read:
    billing.subscription.jobpipe: [billing, "billing-*"]
    reports.jobpipe: "*"
  admin: operations.jobpipe
"sensor-*":
  read: [audit.subscription.jobpipe, h1cb2f2f6a4.subscription.jobpipe]
"*":
  admin: [root.jobpipe]
a.b:
  read: {dots.jobpipe: "x.y"}
empty:
"""


def load(tmp_path: Path, text: str) -> AccessList:
    file = tmp_path / "access.yaml"
    file.write_text(text)
    return read_access(file)


@pytest.mark.parametrize(
    ("who", "right", "topic", "name", "allowed"),
    [
        ("orders.topic.jobpipe", PUBLISH, "orders", None, True),
        ("next.topic.jobpipe", PUBLISH, "orders", None, True),
        ("orders.topic.jobpipe", PUBLISH, "orders2", None, False),
        ("orders.topic.jobpipe", READ, "orders", None, False),
        ("orders.topic.jobpipe", ADMIN, "orders", None, False),
        ("billing.subscription.jobpipe", READ, "orders", "billing", True),
        ("billing.subscription.jobpipe", READ, "orders", "billing-7", True),
        ("billing.subscription.jobpipe", READ, "orders", "billing2", False),
        ("billing.subscription.jobpipe", READ, "orders", "audit", False),
        ("billing.subscription.jobpipe", READ, "orders", "", False),
        ("billing.subscription.jobpipe", READ, "orders", None, True),
        ("billing.subscription.jobpipe", READ, "payments", None, False),
        ("reports.jobpipe", READ, "orders", "whatever", True),
        ("operations.jobpipe", ADMIN, "orders", None, True),
        ("operations.jobpipe", ADMIN, "sensor-1", None, False),
        ("audit.subscription.jobpipe", READ, "sensor-1", "audit", True),
        ("audit.subscription.jobpipe", READ, "sensor-1", "audit2", False),
        ("audit.subscription.jobpipe", READ, "sensor-1", None, True),
        ("audit.subscription.jobpipe", READ, "sensor", "audit", False),
        ("audit.subscription.jobpipe", READ, "xsensor-1", "audit", False),
        ("root.jobpipe", ADMIN, "anything.at-all", None, True),
        ("root.jobpipe", READ, "anything", None, False),
        ("dots.jobpipe", READ, "a.b", "x.y", True),
        ("dots.jobpipe", READ, "aXb", "x.y", False),
        ("dots.jobpipe", READ, "a.b", "xzy", False),
        ("*", READ, "orders", None, False),
        ("*.jobpipe", ADMIN, "orders", None, False),
        ("ORDERS.topic.jobpipe", PUBLISH, "orders", None, False),
        ("orders.topic.jobpipe.", PUBLISH, "orders", None, False),
    ],
)
def test_rights(tmp_path: Path, who: str, right: str, topic: str, name: str | None, allowed: bool) -> None:
    found = load(tmp_path, LIST)
    assert found.allows([who], right, topic, name) is allowed
    assert found.allows(["nobody.jobpipe", who], right, topic, name) is allowed
    assert not found.allows([], right, topic, name)


@given(st.text(), st.sampled_from(RIGHTS), st.text(), st.none() | st.text())
def test_deny_by_default(who: str, right: str, topic: str, name: str | None) -> None:
    assert not AccessList().allows([who], right, topic, name)


@pytest.mark.parametrize("text", ["", "{}", "null", "# nothing\n"])
def test_an_empty_list_allows_nothing(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == AccessList()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[]", ""),
        ("orders: [read]", "orders"),
        ("orders: {reads: []}", "orders.reads"),
        ("orders: {read: ['*.jobpipe']}", "orders.read"),
        ("orders: {read: ['*']}", "orders.read"),
        ("orders: {read: [A.jobpipe]}", "orders.read"),
        ("orders: {read: [7]}", "orders.read"),
        ("orders: {read: 7}", "orders.read"),
        ("orders: {read: {a.jobpipe: []}}", "orders.read.a.jobpipe"),
        ("orders: {read: {a.jobpipe: [x/y]}}", "orders.read.a.jobpipe"),
        ("orders: {read: {a.jobpipe: }}", "orders.read.a.jobpipe"),
        ("orders: {publish: {a.jobpipe: x}}", "orders.publish"),
        ("'or ders': {}", "or ders"),
        ("'../x': {}", "../x"),
        ("7: {}", ""),
        ("orders: {read: [a.jobpipe]}\norders: {}", "line 2"),
        ("orders: {read: [a.jobpipe], read: []}", "line 1"),
        ("orders: {read: [", "line 1"),
        ("orders: !!python/object/apply:os.system [echo]", "line 1"),
        ("\0", ""),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, where: str) -> None:
    """A topic or right given twice is one: the first would be forgotten in silence."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.fields["file"] == str(tmp_path / "access.yaml")
    assert caught.value.fields["where"].startswith(where)
    assert "expected" in caught.value.message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_access(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError):
        read_access(tmp_path)
    (tmp_path / "long").write_text("# " + "x" * (1 << 20))
    with pytest.raises(ConfigError, match="at most"):
        read_access(tmp_path / "long")
    (tmp_path / "latin").write_bytes(b"orders: {}  # \xff")
    with pytest.raises(ConfigError):
        read_access(tmp_path / "latin")


@pytest.mark.slow
def test_patterns_take_linear_time() -> None:
    """S4: `*a*a*b` against 62 KiB took the loop for 2 s by backtracking."""
    pattern = Glob("*".join(["", *"aaaaaaaaaa", "b"]))
    began = time.perf_counter()
    assert not pattern.matches("a" * 65_536)
    assert pattern.matches("a" * 65_536 + "b")
    assert time.perf_counter() - began < 0.5


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_patterns_are_as_expressions_were(pattern: str, name: str) -> None:
    expression = ".*".join(re.escape(part) for part in re.split(r"\*+", pattern))
    assert Glob(pattern).matches(name) == (re.fullmatch(expression, name) is not None)
