"""The stream of a replication slot, and the messages in it."""
