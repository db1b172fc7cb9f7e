"""Keeps the end of a stream's own Python process off the terminal: Spark prints a trace there that tells of nothing."""

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

    A query that ends closes its source's link without a word, and the process finds that out when it flushes what is
    left. All other errors are printed as ever.
    """
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", None) == DAEMON:
        main.traceback = _Traces()  # type: ignore[union-attr]
