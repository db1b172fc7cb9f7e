"""Runs the unit tests of what changed since a commit, HEAD by default: ``python -m tests.changed [BASE]``.

Tests mirror the packages: a change in ``jobpipe/net`` runs ``tests/net``; a change of a test file runs that file, and
one of another file below ``tests`` the tests beside it. Faults, clusters and what needs a JVM are for ``make test``.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from tests.parts import NO_TESTS, PARTS, REPORTS

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("tests/faults", "tests/cluster", "tests/compat", "tests/package")
PAGES = [  # what reads a page of docs
    "tests/config/values/test_options_page.py",
    "tests/control_api/test_page.py",
    "tests/docs/test_deploy.py",
    "tests/docs/test_design_page.py",
    "tests/docs/test_kafka_page.py",
    "tests/docs/test_monitoring_page.py",
    "tests/docs/test_pages.py",
    "tests/docs/test_security_page.py",
    "tests/docs/test_troubleshooting.py",
    "tests/docs/test_words.py",
    "tests/operations/test_golden.py",
    "tests/pipelines/test_pipelines_page.py",
    "tests/wire/test_protocol_state.py",
]
MIRRORS = {  # where there is no folder of that name, or more than that
    "jobpipe/__init__.py": ["tests/test_names.py"],
    "jobpipe/admin.py": ["tests/cli"],
    "jobpipe/status_walk.py": ["tests/bus/serving/test_status_walk.py"],
    "jobpipe/cdc": ["tests/cdc", "tests/pipelines/loading"],
    "jobpipe/control": ["tests/control", "tests/control_api", "tests/control_schedules"],
    "jobpipe/deletion.py": ["tests/cli/topics/test_topics.py"],
    "jobpipe/errors.py": ["tests/operations", "tests/docs/test_troubleshooting.py", "tests/wire"],
    "jobpipe/flows": ["tests/bus/flows", "tests/cli/topics/test_flow.py"],
    "jobpipe/hostserver": ["tests/coordinator"],
    "jobpipe/signal_handlers.py": ["tests/cli/test_interrupt.py"],
    "jobpipe/jobs": ["tests/control", "tests/control_api", "tests/control_schedules", "tests/pipelines"],
    "jobpipe/ledger": [
        "tests/cli/operate/test_ledger.py",
        "tests/control/page/views/test_ledger_page.py",
        "tests/ledger",
    ],
    "jobpipe/own_application.py": ["tests/graph/test_own_application.py"],
    "jobpipe/plural.py": ["tests/cli", "tests/pipelines/runner/test_progress_reports.py"],
    "jobpipe/publishing": ["tests/bus/publishing/test_plain_publisher.py", "tests/arrow"],
    "jobpipe/py.typed": ["tests/test_names.py"],
    "jobpipe/subscribing": [
        "tests/bus/subscribing/test_client.py",
        "tests/bus/subscribing/test_client_plans.py",
        "tests/bus/subscribing/test_positions.py",
    ],
    "pyspark_jobpipe.py": ["tests/test_names.py"],
    "docs": PAGES,
    "CHANGELOG.md": ["tests/docs/test_pages.py"],
    "CONTRIBUTING.md": ["tests/docs/test_pages.py"],
    "README.md": PAGES,
    "SECURITY.md": ["tests/docs/test_pages.py", "tests/docs/test_security_page.py"],
    "Dockerfile": ["tests/test_compose.py", "tests/docs/test_deploy.py"],
    "docker-compose.yml": ["tests/test_compose.py"],
    "conf": ["tests/config"],
    "benchmarks": ["tests/test_benchmarks.py"],
    "examples": ["tests/examples", "tests/docs/test_pages.py"],
    "pyproject.toml": ["tests/test_lock.py", "tests/test_tiers.py"],
    "requirements": ["tests/test_lock.py"],
}


def find_tests(changed: Iterable[str]) -> list[str]:
    """Return the test files and folders to run for these files, all relative to the root, in name order."""
    found = {test for name in changed for test in _tests_for(PurePosixPath(name))}
    return sorted(
        test for test in found if not any(folder != test and test.startswith(f"{folder}/") for folder in found)
    )


def _tests_for(path: PurePosixPath) -> Iterator[str]:
    if path.parts[0] == "tests":
        if not str(path).startswith(LEFT_OUT):
            yield from _beside(path)
        return
    for place in (path, *path.parents):
        if str(place) in MIRRORS:
            yield from MIRRORS[str(place)]
            return
        mirror = "/".join(("tests", place.parts[-1])) if place.parts else ""
        if place.suffix == "" and len(place.parts) in (1, 2) and (ROOT / mirror).is_dir():
            yield mirror
            return


def _beside(path: PurePosixPath) -> Iterator[str]:
    if path.name.startswith("test_") and path.suffix == ".py":
        if (ROOT / path).exists():
            yield str(path)
    elif len(path.parts) == 2:
        yield from ("tests/test_changed.py", "tests/test_tiers.py")  # of all tests: too many
    else:
        folder = next(
            each for each in path.parents if each.parent.name == "tests" or any((ROOT / each).glob("test_*.py"))
        )
        if (ROOT / folder).is_dir():
            yield str(folder)  # a kit or a file that its neighbours use


def changed_files(base: str) -> list[str]:
    """Return the files that differ from ``base``, and those that git does not track yet."""
    differ = _git("diff", "--name-only", "--no-renames", base)
    return sorted({*differ, *_git("ls-files", "--others", "--exclude-standard")})


def _git(*arguments: str) -> list[str]:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


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
