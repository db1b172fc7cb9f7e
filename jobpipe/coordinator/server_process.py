"""Starts coordinator and data processes, and what both share as programs.

Each gets its orders as one JSON line on its standard input, never as arguments, and answers with one JSON line on
its standard output: ``{"ready": {...}}`` or ``{"fault": [code, message, fields]}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import IO, Any, NoReturn

from jobpipe.config.reading.file_permissions import folder_problem
from jobpipe.coordinator.log_file_rotation import BoundedHandler, bound
from jobpipe.errors import ConfigError, JobpipeError, WaitTimeout, from_fault, to_fault

log = logging.getLogger(__name__)

START_TRIES = 3  # of a program that is killed before it answers
END_SECONDS = 2.0  # for one that closed its standard output to end


def start_program(
    module: str, order: dict[str, Any], *, timeout: float, keep_stdin: bool, log_file: Path, keep_stdout: bool = False
) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start ``python -m module``, give it ``order`` and return it with its ready answer.

    It gets a session of its own, so that a Ctrl-C in the terminal does not reach it.

    Args:
        keep_stdin: leave its standard input open, so that it sees our end.
        log_file: where its standard error goes; it is kept small.
        keep_stdout: leave its standard output open: it has more to say.

    Raises:
        ConfigError: the log file, or a folder it lies in, is not this user's own.
        JobpipeError: the program's own error.
        WaitTimeout: no answer within ``timeout`` seconds, or none at all; the program was ended.
    """
    for attempt in range(1, START_TRIES + 1):
        try:
            return _start_once(
                module, order, timeout=timeout, keep_stdin=keep_stdin, log_file=log_file, keep_stdout=keep_stdout
            )
        except WaitTimeout as error:
            if not error.fields["killed"] or attempt == START_TRIES:
                raise
            log.warning("%s; starting it again", error)
    raise AssertionError("unreachable")


def _start_once(
    module: str, order: dict[str, Any], *, timeout: float, keep_stdin: bool, log_file: Path, keep_stdout: bool = False
) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    log_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for folder in (log_file.parent.parent, log_file.parent):  # the home, and its logs: others could exchange the file
        if (why := folder_problem(folder)) is not None:
            raise ConfigError(why, file=str(folder))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(log_file, flags, 0o600)
    except OSError as error:
        raise ConfigError(f"{log_file} cannot be written: {error.strerror}", file=str(log_file)) from error
    try:
        bound(descriptor, log_file)  # nothing else bounds the log of a program that always crashes
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],  # imports nothing from the working folder, which may be anybody's
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=descriptor,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    finally:
        os.close(descriptor)
    late = threading.Event()

    def kill() -> None:
        late.set()
        process.kill()

    killer = threading.Timer(timeout, kill)
    killer.start()
    try:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
        process.stdin.write(json.dumps({**order, "log_file": str(log_file)}).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = b""
    finally:
        killer.cancel()
    if not line:
        try:
            code = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            late.set()
            process.kill()
            code = process.wait()
        _close_pipes(process)
        why = f"gave no answer within {timeout:g} s" if late.is_set() else f"ended at its start, with exit code {code}"
        raise WaitTimeout(
            f"{module} {why}; its log is {log_file}",
            program=module,
            log=str(log_file),
            killed=code < 0 and not late.is_set(),  # by another process: the next one may live
        )
    answer = json.loads(line)
    if "fault" in answer:
        process.wait(timeout)
        _close_pipes(process)
        raise from_fault(*answer["fault"])
    if not keep_stdout:
        _close(process.stdout)
    if not keep_stdin:
        _close(process.stdin)
    return process, answer["ready"]


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    _close(process.stdin)
    _close(process.stdout)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


def run_program(run: Callable[[dict[str, Any]], Coroutine[Any, Any, None]]) -> None:
    """Run a program as its starter ordered; the starter gets a failure, or the log if it no longer listens."""
    order = _read_order()
    set_up_logging(order["log_file"])
    _allow_files()
    _collect_rarely()
    try:
        asyncio.run(run(order))
    except Exception as error:  # noqa: BLE001 - told to the starter
        _answer_fault(error)


def _read_order() -> dict[str, Any]:
    order = json.loads(sys.stdin.buffer.readline())
    if not isinstance(order, dict):
        raise TypeError("an order is a JSON object")
    return order


def answer_ready(**ready: Any) -> None:
    """Tell the starter that this program is ready."""
    sys.stdout.write(json.dumps({"ready": ready}) + "\n")
    sys.stdout.flush()


def _answer_fault(error: BaseException) -> NoReturn:
    """Tell the starter what went wrong, and end."""
    if not isinstance(error, JobpipeError):
        log.error("start failed", exc_info=error)
    sys.stdout.write(json.dumps({"fault": to_fault(error)}, default=str) + "\n")
    sys.stdout.flush()
    sys.exit(1)


def set_up_logging(log_file: str | None = None) -> None:
    """Log to standard error, one line an event; kazoo at INFO at most, since at DEBUG it logs passwords.

    Args:
        log_file: the file that standard error is, to be kept small.
    """
    handler = logging.StreamHandler() if log_file is None else BoundedHandler(Path(log_file))
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s",
        handlers=[handler],
    )
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _allow_files() -> None:
    """Raise this process's limit of open files to what it may have: connections and segments beyond 1024 need it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS names no limit it can give
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _collect_rarely() -> None:
    """Look for garbage in cycles at a fourteenth of Python's rate, and never among what is imported.

    With 1,000 links that took a fifth of the processor, and stopped the loop for as long as a hop takes.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def handle_signals(finished: asyncio.Event) -> None:
    """Let SIGTERM and SIGINT end the program cleanly."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, finished.set)
