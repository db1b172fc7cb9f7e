"""The page of the control server."""
