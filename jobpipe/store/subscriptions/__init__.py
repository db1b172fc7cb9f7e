"""Positions of subscriptions, leases and holds: what keeps batches from retention."""
