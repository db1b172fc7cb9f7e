"""The topics of jobs, polled: throughput, BLOCKED, lag, and topics that are served after their jobs."""
