"""Fetches parts of the log from data and host servers."""
