"""Keeps the ends of Spark's Python processes off the terminal: a trace is printed there that tells of nothing."""

from __future__ import annotations

import sys
import traceback
from typing import Any

__all__ = ["quiet_end"]

DAEMON = "pyspark.daemon"


class _Traces:
    """Stands for the module ``traceback`` in Spark's daemon."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    def print_exc(self) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()


def quiet_end() -> None:
    """Let Spark's daemon print no trace when the JVM has hung up on this process; elsewhere do nothing.

    Spark's JVM hangs up on a process that has been idle for a minute, and on all of them as it ends. The process takes
    that for an error, cannot tell the JVM of it, and prints that it cannot. All other errors are printed as ever, and
    so is this one by processes that never load jobpipe, such as those of a Python function of the job's own.
    """
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", None) == DAEMON:
        main.traceback = _Traces()  # type: ignore[union-attr]
