"""A pipeline, or one job of it, in the foreground: ``jobpipe pipeline run`` and ``try``."""
