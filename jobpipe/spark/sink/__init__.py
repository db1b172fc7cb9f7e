"""``JobPipeSink`` and ``writeStream.format("jobpipe")``: how micro-batches are published."""
