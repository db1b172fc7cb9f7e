"""Runs parts of the tests one after another, and says how they went: ``python -m tests.parts unit short-faults``.

Every part runs, also after one that failed. JUnit XML of each is in ``build/junit``. The summary names the minutes of
each part, the tests that passed only when they were run again, and those that took more than 5 s.

``unit@3.13`` is the part "unit" with the Python of ``.venv/python/3.13``, skipped where that is not there: see
``make pythons``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.explore.__main__ import EXPLORERS

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "build" / "junit"
LONG = 5.0  # seconds; a test of `make test` that takes longer is named
RUN_AGAIN = "run again after"  # the property that tests/conftest.py gives a test in its second run


@dataclass(frozen=True, slots=True)
class Part:
    """A selection of tests: pytest's ``-m`` expression, its paths, how many processes run it, what is left out.

    With ``holding`` only files that hold this text are read, since to import all tests takes half a minute.
    """

    marks: str
    paths: tuple[str, ...] = ("tests",)
    processes: int = 3  # most tests wait for sockets and processes
    ignored: tuple[str, ...] = ()
    holding: str = ""

    def command(self, report: Path, python: str = sys.executable) -> list[str]:
        """Return the command that runs it with a Python and writes ``report``."""
        spread = ["-n", str(self.processes), "--dist", "loadfile", "--no-loadscope-reorder"]
        return [
            *(python, "-m", "pytest", "--durations=15", "--durations-min=5", f"--junitxml={report}"),
            *("-o", "junit_family=xunit1"),  # which names the file of each test
            *(spread if self.processes > 1 else ()),
            *("-m", self.marks),
            *(f"--ignore={path}" for path in self.ignored),
            *(self._holders() if self.holding else self.paths),
        ]

    def _holders(self) -> list[str]:
        files = (file for path in self.paths for file in (ROOT / path).rglob("test_*.py"))
        return sorted(str(file.relative_to(ROOT)) for file in files if self.holding in file.read_text())


OTHERS = ("tests/faults", "tests/cluster", "tests/compat")
CORE = ("tests/spark", "tests/faults")  # where the mark may be: tests/conftest.py refuses it elsewhere
PARTS = {
    # Those of `make test`.
    "unit": Part("not spark and not slow and not quarantined", ignored=OTHERS),
    "short-faults": Part("core and not slow and not spark and not quarantined", ("tests/faults",)),
    "spark-core": Part("core and spark and not slow and not quarantined", CORE, processes=1),
    # The others, of `make test-all`.
    "slow": Part("slow and not spark and not quarantined", processes=4, ignored=OTHERS),
    "faults": Part("(slow or not core) and not spark and not quarantined", ("tests/faults",)),
    "spark": Part("spark and (slow or not core) and not quarantined", ignored=("tests/cluster",), processes=2),
    "compat": Part("not quarantined", ("tests/compat",), processes=1),
    "cluster": Part("not quarantined", ("tests/cluster",), processes=2),
    "quarantined": Part("quarantined", processes=1, holding="mark.quarantined("),
}
EXPLORE = "explore"  # a part that is no selection of tests
NO_TESTS = 5  # pytest's exit code
KNOWN = (0, 1, NO_TESTS)  # those of the part "quarantined" that say nothing new: all else is a mistake of pytest's use


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part went."""

    name: str
    status: int
    seconds: float
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    run_again: tuple[str, ...] = ()
    long: tuple[tuple[float, str], ...] = ()

    @property
    def good(self) -> bool:
        """Tell whether it counts as passed; what is quarantined is only reported."""
        return self.status == 0 or (self.name == "quarantined" and self.status in KNOWN)


def read_report(name: str, status: int, seconds: float, report: Path) -> Outcome:
    """Return what pytest wrote into ``report``; a part that died before it had written one has counted nothing."""
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - a file of our own
    except (FileNotFoundError, ElementTree.ParseError):
        return Outcome(name, status or 1, seconds)
    last = {f"{case.get('file', '')}::{case.get('name', '')}": case for case in cases}  # of a test that was run again
    ends = Counter(map(_end, last.values()))
    again = tuple(
        f"{test}: {each.get('value')}"
        for test, case in last.items()
        for each in case.iter("property")
        if each.get("name") == RUN_AGAIN and _end(case) == "passed"
    )
    took = ((float(case.get("time", "0")), test) for test, case in last.items())
    long = tuple(sorted((each for each in took if each[0] > LONG), reverse=True))
    return Outcome(name, status, seconds, ends["passed"], ends["failed"], ends["skipped"], again, long)


def _end(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def run(name: str) -> Outcome:
    """Run one part."""
    print(f"=== {name}", flush=True)
    report = REPORTS / f"{name}.xml"
    begun = time.monotonic()
    if name == EXPLORE:
        status = explore()
        return Outcome(name, status, time.monotonic() - begun)
    part, _, version = name.partition("@")
    python = ROOT / ".venv" / "python" / version / "bin" / "python" if version else Path(sys.executable)
    if not python.exists():
        print(f"SKIPPED: there is no Python {version} here: make pythons", flush=True)
        return Outcome(name, 0, 0.0)
    status = subprocess.run(PARTS[part].command(report, str(python)), cwd=ROOT).returncode
    outcome = read_report(name, status, time.monotonic() - begun, report)
    return Outcome(name, 0, outcome.seconds) if status == NO_TESTS and name == "quarantined" else outcome


def explore() -> int:
    """Run each explorer for a while, two at a time, since each is one process that waits for nothing."""

    def one(explorer: str) -> int:
        command = [sys.executable, "-m", "tests.explore", explorer, "--seeds", "40", "--minutes", "4"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(done.stdout, end="", flush=True)
        return done.returncode

    with ThreadPoolExecutor(2) as pool:
        return max(map(abs, pool.map(one, EXPLORERS)))


def summary(outcomes: list[Outcome], name_long: bool) -> str:
    """Return the last lines; those over 5 s are named only if ``name_long``."""
    lines = [f"{'part':<14}{'minutes':>8}{'passed':>8}{'failed':>8}{'skipped':>8}"]
    for each in outcomes:
        end = "" if each.status == 0 else "  known, not counted" if each.good else f"  exit code {each.status}"
        lines.append(f"{each.name:<14}{each.seconds / 60:>8.1f}{each.passed:>8}{each.failed:>8}{each.skipped:>8}{end}")
    lines += [f"over {LONG:.0f} s: {took:.1f} s {test}" for each in outcomes if name_long for took, test in each.long]
    lines += [f"passed only when it was run again: {test}" for each in outcomes for test in each.run_again]
    good = [each for each in outcomes if each.name != "quarantined"]
    total = sum(each.seconds for each in outcomes) / 60
    lines.append(f"in all {total:.1f} minutes, {sum(len(each.run_again) for each in outcomes)} run again")
    counts = (sum(each.passed for each in good), sum(each.failed for each in good), sum(each.skipped for each in good))
    lines.append("{} passed, {} failed, {} skipped".format(*counts))
    return "\n".join(lines)


def main(names: list[str]) -> int:
    """Run the parts, and return 1 if one failed."""
    if not names or not {name.partition("@")[0] for name in names} <= {*PARTS, EXPLORE}:
        print("parts:", *PARTS, EXPLORE, "and, of another Python, unit@3.13", file=sys.stderr)
        return 2
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    outcomes = [run(name) for name in names]
    print(summary(outcomes, name_long="slow" not in names), flush=True)
    return 0 if all(each.good for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
