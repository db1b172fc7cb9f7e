"""Runs the unit tests of what changed since a commit, HEAD by default: ``python -m tests.changed [BASE]``.

Tests mirror the packages: a change in ``jobpipe/net`` runs ``tests/net``; a change of a test file runs that file. Tests
of several packages at once (``tests/bus``, ``tests/faults``, Spark's) are left to ``make test``.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from tests.parts import NO_TESTS, PARTS, REPORTS

ROOT = Path(__file__).parents[1]
WHOLE_BUS = ("tests/bus", "tests/faults", "tests/cluster", "tests/spark")
MIRRORS = {  # where the name of the folder differs
    "jobpipe/admin.py": ["tests/cli"],
    "jobpipe/hostserver": ["tests/coordinator"],
    "docs": ["tests/test_pages.py"],
    "README.md": ["tests/test_pages.py"],
    "conf": ["tests/config"],
    "benchmarks": ["tests/test_benchmarks.py"],
}


def find_tests(changed: Iterable[str]) -> list[str]:
    """Return the test files and folders to run for these files, all relative to the root, in name order."""
    found = {test for name in changed for test in _tests_for(PurePosixPath(name))}
    return sorted(
        test for test in found if not any(folder != test and test.startswith(f"{folder}/") for folder in found)
    )


def _tests_for(path: PurePosixPath) -> Iterator[str]:
    if path.parts[0] == "tests":
        if path.name.startswith("test_") and path.suffix == ".py":
            if (ROOT / path).exists():
                yield str(path)
        elif len(path.parts) > 2 and not str(path).startswith(WHOLE_BUS) and (ROOT / path.parent).exists():
            yield str(path.parent)  # a kit that its neighbours use
        return
    for place in (path, *path.parents):
        if str(place) in MIRRORS:
            yield from MIRRORS[str(place)]
            return
        mirror = "/".join(("tests", place.parts[-1])) if place.parts else ""
        if place.suffix == "" and len(place.parts) in (1, 2) and mirror not in WHOLE_BUS and (ROOT / mirror).is_dir():
            yield mirror
            return


def changed_files(base: str) -> list[str]:
    """Return the files that differ from ``base``, and those that git does not track yet."""
    differ = _git("diff", "--name-only", base)
    return sorted({*differ, *_git("ls-files", "--others", "--exclude-standard")})


def _git(*arguments: str) -> list[str]:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def main(base: str = "HEAD") -> int:
    """Run them, and return pytest's exit status; 0 where there is nothing to run."""
    tests = find_tests(changed_files(base))
    if not tests:
        print(f"nothing with unit tests of its own has changed since {base}")
        return 0
    print("unit tests of what changed:", *tests)
    changed = dataclasses.replace(PARTS["unit"], paths=tuple(tests))
    status = subprocess.run(changed.command(REPORTS / "changed.xml"), cwd=ROOT).returncode
    return 0 if status == NO_TESTS else status  # as of a changed test file with Spark's tests only


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
