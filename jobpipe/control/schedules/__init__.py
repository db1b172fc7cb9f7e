"""Schedules: which intervals a job has, which of them run now, and what fires."""
