"""The store of jobs, runs, attempts and events: tables of one SQLite file."""
