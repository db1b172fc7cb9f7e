"""A program of the user's, run as the job, in this process."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path

from jobpipe.jobs.workloads.stop_request import StopRequest
from jobpipe.jobs.workloads.workload import WorkloadOutcome, failure

_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


class ApplicationWorkload:
    """Runs a program as ``python PROGRAM ARGUMENTS`` would; a stop is SIGTERM to it, as ``jobpipe.run`` expects."""

    def __init__(self, program: Path, arguments: list[str]) -> None:
        self._program = program
        self._arguments = arguments

    def run(self, stop: StopRequest) -> WorkloadOutcome:
        """Run it to its end. Its exit code is 0, else it has failed; 130 and 143 after a stop are the stop."""
        ended = threading.Event()

        def send() -> None:
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

        def end() -> None:
            send()
            again = threading.Timer(stop.boundary_seconds, send)  # which jobpipe.run takes for: at once
            again.daemon = True
            again.start()

        before = signal.signal(signal.SIGTERM, _interrupt)  # of a program that does not look after it
        sys.argv = [str(self._program), *self._arguments]
        sys.path.insert(0, str(self._program.parent))
        try:
            stop.listen(end)
            runpy.run_path(str(self._program), run_name="__main__")
            code = 0
        except SystemExit as error:
            code = _code(error)
        except KeyboardInterrupt:
            code = _STOPPED[0]
        except Exception as error:  # noqa: BLE001 - whatever the program raises
            traceback.print_exc()
            return failure(error)
        finally:
            ended.set()
            signal.signal(signal.SIGTERM, before)
        if stop.asked and code in (0, *_STOPPED):
            return WorkloadOutcome(stopped=True)
        return (
            WorkloadOutcome()
            if code == 0
            else WorkloadOutcome("SystemExit", f"{self._program.name} ended with exit code {code}")
        )


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)  # noqa: T201 - as Python does
    return 1
