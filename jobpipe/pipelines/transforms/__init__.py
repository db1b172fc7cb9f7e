"""The built-in transforms."""
