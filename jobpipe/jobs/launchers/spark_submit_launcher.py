"""Launcher ``spark-submit``: a driver on YARN or Kubernetes, by spark-submit in cluster mode.

spark-submit does not wait for the application. What it prints is in the job's log, and names the application.
"""

from __future__ import annotations

import importlib.util
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from jobpipe.errors import ConfigError, LauncherUnavailable
from jobpipe.jobs.launchers.cluster_driver import argument, driver_keys
from jobpipe.jobs.runner import spark_submit_entry
from jobpipe.pipelines.file.field_types import PlainText, Text, expected, unlike
from jobpipe.pipelines.file.secret_keys import is_secret
from jobpipe.pipelines.plugins.api import Attempt, Launcher, LaunchState, LaunchStatus, PluginOptions

SUBMIT_SECONDS = 300.0  # files are uploaded
STATUS_SECONDS = 30.0
MOST_BYTES = 256 * 1024  # of what a program prints that is kept: its end
_YARN_ID = re.compile(r"\bapplication_\d{1,20}_\d{1,10}\b")
_POD_ID = re.compile(r"\bsubmission ID ([a-z0-9-]{1,63}:[a-z0-9.-]{1,253})(?![\w.:-])")
_LAUNCHED = re.compile(r"(?P<kind>yarn|k8s|unseen)/(?P<id>[\w.:-]{1,400})")
_YARN_STATE = re.compile(r"^\s*(State|Final-State) : (\w+)", re.MULTILINE)
_POD_PHASE = re.compile(r"^\s*phase: (\w+)", re.MULTILINE)

YARN_STATES: Mapping[str, LaunchState] = {
    "NEW": LaunchState.RUNNING,
    "NEW_SAVING": LaunchState.RUNNING,
    "SUBMITTED": LaunchState.RUNNING,
    "ACCEPTED": LaunchState.RUNNING,
    "RUNNING": LaunchState.RUNNING,
    "FINISHED": LaunchState.ENDED,
    "FAILED": LaunchState.ENDED,
    "KILLED": LaunchState.ENDED,
}
POD_PHASES: Mapping[str, LaunchState] = {
    "Pending": LaunchState.RUNNING,
    "Running": LaunchState.RUNNING,
    "Succeeded": LaunchState.ENDED,
    "Failed": LaunchState.ENDED,
}


def _cluster_master(raw: Any, _folder: object) -> str:
    if not isinstance(raw, str) or not (raw == "yarn" or re.fullmatch(r"k8s://\S{1,400}", raw)):
        raise ValueError
    return raw


_Master = Annotated[str, *expected("yarn, or k8s://https://HOST:PORT", _cluster_master, {"type": "string"})]


