"""Tells a writer whether a topic's directory is the one that its coordinator serves, without opening the catalog."""

from __future__ import annotations

from pathlib import Path

from jobpipe.store.files import spool_error

__all__ = ["holds_instance", "mark_directory"]

INSTANCE = "coordinator"


def mark_directory(directory: Path, instance: str) -> None:
    """Note in the topic's directory which coordinator serves it, for :func:`holds_instance`.

    Raises:
        SpoolError: the disk refuses.
    """
    fresh = directory / f"{INSTANCE}.new"
    try:
        fresh.write_text(instance)
        fresh.replace(directory / INSTANCE)
    except OSError as error:
        raise spool_error("cannot write", fresh, error) from error


def holds_instance(directory: Path, instance: str) -> bool:
    """Tell whether ``directory`` is the one that coordinator ``instance`` serves: on its host, or shared with it."""
    try:
        return (directory / INSTANCE).read_text() == instance
    except OSError:
        return False
