"""Epochs that nobody can have reached by taking over, and what is to be done about them."""

from __future__ import annotations

from jobpipe.errors import ConfigError
from registry.epochs import MAX_EPOCH, MAX_STEP

__all__ = ["implausible"]


def implausible(topic: str, registered: int | None, known: int | None) -> ConfigError:
    """Return the error for an epoch that is not taken over.

    Args:
        registered: The registry's; None if that cannot be read.
        known: The log's; None if it was not looked at.
    """
    if known is not None and known >= MAX_EPOCH:
        what = f"the epoch of its log is {known}, above which there is none (at most {MAX_EPOCH})"
    elif registered is None:
        what = "the epoch that the registry holds is no number that an epoch may have"
    else:
        what = f"the registry holds epoch {registered}, its log {known}; more than {MAX_STEP} apart, it cannot be right"
    return ConfigError(
        f"topic {topic!r}: {what}. Nothing was taken over. Another program has written to the registry: see who may "
        f"(docs/registry-security.md). Then run `jobpipe registry repair {topic} --dry-run` on the host of the spool "
        "to see what it would change, and without --dry-run to change it",
        topic=topic,
        registered=registered,
        epoch=known,
    )
