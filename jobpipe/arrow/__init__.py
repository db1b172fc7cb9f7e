"""Arrow without links, store or Spark: casting, checks of schemas and streams, Spark's hash."""
