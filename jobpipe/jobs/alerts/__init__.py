"""Alerts: the section of the file, the queue, and the webhooks."""
