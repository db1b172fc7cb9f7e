"""Flow jobs: a function called with each record batch some milliseconds after it was published, exactly once.

No Spark in here: :mod:`jobpipe.spark.flow.spark_flow` runs the tasks on a cluster. docs/flow.md says what they promise.
"""
