"""Launcher ``spark-rest``: a driver that a standalone cluster of Spark starts, by its master's REST interface.

A submission whose answer is lost may have started a driver. The attempt is then ordered again, under the next number:
a driver of the number before cannot take the lease, or loses it, and ends. So two drivers may start, and one works.
"""

from __future__ import annotations

import re
import time
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field

from jobpipe.errors import ConfigError, JobpipeError
from jobpipe.jobs.launchers.cluster_driver import RUNNER, argument, driver_keys
from jobpipe.jobs.launchers.spark_rest_client import SUBMISSION_ID, DriverRequest, DriverStatus, Submissions
from jobpipe.pipelines.file.field_types import PlainMap, SecretReference, Text, expected
from jobpipe.pipelines.plugins.api import Attempt, Launcher, LaunchState, LaunchStatus, PluginOptions

CANCEL_SECONDS = 10.0
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_PYTHON = "org.apache.spark.deploy.PythonRunner"
_POLL_SECONDS = 0.2
_LAUNCHED = re.compile(rf"(?P<url>https?://[^\s/]{{1,300}})/v1/submissions/status/(?P<id>{SUBMISSION_ID.pattern})")
_MASTER = re.compile(r"spark://[^\s/,]{1,300}(,[^\s/,]{1,300}){0,15}")

STATES: dict[str, LaunchStatus] = {
    "SUBMITTED": LaunchStatus(LaunchState.RUNNING, None, "waits for a worker that has the cores and memory"),
    "RUNNING": LaunchStatus(LaunchState.RUNNING),
    "RELAUNCHING": LaunchStatus(LaunchState.RUNNING),
    "FINISHED": LaunchStatus(LaunchState.ENDED, 0),
    "FAILED": LaunchStatus(LaunchState.ENDED),
    "KILLED": LaunchStatus(LaunchState.ENDED),
    # Of a worker's own accord, with its exception, the driver has ended. Without one the master has lost the worker,
    # and the driver may live on.
    "ERROR": LaunchStatus(LaunchState.UNKNOWN, None, "the master has lost the worker that had it"),
    "UNKNOWN": LaunchStatus(LaunchState.UNKNOWN, None, "the master has not heard of it again yet"),
    # It has ended and the master was restarted, or the master has lost its state.
    "": LaunchStatus(LaunchState.UNKNOWN, None, "the master does not know it, or not any more"),
}
"""What ``driverState`` means. The master's own list of applications is not asked: it calls a failed one FINISHED."""


def _url(raw: Any, _folder: object) -> str:
    if not isinstance(raw, str):
        raise TypeError
    parts = urlsplit(raw)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError
    if re.search(r"[\s\x00-\x1f]", raw):
        raise ValueError
    return f"{parts.scheme}://{parts.netloc}"


def _master(raw: Any, _folder: object) -> str:
    if not isinstance(raw, str) or _MASTER.fullmatch(raw) is None:
        raise ValueError
    return raw


_RestUrl = Annotated[str, *expected("http://HOST:6066, and nothing after it", _url, {"type": "string"})]
_MasterUrl = Annotated[str, *expected("spark://HOST:7077", _master, {"type": "string"})]


class SparkRestLauncher(Launcher):
    """A driver that a standalone cluster of Spark starts and watches, by its REST interface."""

    type = "spark-rest"
    cluster: ClassVar[bool] = True
    poll_seconds: ClassVar[float] = 1.0

    class Options(PluginOptions):
        """Where the cluster is."""

        url: _RestUrl = Field(description="Address of the master's REST interface: http://HOST:6066.")
        master: _MasterUrl = Field(description="Address of the cluster: spark://HOST:7077.")
        token: SecretReference | None = Field(default=None, description="For a master with JWSFilter: a bearer token.")
        python: Text | None = Field(
            default=None,
            description="Python with jobpipe, at the same path on every worker; default: the workers' PYSPARK_PYTHON.",
        )
        environment: PlainMap = Field(
            default_factory=dict,
            description="Environment of the driver, such as JOBPIPE_CONFIG. Spark shows it: no secrets.",
        )

    options: Options

    def submit(self, attempt: Attempt) -> str:
        """Ask the master for a driver; return the address at which its status is asked for."""
        options = self.options
        keys, name = driver_keys(attempt.configuration), f"{attempt.pipeline}.{attempt.job}"
        submission = DriverRequest(
            main_class=_SUBMIT,
            arguments=(
                *("--master", options.master, "--name", name),
                *(part for key, value in keys.items() for part in ("--conf", f"{key}={value}")),
                *("--class", _PYTHON, "spark-internal", "-m", "", RUNNER, argument(attempt)),
            ),
            # The JVM that the worker starts is the driver's own. Restarting it is the supervisor's business.
            properties={
                **{key: value for key, value in keys.items() if key.startswith("spark.driver.")},
                "spark.app.name": name,
                "spark.driver.supervise": "false",
                "spark.master": options.master,
            },
            environment={
                **attempt.variables,
                **options.environment,
                **({} if options.python is None else dict.fromkeys(_PYTHONS, options.python)),
            },
        )
        identity = Submissions(options.url, options.token).submit(submission)
        return f"{options.url}/v1/submissions/status/{identity}"

    def status(self, launched: str) -> LaunchStatus:
        """Return what the master says; UNKNOWN if it does not answer."""
        master, identity = self._master(launched)
        try:
            return status_of(master.status(identity))
        except JobpipeError as error:
            return LaunchStatus(LaunchState.UNKNOWN, None, str(error))

    def cancel(self, launched: str) -> None:
        """Let the master kill the driver; its Python ends with the JVM."""
        master, identity = self._master(launched)
        master.kill(identity)
        until = time.monotonic() + CANCEL_SECONDS
        while time.monotonic() < until and self.status(launched).state is LaunchState.RUNNING:
            time.sleep(_POLL_SECONDS)

    def _master(self, launched: str) -> tuple[Submissions, str]:
        """Return the master that has an attempt, and the attempt's id there. Another master gets no token of ours."""
        found = _LAUNCHED.fullmatch(launched)
        if found is None:
            raise ConfigError(f"{launched[:200]!r} is not an id of launcher {self.type}", key="launched")
        url = found["url"]
        return Submissions(url, self.options.token if url == self.options.url else None), found["id"]


_PYTHONS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")  # Spark finds data sources by the first, for executors too


def status_of(driver: DriverStatus) -> LaunchStatus:
    """Return what a master's words mean."""
    if driver.state == "" and driver.message:  # while it recovers, or stands by
        return LaunchStatus(LaunchState.UNKNOWN, None, f"the master says: {driver.message}")
    if driver.state == "ERROR" and driver.message:
        return LaunchStatus(LaunchState.ENDED, None, f"the worker could not run it: {driver.message}")
    found = STATES.get(driver.state)
    if found is None:
        return LaunchStatus(LaunchState.UNKNOWN, None, f"the master says {driver.state[:40]!r}")
    where = f"its log is on worker {driver.worker}" if driver.worker else ""
    return LaunchStatus(found.state, found.exit_code, found.detail or where)
