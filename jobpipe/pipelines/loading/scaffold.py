"""``jobpipe pipeline init``: the example, in a folder of the user's."""

from __future__ import annotations

import shutil
from pathlib import Path

import jobpipe
from jobpipe.errors import ConfigError

FILES = ("pipeline.yaml", "report.py", "data/orders-1.csv", "data/orders-2.csv")


def copy_example(folder: Path) -> list[Path]:
    """Write the files of the example into a folder, which is made; return their paths.

    Raises:
        ConfigError: one of them is there already, and nothing is written; or they cannot be written.
    """
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise ConfigError(f"{folder} has {', '.join(there)} already; give another folder", folder=str(folder))
    source = _example()
    written = []
    try:
        for name in FILES:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target)
            written.append(target)
    except OSError as error:
        raise ConfigError(
            f"the example cannot be written to {folder}: {error}; give another folder", folder=str(folder)
        ) from error
    return written


def _example() -> Path:
    """Return the example's folder: of the clone, else of the installed package."""
    package = Path(jobpipe.__file__).resolve().parent
    candidates = (package.parent / "examples" / "pipeline", package / "_examples" / "pipeline")
    for folder in candidates:
        if (folder / FILES[0]).is_file():
            return folder
    raise ConfigError(f"the example is in none of {', '.join(map(str, candidates))}: install jobpipe again")
