"""``jobpipe.register``: gives a session's settings to the sources that it makes."""

from __future__ import annotations

from pyspark.sql import SparkSession

from jobpipe.spark.session.classic_session import require_classic, session_settings
from jobpipe.spark.session.launch_settings import require_installed
from jobpipe.spark.session.python_interpreter import check_session
from jobpipe.spark.session.spark_versions import require_sources


def register(spark: SparkSession) -> None:
    """Let ``format("jobpipe")`` see the ``spark.jobpipe.*`` settings that ``spark`` has now.

    Needed only for settings made after Spark was started: by ``builder.config`` in a program that spark-submit runs, or
    by ``spark.conf.set``. Call it before ``load()``, once for each session, and again when a setting has changed.

    Raises:
        ConfigError: ``spark`` is a session of Spark Connect; the settings of its server are what counts. Or jobpipe
            came by ``--py-files``.
        UnsupportedSpark: this Spark has no data sources in Python.
    """
    require_sources("jobpipe.register(spark)")
    from jobpipe.spark.source.data_source import JobPipeDataSource

    require_installed()
    require_classic(spark, "jobpipe.register(spark)")
    check_session(spark.sparkContext)
    # A class made here is pickled by value, with its settings, into the processes where Spark makes its sources.
    made = type("JobPipeDataSource", (JobPipeDataSource,), {"settings": session_settings(spark)})
    spark.dataSource.register(made)
