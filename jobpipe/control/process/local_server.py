"""The server of this home: found, started detached if none runs, ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jobpipe.config import Config
from jobpipe.config.reading.config_loader import settled_environment
from jobpipe.control.rest.rest_client import ServerAddress
from jobpipe.control.server_files import ServerFiles
from jobpipe.errors import ControlConflict, JobpipeError, LinkBroken, WaitTimeout

START_SECONDS = 60.0
STOP_SECONDS = 30.0
TAIL_BYTES = 16 * 1024
_OURS = "jobpipe: "  # before the last sentence of a program
_QUIET = re.compile(r"\d{4}-\d\d-\d\d \S+ (DEBUG|INFO) ")
_POLL_SECONDS = 0.05
_started: list[subprocess.Popen[bytes]] = []  # they live on; Popen warns when it is garbage-collected


def require_server(config: Config) -> ServerAddress:
    """Return where this home's server is.

    Raises:
        LinkBroken: none runs.
    """
    address = ServerAddress.local(config)
    if address is None:
        raise LinkBroken(
            f"no control server of {config.home} is running; start it with `jobpipe server`, or name "
            "another with --url",
            home=str(config.home),
        )
    return address


def ensure_server(config: Config, config_file: Path | None) -> ServerAddress:
    """Return where this home's server is; with the embedded registry, one is started if none runs.

    Raises:
        LinkBroken: none runs, and the registry is not embedded: an operator chooses its host.
        JobpipeError: it cannot be started; with the end of its log.
        WaitTimeout: it does not serve in time.
    """
    files = ServerFiles.of(config.home)
    if not config.embedded or files.running():
        return _wait_until_running(config, files, None) if files.running() else require_server(config)
    files.make()
    begin = files.log.stat().st_size if files.log.exists() else 0
    command = [*_program(), "--config", str(config_file or os.devnull), "server", "--detached"]
    return _wait_until_running(config, files, _spawn(command, files), begin)


def _program() -> Sequence[str]:
    return [sys.executable, "-P", "-m", "jobpipe.cli.main"]


def _spawn(command: Sequence[str], files: ServerFiles) -> subprocess.Popen[bytes]:
    with open(os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as log:
        process = subprocess.Popen(
            command,
            cwd=files.folder,
            env={**os.environ, **settled_environment(os.environ)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _started.append(process)
    return process


def _wait_until_running(
    config: Config, files: ServerFiles, process: subprocess.Popen[bytes] | None, begin: int = 0
) -> ServerAddress:
    """Wait for the server; ``begin``: where in the log this start begins."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if (address := ServerAddress.local(config)) is not None:
            return address
        # If two commands race, one server exits; the other one is waited for.
        if process is not None and process.poll() is not None and not files.running():
            raise JobpipeError(f"the control server did not start: {_failure_reason(files.log, begin)}")
        if process is None and not files.running():
            return require_server(config)
        time.sleep(_POLL_SECONDS)
    raise WaitTimeout(f"the control server is not ready after {START_SECONDS:g} s; its log: {files.log}")


def stop_server(config: Config) -> bool:
    """End this home's server; jobs run on. False if none runs. One that starts is ended once it serves.

    Raises:
        ControlConflict: it runs on another host, does not end, or does not come to serve.
    """
    files = ServerFiles.of(config.home)
    deadline = time.monotonic() + START_SECONDS
    while files.running():
        if (state := files.read_state()) is not None:
            break
        if time.monotonic() > deadline:
            raise ControlConflict(f"the control server of {config.home} is still starting; its log: {files.log}")
        time.sleep(_POLL_SECONDS)
    else:
        return False
    if not state.is_here:
        where = f"on {state.host} or in another container, as process {state.pid}"
        raise ControlConflict(f"the control server runs {where}; stop it there")
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while files.running():
        if time.monotonic() > deadline:
            raise ControlConflict(f"the control server, process {state.pid}, does not end; its log: {files.log}")
        time.sleep(_POLL_SECONDS)
    return True


def _failure_reason(path: Path, begin: int) -> str:
    """Return why a start failed, by its lines of the log: the last sentence, then the others from WARNING up."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            start = begin if begin <= size else 0  # another file has taken its place
            file.seek(max(start, size - TAIL_BYTES))
            return _sentence_first(file.read().decode(errors="replace"), path)
    except OSError:
        return f"it has no log at {path}"


def _sentence_first(text: str, path: Path) -> str:
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not _QUIET.match(line)]
    last = next((number for number in reversed(range(len(lines))) if lines[number].startswith(_OURS)), len(lines) - 1)
    if not lines:
        return f"it says no reason in its log, {path}"
    rest = lines[:last] + lines[last + 1 :]
    more = [f"what it logged before, from WARNING up ({path}):", *(f"  {line}" for line in rest)] if rest else []
    return "\n".join([lines[last].removeprefix(_OURS), *more])
