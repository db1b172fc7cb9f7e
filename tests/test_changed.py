"""Which unit tests ``make check`` runs, and in which order files are run."""

from __future__ import annotations

import pytest

from tests.changed import MIRRORS, ROOT, find_tests
from tests.conftest import LONG_FILES


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["jobpipe/net/link.py"], ["tests/net"]),
        (["registry/jobpipe_registry/keeper.py", "jobpipe/store/seal.py"], ["tests/registry", "tests/store"]),
        (["jobpipe/net/link.py", "tests/net/test_link.py"], ["tests/net"]),
        (["tests/net/test_link.py"], ["tests/net/test_link.py"]),
        (["tests/net/kit.py"], ["tests/net"]),
        (["docs/design.md", "README.md"], ["tests/test_pages.py"]),
        (["jobpipe/spark/sink.py", "tests/bus/kit.py", "LICENSE"], []),
        (["tests/bus/test_end.py"], ["tests/bus/test_end.py"]),
        (["tests/net/test_that_was_deleted.py"], []),
    ],
)
def test_what_is_run(changed: list[str], tests: list[str]) -> None:
    """A package's tests for a change in it; those of the whole bus only where they themselves changed."""
    assert find_tests(changed) == tests


def test_mirrors_exist() -> None:
    """What the table names is there, on both sides."""
    for place, mirrors in MIRRORS.items():
        assert (ROOT / place).exists(), place
        assert all((ROOT / mirror).exists() for mirror in mirrors), mirrors


def test_long_files_exist() -> None:
    """A file that was renamed would be run last, alone."""
    assert [name for name in LONG_FILES if not (ROOT / "tests" / name).exists()] == []
