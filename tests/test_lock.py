"""The locked dependencies (requirements/) are those of pyproject.toml, all with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = {
    "plain": (),
    "runtime": ("spark",),
    "demo": ("spark", "demo"),
    "bench": ("spark", "bench"),
    "dev": ("spark", "demo", "dev"),
}
SPARKS = ("3.5", "4.0", "4.1", "4.2")  # beside the newest


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


@pytest.mark.parametrize("version", SPARKS)
def test_each_spark_is_locked(version: str) -> None:
    """It is added to an environment without Spark: what both hold has one version."""
    found, plain = locked(f"spark-{version}"), locked("plain")
    assert found["pyspark"].startswith(f"{version}.")
    assert {name: found[name] for name in found.keys() & plain.keys()} == {
        name: plain[name] for name in found.keys() & plain.keys()
    }


def test_nothing_comes_from_elsewhere() -> None:
    """Neither another index nor an address: only names, versions, hashes."""
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text()
        assert not re.search(r"://|^-|index|find-links", text, re.MULTILINE), path
        assert locked(path.stem)
