"""The Spark side: the sink, the data source, the end of a job."""

from jobpipe.spark.session.python_workers import quiet_end

quiet_end()  # here, as of some processes Spark wants no more of us than an import
