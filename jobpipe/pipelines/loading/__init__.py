"""A file to a checked pipeline, and a pipeline to the snapshot that an attempt starts with."""
