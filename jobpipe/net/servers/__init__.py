"""Servers of links: listeners, limits, quotas, access lists, the audit log."""
