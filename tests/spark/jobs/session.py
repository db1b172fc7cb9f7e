"""The session of a driver program of the tests; settings of jobpipe come by environment."""

from pyspark.sql import SparkSession

from jobpipe.spark.session import recommended_conf


def session(master: str, **conf: str) -> SparkSession:
    """Return a session with the tests' settings; underscores in ``conf`` stand for dots."""
    builder = SparkSession.builder.master(master).appName("job")
    settings = {
        **recommended_conf(checkpoints_local=True),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        **{key.replace("_", "."): value for key, value in conf.items()},
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
