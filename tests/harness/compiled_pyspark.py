"""``python -m tests.harness.compiled_pyspark``: adds compiled modules to the PySpark of this environment.

Spark's Python processes import PySpark from ``pyspark.zip``. It has sources only, and Python does not keep what it
compiles from a zip file (:mod:`zipimport`). So each process compiles PySpark anew: measured, ``import pyspark.worker``
takes 0.9 s of CPU, and 0.3 s with compiled modules beside the sources. A query starts five such processes or more. The
sources stay as they are. A Python of another version ignores the compiled modules.
"""

from __future__ import annotations

import marshal
import os
import warnings
import zipfile
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

import pyspark

# PEP 552: the magic number, flags (based on a hash, not checked), the hash of the source; then the code.
UNCHECKED = (1).to_bytes(4, "little")
LEFT_OUT = ("/tests/", "/testing/")


def compiled(name: str, source: bytes) -> bytes:
    """Return what a ``.pyc`` of this source has in it."""
    with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
        code = compile(source, name, "exec", dont_inherit=True)
    return MAGIC_NUMBER + UNCHECKED + source_hash(source) + marshal.dumps(code)


def complete(archive: Path) -> None:
    """Add the compiled modules, unless this Python's are there; the file is replaced as a whole."""
    with zipfile.ZipFile(archive) as old:
        files = {entry: old.read(entry) for entry in old.infolist()}
    if any(entry.filename.endswith(".pyc") and file.startswith(MAGIC_NUMBER) for entry, file in files.items()):
        return
    made = archive.with_suffix(f".{os.getpid()}")
    try:
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
            for entry, file in files.items():
                name = entry.filename
                if not name.endswith(".pyc"):
                    new.writestr(entry, file)
                if name.endswith(".py") and not any(part in name for part in LEFT_OUT):
                    new.writestr(zipfile.ZipInfo(f"{name}c", entry.date_time), compiled(name, file), zipfile.ZIP_STORED)
        made.replace(archive)
    finally:
        made.unlink(missing_ok=True)


if __name__ == "__main__":
    for found in sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")):
        complete(found)
