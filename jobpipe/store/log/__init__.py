"""The log of a topic: sealing, retention, commits of flow jobs, status."""
