"""Each test is in the part of the suite where it belongs (CONTRIBUTING.md, "Where a new test goes").

What a loaded machine can make false, such as a wall-clock time or MiB of memory, is asserted only by tests that are
marked ``slow``: a change is not held up by them. What starts programs is marked ``processes``: it is run once more.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.parts import PARTS

TESTS = Path(__file__).parent
CLOCKS = {"monotonic", "perf_counter", "process_time", "time"}
MEMORY = {"rss", "ru_maxrss", "max_memory", "total_allocated_bytes"}
MEASURES = re.compile(rf"\btime\(|\b(?:{'|'.join((CLOCKS - {'time'}) | MEMORY)})\b")
OTHER_PARTS = {"slow", "quarantined", "cluster"}  # with one of these a test is in no part of `make test`
PROGRAMS = {"Popen", "check_call", "check_output", "create_subprocess_exec", "create_subprocess_shell", "fork"}
STARTERS = re.compile(r"subprocess|multiprocessing|Popen|fork\(")
SAID = {"processes", "spark", "zookeeper"}  # with one of these a test is run once more
SERVED = {"home", "fork_server"}  # with one of these fixtures too
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _name(node: ast.AST) -> str:
    """Return what a plain or dotted name ends with."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) in CLOCKS


def _given(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that are assigned to, with the values."""
    for each in ast.walk(function):
        if isinstance(each, ast.Assign | ast.AnnAssign | ast.NamedExpr) and each.value is not None:
            for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
                if isinstance(target, ast.Name):
                    yield target.id, each.value
                elif isinstance(target, ast.Tuple) and isinstance(each.value, ast.Tuple):
                    yield from ((_name(a), b) for a, b in zip(target.elts, each.value.elts, strict=False))
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "append":
            yield _name(each.func.value), each.args[0]


def _is_measured(node: ast.AST, moments: set[str]) -> bool:
    """Tell whether the value is a time that has passed, or an amount of memory."""
    return any(
        _name(each) in MEMORY
        or (isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub) and _passed(each, moments))
        for each in ast.walk(node)
    )


def _passed(node: ast.BinOp, moments: set[str]) -> bool:
    """Tell whether it is now minus a moment, or one moment minus another."""
    of_moments = all(isinstance(side, ast.Name) and side.id in moments for side in (node.left, node.right))
    return of_moments or any(_is_clock(each) for each in ast.walk(node))


def _asserts_a_measure(function: ast.AST) -> bool:
    """Tell whether it asserts a measure, or a name that it gave one."""
    given = list(_given(function))
    moments = {name for name, value in given if _is_clock(value)}
    names = {name for name, value in given if _is_measured(value, moments)}
    return any(
        isinstance(each, ast.Assert)
        and (
            _is_measured(each.test, moments)
            or any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(each.test))
        )
        for each in ast.walk(function)
    )


def _calls(function: ast.AST, names: set[str]) -> bool:
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in names
        for each in ast.walk(function)
    )


def _marks(nodes: Iterable[ast.expr]) -> set[str]:
    """Return the marks that these are themselves; those of one parameter are not."""
    plain = (node.func if isinstance(node, ast.Call) else node for node in nodes)
    return {_name(node) for node in plain if ast.unparse(node).startswith("pytest.mark.")}


def _of_file(tree: ast.Module) -> set[str]:
    """Return the marks of all tests of a file."""
    values = [value for name, value in _given(tree) if name == "pytestmark"]
    return _marks(mark for value in values for mark in (value.elts if isinstance(value, ast.List) else [value]))


def _functions(tree: ast.AST) -> list[Function]:
    return [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def _unmarked(path: Path, text: str) -> Iterator[str]:
    """Yield the tests of a file that are in `make test` and assert a measure."""
    if MEASURES.search(text) is None:
        return
    tree = ast.parse(text)
    of_file = _of_file(tree)
    helpers = {
        each.name
        for each in tree.body
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("test_") and _asserts_a_measure(each)
    }
    for each in _functions(tree):
        if each.name.startswith("test_"):
            marks = of_file | _marks(each.decorator_list)
            core = "core" in of_file or any("mark.core" in ast.unparse(mark) for mark in each.decorator_list)
            needs_core = "spark" in marks or "faults" in path.parts
            quick = not marks & OTHER_PARTS and (core or not needs_core)
            if quick and (_asserts_a_measure(each) or _calls(each, helpers)):
                yield f"{path.relative_to(TESTS)}::{each.name}"


def _starts_a_program(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.Call)
        and (
            _name(each.func) in PROGRAMS
            or ast.unparse(each.func) in ("subprocess.run", "subprocess.call")
            or (_name(each.func) == "Process" and "multiprocessing" in ast.unparse(each.func))
        )
        for each in ast.walk(node)
    )


def _arguments(function: Function) -> set[str]:
    return {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}


def _uses(node: ast.AST) -> set[str]:
    """Return what is called or, as fixtures are, taken."""
    called = {
        _name(each.func) for each in ast.walk(node) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
    }
    return called | (_arguments(node) if isinstance(node, Function) else set())


def _silent(path: Path, text: str) -> Iterator[str]:
    """Yield the tests of a file that start programs, or use what does in their file, and do not say so."""
    if path.relative_to(TESTS).parts[0] in ("faults", "cluster") or not STARTERS.search(text):
        return
    tree = ast.parse(text)
    of_file = _of_file(tree)
    own = [
        each for each in tree.body if isinstance(each, Function | ast.ClassDef) and not each.name.startswith("test_")
    ]
    starters = {each.name for each in own if _starts_a_program(each)}
    starters |= {each.name for each in own if _uses(each) & starters}
    for each in _functions(tree):
        if each.name.startswith("test_") and (_starts_a_program(each) or _uses(each) & starters):
            marks = of_file | _marks(each.decorator_list)
            if not marks & SAID and not _fixtures(path, tree, _arguments(each)) & SERVED:
                yield f"{path.relative_to(TESTS)}::{each.name}"


def _fixtures(path: Path, tree: ast.Module, names: set[str]) -> set[str]:
    """Return the fixtures with these names, and those that they need."""
    files = (TESTS, TESTS / "bus", path.parent)
    parsed = [ast.parse(file.read_text()) for folder in files if (file := folder / "conftest.py").exists()]
    needs = {each.name: _arguments(each) for each in (each for one in (*parsed, tree) for each in _functions(one))}
    while more := {other for name in names for other in needs.get(name, ())} - names:
        names = names | more
    return names


def _of_all(check: object) -> list[str]:
    assert callable(check)
    return [each for path in sorted(TESTS.rglob("test_*.py")) for each in check(path, path.read_text())]


def test_no_quick_test_asserts_time_or_memory() -> None:
    """Mark it ``slow``, or make it a benchmark; a deadline on a wait is no such assertion."""
    assert _of_all(_unmarked) == []


def test_what_starts_programs_says_so() -> None:
    """Mark it ``processes``."""
    assert _of_all(_silent) == []


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("assert time.monotonic() - began < 1", True),
        ("assert monotonic() - began < 1", True),
        ("took = time.monotonic() - began; assert took < 1", True),
        ("took: float = time.monotonic() - began; assert took < 1", True),
        ("assert (took := time.monotonic() - began) < 1", True),
        ("now = time.monotonic(); assert now - began < 1", True),
        ("now: float = perf_counter(); took = now - began; assert 0 < took < 1", True),
        ("assert process.memory_info().rss < 5", True),
        ("assert (pool.max_memory() or 0) < 5", True),
        ("before, pool = pa.total_allocated_bytes(), None; assert before < 5", True),
        ("assert rss(pid) < 5", True),
        ("all_of_them.append(time.monotonic() - began); assert max(all_of_them) < 1", True),
        ("assert time.monotonic() < deadline", False),
        ("left = rows - 1; assert left - 1 < 5", False),
        ("assert rows - began < 5", False),
    ],
)
def test_what_is_found(statement: str, found: bool) -> None:
    """The check above can fail."""
    assert _asserts_a_measure(ast.parse(f"def test_a():\n    began = time.monotonic()\n    {statement}\n")) is found


HEAD = "import subprocess, time\n"
TIMED = "def test_a():\n    assert time.monotonic() - began < 1\n"
PROGRAM = "def test_a({}):\n    subprocess.run(['git'])\n"


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("", True),
        ("@pytest.mark.slow\n", False),
        ("@pytest.mark.quarantined(reason='x', since='y')\n", False),
        ("pytestmark = pytest.mark.slow\n", False),
        ("pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]\n", False),
        ("@pytest.mark.parametrize('a', [1, pytest.param(2, marks=pytest.mark.slow)])\n", True),
        ("pytestmark = pytest.mark.parametrize('a', [pytest.param(2, marks=pytest.mark.slow)])\n", True),
    ],
)
def test_which_are_quick(before: str, found: bool) -> None:
    """All that are not slow as a whole."""
    assert bool(list(_unmarked(TESTS / "test_x.py", HEAD + before + TIMED))) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PROGRAM.format(""), True),
        ("def test_a():\n    multiprocessing.get_context('fork').Process(target=print).start()\n", True),
        ("def test_a():\n    Popen([])\n", True),
        ("def test_a():\n    os.fork()\n", True),
        ("def test_a():\n    psutil.Process(1)\n", False),
        ("def run():\n    subprocess.Popen([])\ndef test_a():\n    run()\n", True),
        ("class Held:\n    def __init__(self):\n        subprocess.Popen([])\ndef test_a():\n    Held()\n", True),
        ("@pytest.fixture\ndef child():\n    yield subprocess.Popen([])\ndef test_a(child):\n    pass\n", True),
        ("def start():\n    subprocess.Popen([])\ndef twice():\n    start()\ndef test_a():\n    twice()\n", True),
        ("@pytest.mark.processes\n" + PROGRAM.format(""), False),
        ("pytestmark = [pytest.mark.spark]\n" + PROGRAM.format(""), False),
        ("@pytest.mark.parametrize('a', [pytest.param(2, marks=pytest.mark.processes)])\n" + PROGRAM.format(""), True),
        (PROGRAM.format("home"), False),
        (PROGRAM.format("config"), False),
        (PROGRAM.format("tmp_path"), True),
    ],
)
def test_what_starts_programs(text: str, found: bool) -> None:
    """Itself, or by what it uses of its file."""
    assert bool(list(_silent(TESTS / "store" / "test_x.py", HEAD + text))) is found


@pytest.mark.parametrize("folder", ["faults", "cluster"])
def test_all_of_some_folders_are_run_once_more(folder: str) -> None:
    assert list(_silent(TESTS / folder / "test_x.py", HEAD + PROGRAM.format(""))) == []


@pytest.mark.parametrize("name", ["unit", "short-faults", "spark-core", "slow", "faults", "spark"])
def test_each_part_leaves_the_quarantined_out(name: str) -> None:
    """They run in a part of their own, which does not count."""
    assert "not quarantined" in PARTS[name].marks
