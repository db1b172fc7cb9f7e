"""Which unit tests ``make check`` runs, and in which order files are run."""

from __future__ import annotations

import pytest

from tests.changed import MIRRORS, PAGES, ROOT, find_tests
from tests.conftest import LONG_FILES


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["jobpipe/net/links/async_link.py"], ["tests/net"]),
        (
            ["registry/jobpipe_registry/tree/registration_keeper.py", "jobpipe/store/log/seal.py"],
            ["tests/registry", "tests/store"],
        ),
        (["jobpipe/net/links/async_link.py", "tests/net/links/test_async_link.py"], ["tests/net"]),
        (["tests/net/links/test_async_link.py"], ["tests/net/links/test_async_link.py"]),
        (["tests/net/kit.py"], ["tests/net"]),
        (["docs/design.md", "README.md"], PAGES),
        (["jobpipe/spark/sink/foreach_batch_sink.py", "tests/spark/kit.py", "LICENSE"], ["tests/spark"]),
        (["tests/bus/serving/test_end.py"], ["tests/bus/serving/test_end.py"]),
        (["tests/operations/golden/control.json"], ["tests/operations"]),
        (["tests/parts.py"], ["tests/test_changed.py", "tests/test_tiers.py"]),
        (["tests/faults/rig.py", "tests/cluster/test_standalone.py"], []),
        (["tests/net/test_that_was_deleted.py"], []),
    ],
)
def test_what_is_run(changed: list[str], tests: list[str]) -> None:
    """A package's tests for a change in it, those of a page for a page, those beside a kit for a kit."""
    assert find_tests(changed) == tests


@pytest.mark.parametrize("folder", ["jobpipe", "registry", "docs", "examples", "conf", "requirements", "tests/spark"])
def test_every_file_has_tests(folder: str) -> None:
    """Nobody is told that nothing with tests has changed who has changed the product."""
    files = [file for file in (ROOT / folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert files
    assert [str(file) for file in files if not find_tests([str(file.relative_to(ROOT))])] == []


def test_mirrors_exist() -> None:
    """What the table names is there, on both sides."""
    for place, mirrors in MIRRORS.items():
        assert (ROOT / place).exists(), place
        assert all((ROOT / mirror).exists() for mirror in mirrors), mirrors


def test_long_files_exist() -> None:
    """A file that was renamed would be run last, alone."""
    assert [name for name in LONG_FILES if not (ROOT / "tests" / name).exists()] == []
