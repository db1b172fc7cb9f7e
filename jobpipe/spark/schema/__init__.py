"""Schemas: between Spark's and Arrow's, evolution, columns of metadata."""
