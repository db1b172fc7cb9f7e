"""Positions of subscriptions, moved from the server: planned in rows, done once, and undone."""
