"""Lets Spark find ``format("jobpipe")`` by itself: it imports every top-level module named ``pyspark_*``."""

from jobpipe.spark.source.data_source import JobPipeDataSource as DefaultSource

__all__ = ["DefaultSource"]
