"""The page of a topic's rows, and its downloads."""
