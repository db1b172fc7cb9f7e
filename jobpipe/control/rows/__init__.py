"""Rows of a topic for people: read without a trace, filtered by an SQL condition, without masked columns; exports."""
