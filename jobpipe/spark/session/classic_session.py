"""The session that a publisher needs: a classic one, whose driver is this process."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from jobpipe.errors import ConfigError
from jobpipe.spark.session.spark_versions import session_conf

PREFIX = "spark.jobpipe."


def this_session(what: str) -> SparkSession | None:
    """Return the active session, or the one there is: a thread that Spark did not start has none active.

    Raises:
        ConfigError: this process is a client of Spark Connect.
    """
    if is_remote():
        raise _refusal(what)
    spark = SparkSession.getActiveSession() or getattr(SparkSession, "_instantiatedSession", None)
    if spark is not None:
        require_classic(spark, what)
    return spark


def require_classic(spark: SparkSession, what: str) -> None:
    """Raise ConfigError for a session of Spark Connect, which has no driver here; ``what`` was to use it."""
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        raise _refusal(what)


def session_settings(spark: SparkSession) -> dict[str, str]:
    """Return the session's ``spark.jobpipe.*`` settings, those given to a running session too."""
    return {key: value for key, value in session_conf(spark).items() if key.startswith(PREFIX)}


def _refusal(what: str) -> ConfigError:
    return ConfigError(
        f"{what} needs a classic Spark session, and this process is a client of Spark Connect: the driver, on whose "
        "host it runs, is another process. Over Spark Connect, read and publish by format('jobpipe'), as in "
        "df.writeStream.format('jobpipe').option('topic', 'orders'), with jobpipe and its spark.jobpipe.* settings on "
        "the server. Or run a program of its own, by spark-submit or python, without .remote(...), --remote and "
        "SPARK_REMOTE"
    )
