"""The control server: keeps pipelines running, answers REST, fires schedules. Knows no Spark.

Pipelines run without it (``jobpipe pipeline run``), and go on without it when it is killed.
"""
