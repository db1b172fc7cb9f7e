"""The Spark session of a job: settings, interpreter, workers, versions."""
