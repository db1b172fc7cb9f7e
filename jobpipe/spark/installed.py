"""Refuses a jobpipe that came by ``--py-files``: not all processes of a source are given those files."""

from __future__ import annotations

import zipimport

import jobpipe
from jobpipe.errors import ConfigError

__all__ = ["demand_installed"]


def demand_installed() -> None:
    """Check that jobpipe is installed, not loaded from a file that was sent along.

    Raises:
        ConfigError: names the file.
    """
    spec = jobpipe.__spec__
    if spec is not None and isinstance(spec.loader, zipimport.zipimporter):
        raise ConfigError(
            f"jobpipe was loaded from {spec.loader.archive}, as by --py-files. Spark does not give such files to all "
            "processes that find and follow a source. Install jobpipe into the Python of every node, or send the whole "
            "Python by --archives; docs/deploy.md says how",
            file=spec.loader.archive,
        )
