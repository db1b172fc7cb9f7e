"""The built-in sinks."""
