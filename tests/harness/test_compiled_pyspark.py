"""The compiled modules that the tests' PySpark has beside its sources."""

from __future__ import annotations

import zipfile
import zipimport
from pathlib import Path

from tests.harness.compiled_pyspark import complete

SOURCES = {"pack/__init__.py": "", "pack/worker.py": "def main():\n    return 7\n", "pack/tests/test_it.py": "no ("}


def test_modules_are_added_once_and_imported(tmp_path: Path) -> None:
    """Sources stay; tests are left out; a second call changes nothing; Python takes the compiled module."""
    archive = tmp_path / "pack.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for name, text in SOURCES.items():
            made.writestr(name, text)
    complete(archive)
    once = archive.read_bytes()
    complete(archive)
    assert archive.read_bytes() == once
    with zipfile.ZipFile(archive) as found:
        assert {name: found.read(name).decode() for name in SOURCES} == SOURCES
        assert set(found.namelist()) - set(SOURCES) == {"pack/__init__.pyc", "pack/worker.pyc"}
        compiled = found.read("pack/worker.pyc")
    with zipfile.ZipFile(archive, "w") as changed:  # without its source there is only this way
        changed.writestr("pack/__init__.py", "")
        changed.writestr("pack/worker.pyc", compiled)
    code = zipimport.zipimporter(f"{archive}/pack").get_code("worker")
    space: dict[str, object] = {}
    exec(code, space)  # noqa: S102 - ours
    assert space["main"]() == 7  # type: ignore[operator]
