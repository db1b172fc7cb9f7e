"""The binary log of MariaDB and MySQL: its stream, its events, and the values in them."""
