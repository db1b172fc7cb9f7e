"""``readStream.format("jobpipe")``: the DataSource, its readers, offsets and limits."""
