"""Messages for how attempts end."""

from __future__ import annotations

REPLACED_DETAIL = "another run of this pipeline has taken its place"
KILLED_DETAIL = "killed during a micro-batch, which will be repeated"
MISCONFIGURED_TEXT = "it cannot begin: its file or configuration is wrong"


def unrecorded(code: int | None) -> str:
    """Return how a process without an end record ended; ``code``: None if it is not known, negative for a signal."""
    how = "ended" if code is None else f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"its process {how}, without an end record"
