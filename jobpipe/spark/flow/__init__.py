"""``jobpipe.flow`` on a cluster: each task of a flow is a Spark job."""
