"""The spool of a topic: segments, catalog, retention. Synchronous; knows no network, no registry, no Spark.

Nothing is imported here, and users import from the modules: a Spark worker that only writes segments must never load
SQLite, and a coordinator that only moves bytes never pyarrow.
"""
