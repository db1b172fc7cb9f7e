"""Databases that plug-ins write to: URLs, connections with limits, and their errors in our words."""
