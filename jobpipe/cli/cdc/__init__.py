"""Commands of change data capture: run captures here, without Spark; list and drop replication slots."""
