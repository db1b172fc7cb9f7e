"""Metrics: one table of them, the OpenMetrics text, alert rules and a dashboard made from it, and a server for it."""
