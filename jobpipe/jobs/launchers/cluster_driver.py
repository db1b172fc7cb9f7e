"""What launchers for clusters have in common: how an attempt reaches a driver on a host that shares nothing."""

from __future__ import annotations

from collections.abc import Mapping

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.field_types import SPARK_JOBPIPE
from jobpipe.pipelines.file.secret_keys import is_secret
from jobpipe.pipelines.loading.snapshot import Snapshot
from jobpipe.pipelines.plugins.api import Attempt

RUNNER = "jobpipe.jobs.runner"
MOST_BYTES = 120_000  # Linux takes 131,072 bytes in one argument, and Spark's workers quote some characters
_OURS = frozenset({"spark.app.name", "spark.driver.supervise", "spark.master", "spark.submit.deployMode"})


def driver_keys(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the keys that the driver's JVM starts with.

    Left out are secrets, since command lines show them, and jobpipe's own keys: the runner gives both to the session.
    """
    return {
        key: value
        for key, value in configuration.items()
        if not (key in _OURS or key.startswith(SPARK_JOBPIPE) or is_secret(key) or value.startswith("enc:"))
    }


def argument(attempt: Attempt) -> str:
    """Return an attempt's snapshot as an argument of the runner.

    Raises:
        ConfigError: it is too large for one.
    """
    text = Snapshot.read(attempt.snapshot).argument()
    if len(text) > MOST_BYTES:
        raise ConfigError(
            f"pipeline {attempt.pipeline} is too large for a launcher of a cluster: compressed it has {len(text)} "
            f"bytes, and an argument of a program holds {MOST_BYTES}; make several pipelines of it",
            key="pipeline",
        )
    return text
