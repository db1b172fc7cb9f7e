"""The subscribing side, without Spark."""