class SparkSubmitLauncher(Launcher):
    """A driver on YARN or Kubernetes, by spark-submit in cluster mode."""

    type = "spark-submit"
    cluster: ClassVar[bool] = True
    poll_seconds: ClassVar[float] = 10.0

    class Options(PluginOptions):
        """How spark-submit is called."""

        master: _Master = Field(description="Spark's master: yarn, or k8s://https://HOST:PORT.")
        arguments: tuple[PlainText, ...] = Field(
            default=(), max_length=200, description="More arguments, before the program; no secrets."
        )
        python: Text | None = Field(
            default=None, description="Python with jobpipe, at the same path on every node or in the image."
        )
        program: Text | None = Field(
            default=None,
            description="Where nodes have jobpipe/jobs/runner/spark_submit_entry.py, such as local:///PATH in an "
            "image; default: spark-submit uploads the one of this host.",
        )
        spark_submit: Text | None = Field(
            default=None, description="Path of spark-submit; default: the one of PySpark in this environment."
        )
        yarn: Text = Field(default="yarn", description="Hadoop's program yarn, which reports the application's state.")

        @field_validator("arguments")
        @classmethod
        def _no_secrets(cls, given: tuple[str, ...]) -> tuple[str, ...]:
            for text in given:
                key, equals, _ = text.removeprefix("--conf=").partition("=")
                if equals and is_secret(key):
                    raise unlike(f"no secret: command lines are shown to all; give {key} in configuration")
            return given

    options: Options

    def submit(self, attempt: Attempt) -> str:
        """Run spark-submit; return the application's id as it printed it."""
        ran = _run(self._command(attempt), SUBMIT_SECONDS, self._environment(), attempt.folder)
        _keep(attempt.log, ran.text)
        found = (_YARN_ID if self._on_yarn else _POD_ID).search(ran.text)
        if found is not None:
            return f"yarn/{found[0]}" if self._on_yarn else f"k8s/{found[1]}"
        if ran.code is None:
            raise LauncherUnavailable(
                f"spark-submit was not done after {SUBMIT_SECONDS:g} s; {attempt.log} has what it printed",
                perhaps_started=True,
            )
        if ran.code:
            raise OSError(f"spark-submit ended with code {ran.code}; {attempt.log} has what it printed")
        return f"unseen/{attempt.pipeline}.{attempt.job}-{attempt.number}"

    def status(self, launched: str) -> LaunchStatus:
        kind, identity = self._parsed(launched)
        if kind == "unseen":
            return LaunchStatus(LaunchState.UNKNOWN, None, "spark-submit has not said which application it is")
        asked = self._query(kind, identity)
        try:
            ran = _run(asked, STATUS_SECONDS, self._environment())
        except OSError as error:
            return LaunchStatus(LaunchState.UNKNOWN, None, f"{asked[0]} cannot be run: {error}")
        return _yarn_status(ran.text) if kind == "yarn" else _pod_status(ran.text)

    def cancel(self, launched: str) -> None:
        kind, identity = self._parsed(launched)
        if kind == "unseen":
            raise ConfigError("spark-submit has not said which application it is, so it cannot be killed", key=launched)
        command = self._query(kind, identity, kill=True)
        ran = _run(command, STATUS_SECONDS, self._environment())
        if ran.code != 0:
            raise LauncherUnavailable(f"{command[0]} did not kill {identity}: {_last_line(ran.text)}")

    # -- commands ------------------------------------------------------------------------------------------------------

    @property
    def _on_yarn(self) -> bool:
        return self.options.master == "yarn"

    def _command(self, attempt: Attempt) -> list[str]:
        options = self.options
        keys = driver_keys(attempt.configuration)
        if self._on_yarn:
            environment = "spark.yarn.appMasterEnv"
            # One attempt of YARN's: another one is the supervisor's business.
            fixed = {"spark.yarn.submit.waitAppCompletion": "false", "spark.yarn.maxAppAttempts": "1"}
        else:
            environment = "spark.kubernetes.driverEnv"
            fixed = {"spark.kubernetes.submission.waitAppCompletion": "false"}
        fixed |= {f"{environment}.{name}": value for name, value in attempt.variables.items()}
        if options.python is not None:
            fixed |= {f"{environment}.PYSPARK_PYTHON": options.python, "spark.pyspark.python": options.python}
        return [
            *(self._spark_submit(), "--master", options.master, "--deploy-mode", "cluster"),
            *("--name", f"{attempt.pipeline}.{attempt.job}"),
            *_conf(keys),
            *options.arguments,
            *_conf(fixed),
            options.program or str(Path(spark_submit_entry.__file__).resolve()),
            argument(attempt),
        ]

    def _query(self, kind: str, identity: str, *, kill: bool = False) -> list[str]:
        if kind == "yarn":
            return [self.options.yarn, "application", "-kill" if kill else "-status", identity]
        return [self._spark_submit(), "--master", self.options.master, "--kill" if kill else "--status", identity]

    def _spark_submit(self) -> str:
        given = self.options.spark_submit
        return str(_spark_home() / "bin" / "spark-submit") if given is None else given

    def _environment(self) -> dict[str, str]:
        own = {} if self.options.spark_submit is not None else {"SPARK_HOME": str(_spark_home())}
        return {**os.environ, **own}

    def _parsed(self, launched: str) -> tuple[str, str]:
        found = _LAUNCHED.fullmatch(launched)
        if found is None:
            raise ConfigError(f"{launched[:200]!r} is not an id of launcher {self.type}", key="launched")
        return found["kind"], found["id"]


def _conf(keys: Mapping[str, str]) -> list[str]:
    return [part for key, value in keys.items() for part in ("--conf", f"{key}={value}")]


def _spark_home() -> Path:
    """Return the folder of the installed PySpark, without importing it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ConfigError("PySpark is not installed here; give launcher: {spark-submit: PATH}", key="spark-submit")
    return Path(found.origin).parent


# -- what programs say -------------------------------------------------------------------------------------------------


def _yarn_status(text: str) -> LaunchStatus:
    said = dict(_YARN_STATE.findall(text))
    state = YARN_STATES.get(said.get("State", ""))
    if state is None:
        return LaunchStatus(LaunchState.UNKNOWN, None, f"yarn says: {_last_line(text)}")
    done = state is LaunchState.ENDED and said.get("Final-State") == "SUCCEEDED"
    return LaunchStatus(state, 0 if done else None, f"YARN says {said['State']}")


def _pod_status(text: str) -> LaunchStatus:
    phase = _POD_PHASE.search(text)
    state = None if phase is None else POD_PHASES.get(phase[1])
    if phase is None or state is None:
        return LaunchStatus(LaunchState.UNKNOWN, None, f"Kubernetes says: {_last_line(text)}")
    return LaunchStatus(state, 0 if phase[1] == "Succeeded" else None, f"its pod is {phase[1]}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing"


# -- running one -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ran:
    """How a program ended. ``code`` is None if its time was over; ``text`` the end of what it printed."""

    code: int | None
    text: str


def _run(command: Sequence[str], seconds: float, environment: Mapping[str, str], folder: Path | None = None) -> _Ran:
    """Run a program, with all that it starts, for so many seconds at most.

    Raises:
        OSError: there is none.
    """
    until = time.monotonic() + seconds
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=folder,
        start_new_session=True,
    )
    text = bytearray()
    code: int | None = None
    with process:
        try:
            output = process.stdout.fileno() if process.stdout is not None else -1
            printed = select.poll()
            printed.register(output, select.POLLIN)
            while (left := until - time.monotonic()) > 0 and printed.poll(left * 1000):
                piece = os.read(output, 65536)
                if not piece:
                    with suppress(subprocess.TimeoutExpired):
                        code = process.wait(max(until - time.monotonic(), 1.0))
                    break
                text += piece
                del text[:-MOST_BYTES]
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return _Ran(code, text.decode(errors="replace"))


def _keep(log: Path, text: str) -> None:
    """Put what a program printed into a job's log, in place of what was there."""
    with suppress(OSError):
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(log, flags, 0o600), "w") as file:
            file.write(text)
