"""Capture of PostgreSQL by logical replication."""
