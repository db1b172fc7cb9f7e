"""The built-in sources."""
