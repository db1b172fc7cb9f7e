"""The handlers of the coordinator's operations, and the right that each one needs."""
