"""The publishing side, without Spark."""
