"""Each test is in the part of the suite where it belongs (CONTRIBUTING.md, "Where a new test goes").

What a loaded machine can make false, such as a wall-clock time or MiB of memory, is asserted only by tests that are
marked ``slow``: a change is not held up by them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parts import PARTS

TESTS = Path(__file__).parent
CLOCKS = {"monotonic", "perf_counter", "process_time", "time"}
MEMORY = {"rss", "ru_maxrss"}
OTHER_PARTS = {"slow", "quarantined", "cluster"}  # with one of these a test is in no part of `make test`


def _is_measured(node: ast.AST) -> bool:
    """Tell whether the value is a time that has passed, or an amount of memory."""
    return any(
        (isinstance(each, ast.Attribute) and each.attr in MEMORY)
        or (isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub) and _reads_a_clock(each))
        for each in ast.walk(node)
    )


def _reads_a_clock(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in CLOCKS
        for each in ast.walk(node)
    )


def _asserts_a_measure(function: ast.AST) -> bool:
    """Tell whether it asserts a measure, or a name that it gave one."""
    names = {
        target.id
        for each in ast.walk(function)
        if isinstance(each, ast.Assign) and _is_measured(each.value)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    return any(
        isinstance(each, ast.Assert)
        and (_is_measured(each.test) or any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(each.test)))
        for each in ast.walk(function)
    )


def _calls(function: ast.AST, names: set[str]) -> bool:
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in names
        for each in ast.walk(function)
    )


def _marks(nodes: list[ast.expr]) -> set[str]:
    text = " ".join(ast.unparse(node) for node in nodes)
    return {name for name in (*OTHER_PARTS, "spark", "core") if f"mark.{name}" in text}


def _unmarked(path: Path) -> Iterator[str]:
    """Yield the tests of a file that are in `make test` and assert a measure."""
    text = path.read_text()
    if not any(f".{name}" in text for name in CLOCKS | MEMORY):
        return
    tree = ast.parse(text)
    of_file = _marks(
        [
            each.value
            for each in tree.body
            if isinstance(each, ast.Assign) and any(ast.unparse(target) == "pytestmark" for target in each.targets)
        ]
    )
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    helpers = {
        each.name
        for each in tree.body
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("test_") and _asserts_a_measure(each)
    }
    for each in functions:
        if each.name.startswith("test_"):
            marks = of_file | _marks(each.decorator_list)
            needs_core = "spark" in marks or path.parent.name == "faults"
            quick = not marks & OTHER_PARTS and ("core" in marks or not needs_core)
            if quick and (_asserts_a_measure(each) or _calls(each, helpers)):
                yield f"{path.relative_to(TESTS)}::{each.name}"


def test_no_quick_test_asserts_time_or_memory() -> None:
    """Mark it ``slow``, or make it a benchmark; a deadline on a wait is no such assertion."""
    assert [each for path in sorted(TESTS.rglob("test_*.py")) for each in _unmarked(path)] == []


def test_what_is_found() -> None:
    """The check above can fail."""
    body = "def test_a():\n    began = time.monotonic()\n    {}\n"
    for statement, found in (
        ("assert time.monotonic() - began < 1", True),
        ("took = time.monotonic() - began; assert took < 1", True),
        ("assert process.memory_info().rss < 5", True),
        ("assert time.monotonic() < deadline", False),
    ):
        assert _asserts_a_measure(ast.parse(body.format(statement))) is found, statement


@pytest.mark.parametrize("name", ["unit", "short-faults", "spark-core", "slow", "faults", "spark"])
def test_each_part_leaves_the_quarantined_out(name: str) -> None:
    """They run in a part of their own, which does not count."""
    assert "not quarantined" in PARTS[name].marks
