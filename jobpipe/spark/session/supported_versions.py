"""Which versions of Spark jobpipe works with. Loads no Spark."""

from __future__ import annotations

import logging
import re

from jobpipe.errors import UnsupportedSpark

log = logging.getLogger(__name__)

OLDEST, NEWEST = (3, 5), (4, 3)
INSTALL = "pip install 'pyspark>=4.0,<4.4' 'pandas<3'"
WORKS = "PySpark 3.5 and 4.0 to 4.3 publish, and 4.0 to 4.3 read"


def parse_version(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version, (0, 0) if it has none."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def is_supported(text: str) -> bool:
    """Tell whether a version of PySpark was tried."""
    return OLDEST <= parse_version(text) <= NEWEST


def require_known(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version of PySpark; warn if it is newer than those that were tried.

    Raises:
        UnsupportedSpark: it is older.
    """
    found = parse_version(text)
    if found < OLDEST:
        raise UnsupportedSpark(f"jobpipe does not work with PySpark {text}: {WORKS}", version=text)
    if found > NEWEST:
        log.warning("jobpipe was not tried with PySpark %s: %s", text, WORKS)
    return found


def of_pyarrow(error: ImportError) -> ImportError | None:
    """Return a sentence in place of pyarrow's error that NumPy is too old; None of other errors.

    pip sees no conflict: pyarrow demands no NumPy, and ``pyspark[sql]`` 3.5 demands one below 2.
    """
    if not str(error).startswith("pyarrow requires NumPy"):
        return None
    return ImportError(
        f"{error}: pip install 'pyarrow<26', or 'numpy>=2' if nothing here needs NumPy 1", name="pyarrow"
    )


def none_installed(what: str) -> UnsupportedSpark:
    """Return the error of a use that needs PySpark where there is none."""
    return UnsupportedSpark(
        f"{what} needs PySpark, and this Python has none: {INSTALL}, or install jobpipe where PySpark is. "
        "jobpipe.publisher() and jobpipe.subscribe() need none"
    )
