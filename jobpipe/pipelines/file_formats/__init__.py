"""Files of Spark's own formats: options, and the log of the file sink."""
