"""Spark's Python worker processes: cheaper garbage collections, and no trace when the JVM hangs up on one."""

from __future__ import annotations

import gc
import sys
import traceback
from typing import Any

DAEMON = "pyspark.daemon"

_frozen = False


def gc_freeze() -> None:
    """Leave what a worker holds at its first task of ours out of garbage collections; outside of tasks do nothing.

    Spark's daemon collects all garbage after each task (``pyspark/daemon.py``). With pyarrow and its like imported that
    is 20 ms of CPU, more than all else that a small batch costs the worker; 0.5 ms without them. What later tasks make
    is collected as ever.
    """
    from pyspark.taskcontext import TaskContext  # `import jobpipe` loads no Spark

    global _frozen
    if not _frozen and TaskContext.get() is not None:
        _frozen = True
        gc.collect()
        gc.freeze()


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
    so is this one by processes that never load jobpipe, such as those of a Python function of the job's own: no code
    of ours runs there (docs/troubleshooting.md).
    """
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", None) == DAEMON:
        main.traceback = _Traces()  # type: ignore[union-attr]
