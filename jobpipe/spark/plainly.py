"""Errors as Spark's users should see them: Spark prints the whole traceback, with all causes, above the message."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from jobpipe.errors import JobpipeError

__all__ = ["plainly"]

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def plainly(work: Callable[P, R]) -> Callable[P, R]:
    """Return ``work`` with its errors of ours stripped of where they come from, which is logged at DEBUG."""

    @functools.wraps(work)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return work(*args, **kwargs)
        except JobpipeError as error:
            log.debug("%s", work.__qualname__, exc_info=True)
            raise error.with_traceback(None) from None

    return told
