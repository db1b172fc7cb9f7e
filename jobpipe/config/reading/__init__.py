"""Reads the sources of the configuration, checks all values, and merges them by precedence."""
