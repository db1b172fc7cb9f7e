"""The other end of :class:`~benchmarks.side_by_side.asking.Child`: a program that does what lines tell it."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def obey(make: Callable[[], Any]) -> None:
    """Make an object, say so, and call its methods as lines of JSON name them; end with ``end``, or with the lines."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed belongs into the log

    def answer(what: str, work: Callable[[], Any]) -> None:
        try:
            reply = {"answer": work()}
        except Exception as error:  # noqa: BLE001 - told to the harness, which ends the run
            traceback.print_exc()
            reply = {"error": f"{what}: {type(error).__name__}: {str(error)[:2000]}"}
        print(json.dumps(reply), file=answers, flush=True)

    made: list[Any] = []
    answer("start", lambda: made.append(make()))
    for line in sys.stdin if made else ():
        args = json.loads(line)
        do = args.pop("do")
        answer(do, lambda do=do, args=args: getattr(made[0], do)(**args))  # type: ignore[misc]
        if do == "end":
            return
    os._exit(1)  # the harness has gone: whatever still runs here ends now, and with it the JVM
