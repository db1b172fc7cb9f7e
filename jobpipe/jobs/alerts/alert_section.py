"""Reads the alerts of a pipeline's file from its tree alone, so that alerts work where the rest is invalid."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from jobpipe.pipelines.file.field_types import FOLDER
from jobpipe.pipelines.file.spec import AlertSpec

log = logging.getLogger(__name__)


def alerts_of(tree: Mapping[str, Any], folder: Path) -> tuple[AlertSpec, ...]:
    """Return the alerts; those that can no longer be read are logged.

    Args:
        tree: a file that was found right, as a plain value.
        folder: where relative paths start.
    """
    found = []
    section = tree.get("pipeline")
    given = section.get("alerts") if isinstance(section, dict) else None
    for number, each in enumerate(given if isinstance(given, list) else (), 1):
        try:
            found.append(AlertSpec.model_validate(each, context={FOLDER: folder}))
        except ValidationError:  # its text may have what was given
            log.warning("alert %d of the pipeline in %s cannot be read here", number, folder)
    return tuple(found)
