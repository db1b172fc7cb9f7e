"""The coordinator: the process that serves the topics of a publisher."""
