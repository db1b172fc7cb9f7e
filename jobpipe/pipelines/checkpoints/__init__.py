"""Checkpoints: where they are, and which job each belongs to."""
