"""The graph of a namespace: which application publishes and reads which topic, how fast, and who waits for whom."""
