"""Capture of MariaDB and MySQL by their binary logs."""
