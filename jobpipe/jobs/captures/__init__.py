"""Captures of pipelines: opened without Spark, run as attempts, and described while they run."""
