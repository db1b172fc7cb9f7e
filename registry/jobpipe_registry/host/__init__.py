"""This host: its processes, and files that are written whole or locked."""
