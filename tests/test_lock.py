"""The locked dependencies (requirements/) are those of pyproject.toml, all with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = {"runtime": (), "demo": ("demo",), "bench": ("bench",), "dev": ("demo", "dev")}


def locked(name: str) -> dict[str, str]:
    """Return the versions of a lock file; every one must have a hash."""
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements" / f"{name}.txt").read_text(), flags=re.IGNORECASE):
        match = re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", block)
        if match:
            assert "--hash=sha256:" in block, match[0]
            found[canonicalize_name(match[1])] = match[2]
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_is_that_of_pyproject(name: str) -> None:
    """After a change: make lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in LOCKS[name] for each in project["optional-dependencies"][extra]),
    ]
    versions = locked(name)
    for requirement in map(Requirement, wanted):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not locked: make lock"
        assert requirement.specifier.contains(version), f"{requirement} is locked at {version}: make lock"


def test_nothing_comes_from_elsewhere() -> None:
    """Neither another index nor an address: only names, versions, hashes."""
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text()
        assert not re.search(r"://|^-|index|find-links", text, re.MULTILINE), path
        assert locked(path.stem)
