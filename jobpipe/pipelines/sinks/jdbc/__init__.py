"""Sink ``jdbc-upsert``: rows into a table by key, exactly once."""
